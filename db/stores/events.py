"""A job's events, numbered from 1 without gaps, so that a stream can be resumed anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock


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

    def append(self, job_id: str, events: Sequence[tuple[str, Mapping[str, Any]]]) -> int:
        """Add (kind, data) events in order; the last sequence number. Raises NotFoundError.

        A number becomes visible only after all smaller ones: the job's row is locked meanwhile.
        """
        raise NotImplementedError

    def since(self, job_id: str, sequence: int = 0, limit: int = 500) -> Sequence[JobEvent]:
        """Events after `sequence`, in order; empty when there is none (or no such job)."""
        raise NotImplementedError
