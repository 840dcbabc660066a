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
    """The actions that are logged. Reading, submitting and measuring are not."""

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
    """One logged action.

    Attributes:
        actor: the id of a token; "" for a command on the service's own machine.
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
    """The audit log. Entries are added and read, but never changed."""

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
        """Log an action at the present time.

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
