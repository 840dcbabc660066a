"""The audit log: actor, action, subject, time and address of administrative actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.models import AuditRow
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.statements import table_of

_audit = table_of(AuditRow)
_newest_first = PageOrder((_audit.c.serial,))


class Action(StrEnum):
    """The administrative actions that the audit log contains.

    Reading, submitting jobs and measuring are not logged.
    """

    TOKEN_CREATED = "token.created"
    TOKEN_REVOKED = "token.revoked"
    TOKEN_ROTATED = "token.rotated"
    JOB_CANCELLED = "job.cancelled"
    JOB_PAUSED = "job.paused"
    JOB_RESUMED = "job.resumed"
    WORKER_DRAINED = "worker.drained"
    WORKER_RESUMED = "worker.resumed"
    COST_MODEL_PROMOTED = "cost-model.promoted"
    COST_MODEL_ROLLED_BACK = "cost-model.rolled-back"
    DATABASE_RESTORED = "database.restored"
    RECORDS_WITHDRAWN = "records.withdrawn"
    RECORDS_IMPORTED = "records.imported"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the audit log: one action.

    Attributes:
        serial: the number of the entry, in the order of logging.
        at: the time in seconds since the epoch.
        actor: the id of the token that was used; "" for a command on the service's own machine.
        origin: the address of the client, or the user and host of a command.
        subject: the id of the changed object, such as a job, token or worker.
    """

    serial: int
    at: float
    actor: str
    actor_name: str  # its name at that time
    origin: str  # the address of the client, or the user and host of a command
    action: str
    subject: str  # the id of the token, job, worker, ...
    detail: Mapping[str, Any]


class AuditStore:
    """The audit log. Entries can be added and read, but not changed."""

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def add(
        self,
        action: Action,
        subject: str,
        *,
        actor: str,
        actor_name: str,
        origin: str,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Log an action at the present time. The parameters are the fields of `Entry`.

        Raises:
            StorageError: if the database fails.
        """
        row = {
            "at": self._clock(),
            "actor": actor,
            "actor_name": actor_name,
            "origin": origin,
            "action": action.value,
            "subject": subject,
            "detail": dict(detail or {}),
        }
        with writing(self._engine) as connection:
            connection.execute(sa.insert(_audit).values(row))

    def list(
        self,
        limit: int = 100,
        after: Position | None = None,
        *,
        action: str | None = None,
        actor: str | None = None,
        subject: str | None = None,
    ) -> Page[Entry]:
        """Return a page of entries that match all given filters, newest first.

        `after` is the position `Page.next` of the previous page.

        Raises:
            PositionError: if no entry can have the position `after`.
        """
        query = sa.select(_audit)
        wanted = ((_audit.c.action, action), (_audit.c.actor, actor), (_audit.c.subject, subject))
        for column, value in wanted:
            if value is not None:
                query = query.where(column == value)
        with reading(self._engine) as connection:
            return _newest_first.page(connection, query, _entry, limit, after)


def _entry(row: sa.Row[Any]) -> Entry:
    return Entry(**row._mapping)
