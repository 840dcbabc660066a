"""Events of jobs, numbered from 1 per job without gaps.

A client that reads a job's events as a stream can therefore resume after any number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError
from tilewright.db.models import EventRow, JobRow
from tilewright.db.notices import announce, job_topic
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.statements import table_of

_events = table_of(EventRow)
_jobs = table_of(JobRow)
_newest_first = PageOrder((_events.c.sequence,))

EventData = tuple[str, Mapping[str, Any]]
"""The kind of an event, and its data."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    job_id: str
    sequence: int  # 1, 2, 3, ... within the job: the id of a server-sent event
    kind: str  # "state", "progress", "task", "log", ...
    data: Mapping[str, Any]
    created_at: float


class EventStore:
    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def append(self, job_id: str, events: Sequence[EventData]) -> int:
        """Add events, given as (kind, data), to a job in order. Return the number of the last one.

        The job's row is locked until the commit, so a reader that sees an event sees all earlier
        ones.

        Raises:
            NotFoundError: if no job has this id.
        """
        with writing(self._engine) as connection:
            return append_events(connection, job_id, events, self._clock())

    def spread(self, job_id: str, kind: str, most: int) -> Sequence[JobEvent]:
        """Return a job's events of one kind in order, or an evenly spaced sample of them.

        If there are more than `most` events, the result has at most `most` evenly spaced ones,
        followed by the last event.
        """
        # by its position among its kind: sequence numbers of one kind may all be odd
        place = sa.func.row_number().over(order_by=_events.c.sequence)
        of_kind = sa.and_(_events.c.job_id == job_id, _events.c.kind == kind)
        numbered = sa.select(_events, place.label("place")).where(of_kind).subquery()
        count = sa.select(sa.func.count()).select_from(_events).where(of_kind)
        with reading(self._engine) as connection:
            last = connection.execute(count).scalar_one()
            step = max(1, -(-last // most))
            some = sa.or_(numbered.c.place % step == 0, numbered.c.place == last)
            columns = [numbered.c[column.name] for column in _events.c]
            query = sa.select(*columns).where(some).order_by(numbered.c.sequence)
            return [_event(row) for row in connection.execute(query)]

    def list(
        self, job_id: str, *, but: str, limit: int, after: Position | None = None
    ) -> Page[JobEvent]:
        """Return a page of a job's events, newest first, without the events of kind `but`.

        `after` is the position `Page.next` of the previous page.

        Raises:
            PositionError: if no event can have the position `after`.
        """
        query = sa.select(_events).where(_events.c.job_id == job_id, _events.c.kind != but)
        with reading(self._engine) as connection:
            return _newest_first.page(connection, query, _event, limit, after)

    def since(self, job_id: str, sequence: int = 0, limit: int = 500) -> Sequence[JobEvent]:
        """Return up to `limit` events of a job after number `sequence`, in order.

        The result is empty if the job does not exist.
        """
        query = (
            sa.select(_events)
            .where(_events.c.job_id == job_id, _events.c.sequence > sequence)
            .order_by(_events.c.sequence)
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return [_event(row) for row in connection.execute(query)]


def _event(row: sa.Row[Any]) -> JobEvent:
    return JobEvent(**row._mapping)


def append_events(
    connection: sa.Connection, job_id: str, events: Sequence[EventData], now: float
) -> int:
    """Add events to a job, as `EventStore.append` does, but in the transaction of `connection`.

    Return the number of the last event. Raises NotFoundError if the job does not exist.
    """
    counted = (
        sa.update(_jobs)
        .where(_jobs.c.id == job_id)
        .values(event_sequence=_jobs.c.event_sequence + len(events))
        .returning(_jobs.c.event_sequence)
    )
    last: int | None = connection.execute(counted).scalar_one_or_none()
    if last is None:
        raise NotFoundError("job", job_id)
    if events:
        rows = [
            {
                "job_id": job_id,
                "sequence": sequence,
                "kind": kind,
                "data": dict(data),
                "created_at": now,
            }
            for sequence, (kind, data) in enumerate(events, last - len(events) + 1)
        ]
        connection.execute(sa.insert(_events), rows)
        announce(connection, [job_topic(job_id)])
    return last
