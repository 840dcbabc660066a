"""The tuner's record store protocol, on every implementation, and SQL's additions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.engine import open_engine, reading
from tilewright.db.models import ClaimRow, TrialRow
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.statements import table_of
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    TimesAt,
    Trial,
    TuningRecord,
    trial_id,
)
from tilewright.tuner.store import MemoryStore, RecordStore

KEY = RecordKey("w" * 64, "t" * 64, 2, "strict")
SCHEDULE = Schedule.of("direct", tile_n=16, unroll=True, order="nchw")
GOOD = Measurement(
    status=Status.OK,
    samples_seconds=(1.25e-4, 1e-4, 1.5e-4, 0.1 + 0.2),
    max_error=3.1e-7,
    tolerance=1e-4,
    seeds=(1, 2**62),
    reference_digest="r" * 64,
    object_digest="o" * 64,
    build_seconds=0.05,
    measure_seconds=0.2,
    worker="board",
    device={"model": "a CPU", "cores": 4, "governor": None},
    measured_at=1_700_000_000.125,
)
CRASH = Measurement(Status.CRASH, error="signal 11 \x00 in stage 0", worker="board")


def trial(number: int, measurement: Measurement = GOOD, key: RecordKey = KEY) -> Trial:
    schedule = Schedule.of("direct", tile_n=number)
    name = trial_id(key, schedule.digest, Phase.SCREEN, "job")
    return Trial(name, key, schedule, measurement, Phase.SCREEN, "job", "cg1")


class TestConformance:
    """The requirements of the protocol, on every record store."""

    @pytest.fixture(params=["memory", "sql"])
    def store(self, request: pytest.FixtureRequest) -> RecordStore:
        if request.param == "memory":
            return MemoryStore()
        sql: RecordStore = request.getfixturevalue("records")
        return sql

    @pytest.fixture(autouse=True)
    def both_databases(self, engine: sa.Engine) -> None:
        """The class runs on SQLite and on PostgreSQL."""

    def test_nothing_is_known_at_first(self, store: RecordStore) -> None:
        assert store.best_record(KEY) is None
        assert store.trials(KEY) == []
        store.add_trials([])

    def test_trials_read_back_equal_in_order(self, store: RecordStore) -> None:
        other = replace(KEY, threads=1)
        first = [trial(3), trial(1, replace(GOOD, samples_seconds=()))]
        then = [trial(2, Measurement(Status.WORKER_LOST, error="gone")), trial(1, key=other)]
        small, large = TimesAt((("s0", 2),), 1.5, (1e-6,)), TimesAt((("s0", 235),), 0.1, (1e-4,))
        ranged = trial(4, replace(GOOD, samples_seconds=(1.15e-5,), at_sizes=(small, large)))
        store.add_trials(first)
        store.add_trials([*then, ranged])
        assert store.trials(KEY) == [*first, then[0], ranged]
        assert store.trials(other) == [then[1]]

    def test_a_repeated_trial_is_left_as_it_is(self, store: RecordStore) -> None:
        store.add_trials([trial(1), trial(1, CRASH)])
        store.add_trials([trial(1, CRASH), trial(2)])
        assert store.trials(KEY) == [trial(1), trial(2)]

    def test_a_record_replaces_the_one_before(self, store: RecordStore) -> None:
        record = TuningRecord(KEY, SCHEDULE, GOOD, "trial", "cg1", "0.1")
        store.add_record(record)
        assert store.best_record(KEY) == record
        slower = replace(record, measurement=replace(GOOD, samples_seconds=(1.0,)))
        store.add_record(slower)
        assert store.best_record(KEY) == slower
        assert store.best_record(replace(KEY, numerics="fast")) is None
        assert store.best_record(replace(KEY, threads=1)) is None

    @pytest.mark.parametrize(
        "change",
        [
            {"workload_key": "v" * 64},
            {"target_key": "u" * 64},
            {"threads": 1},
            {"numerics": "fast"},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_nothing_crosses_from_key_to_key(
        self, store: RecordStore, change: dict[str, Any]
    ) -> None:
        """A record of one target, say, is not a record of another."""
        other = replace(KEY, **change)
        failed = trial(1, Measurement(Status.CRASH, error="signal 11"))
        store.add_trials([failed])
        store.add_record(TuningRecord(KEY, SCHEDULE, GOOD))
        assert store.trials(other) == [] and store.best_record(other) is None
        store.add_trials([trial(1, key=other)])
        faster = replace(GOOD, samples_seconds=(1e-9,))
        store.add_record(TuningRecord(other, Schedule.of("other"), faster))
        assert store.trials(KEY) == [failed]
        assert store.best_record(KEY) == TuningRecord(KEY, SCHEDULE, GOOD)


def test_one_target_is_not_another_in_any_question(records: SqlRecordStore) -> None:
    """Those of a whole model, of the compiler, of cost models, and of people."""
    other = replace(KEY, target_key="u" * 64)
    records.add_trials([trial(1, key=other)])
    records.add_record(TuningRecord(other, SCHEDULE, GOOD))
    assert records.best_records([KEY]) == {}
    assert records.best_record(KEY) is None
    assert records.newest_trials([KEY.target_key], "cg1", 10) == []
    assert records.count_by_target("cg1") == {other.target_key: 1}


def test_failures_are_kept_with_their_text(records: SqlRecordStore) -> None:
    failures = [
        trial(number, Measurement(status, error=f"{status} happened"))
        for number, status in enumerate(Status)
        if status is not Status.OK
    ]
    records.add_trials(failures)
    assert records.trials(KEY) == failures
    assert records.trials_of_job("job") == failures
    assert records.trials_of_job("another") == []
    counts = records.count_trials("job")
    assert counts[Status.CRASH] == 1
    assert counts[Status.OK] == 0
    assert records.count_trials("another")[Status.CRASH] == 0


def test_a_text_with_a_nul_costs_no_trial(records: SqlRecordStore) -> None:
    records.add_trials([trial(1, CRASH)])
    assert records.trials(KEY)[0].measurement.error == "signal 11 � in stage 0"


def test_an_infinite_error_is_kept(records: SqlRecordStore) -> None:
    wrong = Measurement(
        Status.WRONG_ANSWER, max_error=float("inf"), samples_seconds=(float("nan"),)
    )
    records.add_trials([trial(1, wrong)])
    (found,) = records.trials(KEY)
    assert found.measurement.max_error == float("inf")
    assert found.measurement.samples_seconds[0] != found.measurement.samples_seconds[0]


def test_columns_can_be_asked_in_sql(
    records: SqlRecordStore, engine: sa.Engine, clock: Any
) -> None:
    records.add_trials([trial(7)])
    records.add_record(TuningRecord(KEY, SCHEDULE, GOOD, "trial", "cg1", "0.1"))
    trials, rows = table_of(TrialRow), table_of(ClaimRow)
    with reading(engine) as connection:
        row = connection.execute(sa.select(trials)).one()
        record = connection.execute(sa.select(rows)).one()
    assert (row.algorithm, row.status, row.run_seconds) == ("direct", "ok", 1e-4)
    assert row.schedule_digest == Schedule.of("direct", tile_n=7).digest
    assert row.stored_at == clock()
    assert (record.kind, record.subject) == ("schedule", KEY.workload_key)
    assert (record.trial_id, record.codegen_version) == ("trial", "cg1")


def test_no_record_of_a_failure(records: SqlRecordStore) -> None:
    with pytest.raises(ValueError, match="failed measurement"):
        records.add_record(TuningRecord(KEY, SCHEDULE, CRASH))
    assert records.best_record(KEY) is None


def test_a_whole_model_at_once(records: SqlRecordStore) -> None:
    keys = [
        RecordKey(f"w{number:03}", target, threads, "fast")
        for number in range(450)
        for target, threads in (("t1", 1), ("t2", 2))
    ]
    made = {key: TuningRecord(key, SCHEDULE, GOOD) for key in keys[::5]}
    for record in made.values():
        records.add_record(record)
    assert records.best_records(keys + keys) == made
    assert records.best_records([]) == {}


def test_the_compilers_schedule_source(records: SqlRecordStore) -> None:
    mode = Mode(resolve_target("x86-64-v3"), 2, "strict")
    records.add_record(TuningRecord(RecordKey("w" * 64, *mode.key), SCHEDULE, GOOD))
    assert records.best("w" * 64, mode) == SCHEDULE
    assert records.best("w" * 64, replace(mode, threads=1)) is None


def test_what_was_saved_is_there_after_a_restart(
    empty_sqlite: Path, tmp_path: Path, clock: Any
) -> None:
    path = tmp_path / "kept.db"
    path.write_bytes(empty_sqlite.read_bytes())
    engine = open_engine(f"sqlite:///{path}")
    SqlRecordStore(engine, clock).add_trials([trial(1)])
    engine.dispose()
    assert SqlRecordStore(open_engine(f"sqlite:///{path}"), clock).trials(KEY) == [trial(1)]


def test_trials_to_learn_from_are_of_some_targets_and_one_version(records: SqlRecordStore) -> None:
    own, relative, foreign = (replace(KEY, target_key=name * 64) for name in "abc")
    records.add_trials([trial(n, key=own) for n in (1, 2)])
    records.add_trials([trial(3, key=relative), trial(4, key=foreign)])
    stale = trial(5, key=own)
    records.add_trials([replace(stale, codegen_version="cg0")])
    found = records.newest_trials([own.target_key, relative.target_key], "cg1", 10)
    assert [t.schedule["tile_n"] for t in found] == [1, 2, 3]
    newest = records.newest_trials([own.target_key, relative.target_key], "cg1", 2)
    assert [t.schedule["tile_n"] for t in newest] == [2, 3]
    assert records.count_by_target("cg1") == {"a" * 64: 2, "b" * 64: 1, "c" * 64: 1}


def test_the_candidates_that_other_jobs_measured_are_counted(records: SqlRecordStore) -> None:
    other = replace(KEY, workload_key="v" * 64)
    elsewhere = replace(KEY, threads=1)
    final = replace(trial(4), id="final", phase=Phase.FINAL)
    records.add_trials(
        [trial(1), trial(2, CRASH), trial(3, key=other), trial(1, key=elsewhere), final]
    )
    assert records.count_screened([KEY], "another job") == 2
    assert records.count_screened([KEY, KEY, other], "another job") == 3
    assert records.count_screened([KEY, other, elsewhere], "another job") == 4
    assert records.count_screened([KEY, other, elsewhere], "job") == 0
    assert records.count_screened([], "another job") == 0
