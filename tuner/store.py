"""Where trials and records are kept: the protocol, and an implementation in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from tilewright.tuner.protocol.measurement import RecordKey, Trial, TuningRecord


class RecordStore(Protocol):
    """Protocol of a record store, as the tune loop uses it. Every method is safe to repeat."""

    def best_record(self, key: RecordKey) -> TuningRecord | None:
        """The record of a key, or None."""

    def add_record(self, record: TuningRecord) -> None:
        """Make this the record of its key, and replace any earlier one."""

    def add_trials(self, trials: Sequence[Trial]) -> None:
        """Keep trials, including failures; a trial whose id is known already stays as it is."""

    def trials(self, key: RecordKey) -> list[Trial]:
        """Every trial of a key, oldest first, also those that were withdrawn."""


class MemoryStore:
    """A record store that lives as long as the process."""

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
