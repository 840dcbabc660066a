"""The in-memory record store against the suite that every record store passes."""

from __future__ import annotations

import pytest

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    Trial,
    TuningRecord,
    trial_id,
)
from tilewright.tuner.store import MemoryStore, RecordStore

KEY = RecordKey("w", "t")


def _trial(number: int, key: RecordKey = KEY, status: Status = Status.OK) -> Trial:
    schedule = Schedule.of("a", tile=number)
    measurement = Measurement(status, samples_seconds=(1e-6 * number,))
    name = trial_id(key, schedule.digest, Phase.SCREEN, "job")
    return Trial(
        name, key, schedule, measurement, job_id="job", codegen_version="1", origin="estimate"
    )


class RecordStoreSuite:
    """The behaviour of every record store; a subclass gives the fixture `store`."""

    def test_nothing_is_known_at_first(self, store: RecordStore) -> None:
        assert store.best_record(KEY) is None and store.trials(KEY) == []

    def test_trials_come_back_in_order_and_failures_too(self, store: RecordStore) -> None:
        trials = [_trial(3), _trial(1, status=Status.CRASH), _trial(2)]
        store.add_trials(trials[:1])
        store.add_trials(trials[1:])
        assert store.trials(KEY) == trials

    def test_a_trial_is_kept_once(self, store: RecordStore) -> None:
        store.add_trials([_trial(1)])
        store.add_trials([_trial(1), _trial(2)])
        assert store.trials(KEY) == [_trial(1), _trial(2)]

    @pytest.mark.parametrize(
        "other", [RecordKey("x", "t"), RecordKey("w", "u"), RecordKey("w", "t", 2)]
    )
    def test_keys_are_told_apart(self, store: RecordStore, other: RecordKey) -> None:
        store.add_trials([_trial(1), _trial(2, other)])
        assert store.trials(KEY) == [_trial(1)]
        assert store.trials(other) == [_trial(2, other)]

    def test_the_last_record_is_the_record(self, store: RecordStore) -> None:
        for number in (1, 2):
            trial = _trial(number)
            store.add_trials([trial])
            record = TuningRecord(KEY, trial.schedule, trial.measurement, trial.id, "1", "0.1")
            store.add_record(record)
            assert store.best_record(KEY) == record
        assert store.best_record(RecordKey("x", "t")) is None


class TestMemoryStore(RecordStoreSuite):
    @pytest.fixture
    def store(self) -> RecordStore:
        return MemoryStore()
