"""A job's events, numbered from 1 without gaps, so that a stream can be resumed anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock
from db.engine import reading, writing
from db.errors import NotFoundError
from db.models import EventRow, JobRow
from db.notices import announce, job_topic
from db.stores.statements import table_of

_events = table_of(EventRow)
_jobs = table_of(JobRow)

EventData = tuple[str, Mapping[str, Any]]
"""(kind, data)"""


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
        """Add (kind, data) events in order; returns the last sequence number. Raises NotFoundError.

        A number becomes visible only after all smaller ones: the job's row is locked meanwhile.
        """
        with writing(self._engine) as connection:
            return append_events(connection, job_id, events, self._clock())

    def since(self, job_id: str, sequence: int = 0, limit: int = 500) -> Sequence[JobEvent]:
        """Events after `sequence`, in order; empty when there is none (or no such job)."""
        query = (
            sa.select(_events)
            .where(_events.c.job_id == job_id, _events.c.sequence > sequence)
            .order_by(_events.c.sequence)
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return [JobEvent(**row._mapping) for row in connection.execute(query)]


def append_events(
    connection: sa.Connection, job_id: str, events: Sequence[EventData], now: float
) -> int:
    """`EventStore.append` within a transaction of another store."""
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
