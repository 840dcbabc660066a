"""Verdicts: whether tuned schedules won end to end, against the untuned program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock
from db.engine import reading, writing
from db.models import VerdictRow
from db.stores.statements import table_of

_verdicts = table_of(VerdictRow)


class VerdictStore:
    """One row each time that schedules were served; its identity says what was raced."""

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def add(self, identity: str, job_id: str, served: str, verdict: Mapping[str, Any]) -> None:
        """Keep what a job was served, and why."""
        values = {
            "identity": identity,
            "job_id": job_id,
            "served": served,
            "verdict": dict(verdict),
            "created_at": self._clock(),
        }
        with writing(self._engine) as connection:
            connection.execute(sa.insert(_verdicts).values(values))

    def find(self, identity: str) -> Mapping[str, Any] | None:
        """The newest verdict on the same kernels, schedules and code; None if there was no race."""
        query = (
            sa.select(_verdicts.c.verdict)
            .where(_verdicts.c.identity == identity)
            .order_by(_verdicts.c.serial.desc())
            .limit(1)
        )
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
        return None if row is None else row.verdict

    def forget(self, job_id: str) -> int:
        """Remove the verdicts that a job's races gave; how many."""
        with writing(self._engine) as connection:
            delete = sa.delete(_verdicts).where(_verdicts.c.job_id == job_id)
            return connection.execute(delete).rowcount

    def counts(self) -> dict[str, int]:
        """The number of verdicts by the value of `served`."""
        query = sa.select(_verdicts.c.served, sa.func.count()).group_by(_verdicts.c.served)
        with reading(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(query)}
