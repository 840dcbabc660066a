"""Trials (every one, failures too) and records (the best of each record key)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from db.clock import Clock, system_clock

if TYPE_CHECKING:
    from compiler.schedule.schedule import Schedule
    from tuner.measure.measurement import RecordKey, Trial, TuningRecord


class RecordStore:
    """Implements the tuner's RecordStore protocol; `.schedules()` is the compiler's
    ScheduleSource."""

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def add_trials(self, trials: Sequence[Trial]) -> None:
        """Save trials in one transaction; one that is known already is left as it is."""
        raise NotImplementedError

    def trials(self, key: RecordKey, limit: int | None = None) -> Sequence[Trial]:
        """The trials of a record key, oldest first."""
        raise NotImplementedError

    def put(self, record: TuningRecord) -> bool:
        """Keep the record if it is the best of its key; whether it was kept."""
        raise NotImplementedError

    def best(self, key: RecordKey) -> TuningRecord | None:
        """The best verified schedule of a record key."""
        raise NotImplementedError

    def best_many(self, keys: Sequence[RecordKey]) -> Mapping[RecordKey, TuningRecord]:
        """Those that are known, in one query: a whole model at once."""
        raise NotImplementedError

    def find(
        self,
        *,
        workload_key: str | None = None,
        target_key: str | None = None,
        threads: int | None = None,
        numerics: str | None = None,
        limit: int = 100,
    ) -> Sequence[TuningRecord]:
        """Records that match, newest first."""
        raise NotImplementedError

    def schedules(self) -> SqlScheduleSource:
        """This store as the compiler's ScheduleSource."""
        raise NotImplementedError


class SqlScheduleSource:
    """compiler.driver.ScheduleSource over the records."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    def best(
        self, workload_key: str, target_key: str, threads: int, numerics: str
    ) -> Schedule | None:
        raise NotImplementedError
