"""Stores of trials (measured candidates) and records (the best known schedules).

The module has the interface, and an implementation in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from tilewright.tuner.protocol.measurement import RecordKey, Trial, TuningRecord


class RecordStore(Protocol):
    """A store of trials (measured candidates) and records (the best known schedules).

    All methods are idempotent.
    """

    def best_record(self, key: RecordKey) -> TuningRecord | None:
        """Return the record stored for a record key; None if there is no such record."""

    def add_record(self, record: TuningRecord) -> None:
        """Store a record; it replaces an earlier record with the same key."""

    def add_trials(self, trials: Sequence[Trial]) -> None:
        """Store trials, including failed ones. A trial whose id is already stored is ignored."""

    def trials(self, key: RecordKey) -> list[Trial]:
        """Return all trials for a record key, oldest first, including withdrawn ones."""


class MemoryStore:
    """A record store whose contents exist only in memory; any thread may call its methods."""

    def __init__(self) -> None:
        self._records: dict[RecordKey, TuningRecord] = {}
        self._trials: dict[RecordKey, dict[str, Trial]] = {}
        self._lock = threading.Lock()

    def best_record(self, key: RecordKey) -> TuningRecord | None:
        with self._lock:
            return self._records.get(key)

    def add_record(self, record: TuningRecord) -> None:
        with self._lock:
            self._records[record.key] = record

    def add_trials(self, trials: Sequence[Trial]) -> None:
        with self._lock:
            for trial in trials:
                self._trials.setdefault(trial.key, {}).setdefault(trial.id, trial)

    def trials(self, key: RecordKey) -> list[Trial]:
        with self._lock:
            return list(self._trials.get(key, {}).values())
