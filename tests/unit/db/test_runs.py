"""Runs of the tune loop in the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.errors import NotFoundError
from tilewright.db.stores.runs import RunStore
from tilewright.tuner.events import Ended, Finished, Started, TaskInputs, TaskSnapshot
from tilewright.tuner.forecast import Forecast, ForecastError
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.batches import Candidate, Case, InputSpec, MeasureRequest
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord

KEY = RecordKey("workload", "target", 2, "strict")
RECORD = TuningRecord(
    KEY, Schedule.of("gemm", tile=4), Measurement(Status.OK, samples_seconds=(1e-5,)), "trial", "1"
)
OPTIONS = TuneOptions(trials=64, stop_gain=0.01, base_model=b"\x00trees", job_id="job")
REQUEST = MeasureRequest(
    "request",
    KEY,
    (Candidate("trial", RECORD.schedule.to_json(), RECORD.schedule.digest, {}, "code"),),
    "library",
    (Case((InputSpec((4,), "float32", 1),), "expected"),),
    1e-4,
)
STARTED = Started((), 64, OPTIONS, (TaskInputs(KEY, "gemm", 3, 17, RECORD, 8e-6),))
FINISHED = Finished(
    (TaskSnapshot("gemm", KEY, 3, best_seconds=1e-5),),
    (RECORD,),
    40,
    12.5,
    ended=Ended.GAIN,
    forecast=Forecast(0.002, 30.0, 300, 3e-5),
    forecast_error=ForecastError(4, 0.02, 0.01, 0.015),
    journal=(-1, -1, 0, 1, -2, 2),
)


@pytest.fixture
def runs(engine: sa.Engine, clock: Callable[[], float]) -> RunStore:
    return RunStore(engine, clock)


def test_a_run_comes_back_with_what_repeats_it(runs: RunStore) -> None:
    run_id = runs.start(STARTED)
    begun = runs.get(run_id)
    assert (begun.id, begun.starts, begun.journal, begun.ended) == ("job", 1, None, None)
    runs.finish(run_id, FINISHED)
    found = runs.get(run_id)
    assert found.options == OPTIONS and found.inputs == STARTED.inputs
    assert found.journal == FINISHED.journal
    assert (found.ended, found.trials, found.seconds) == ("gain", 40, 12.5)
    assert found.model_seconds == pytest.approx(3e-5)
    assert found.forecast_gain == pytest.approx(0.004), "for a minute"
    assert found.forecast_error == {
        "checks": 4,
        "expected": 0.02,
        "gained": 0.01,
        "absolute_error": 0.015,
    }


def test_a_run_that_was_killed_is_taken_up_and_one_that_ended_is_not(runs: RunStore) -> None:
    assert runs.start(STARTED) == "job"
    assert runs.get("job").adopted == []
    assert runs.start(replace(STARTED, adopted=(REQUEST,))) == "job"
    taken = runs.get("job")
    assert taken.starts == 2 and taken.adopted is not None
    assert [MeasureRequest.from_json(data) for data in taken.adopted] == [REQUEST]
    runs.finish("job", FINISHED)
    assert runs.start(STARTED) == "job.2"
    assert (runs.get("job").starts, runs.get("job.2").starts) == (2, 1)
    other = replace(STARTED, options=replace(OPTIONS, job_id="jo"))
    assert runs.start(other) == "jo", "not a run of 'job'"


def test_the_newest_run_is_listed_first(runs: RunStore, clock: Callable[[], float]) -> None:
    for number in range(3):
        clock.advance(10)  # type: ignore[attr-defined]
        runs.start(replace(STARTED, options=replace(OPTIONS, job_id=f"run{number}")))
    assert [run.id for run in runs.list(limit=2)] == ["run2", "run1"]


def test_a_run_without_forecast_or_times_ends_too(runs: RunStore) -> None:
    runs.start(STARTED)
    runs.finish("job", Finished((TaskSnapshot("gemm", KEY, 3),), (None,), 0, 0.1))
    found = runs.get("job")
    assert found.model_seconds is None and found.forecast_gain is None
    assert found.journal == () and found.forecast_error is None


def test_a_run_that_nobody_started(runs: RunStore) -> None:
    with pytest.raises(NotFoundError):
        runs.get("nothing")
    with pytest.raises(NotFoundError):
        runs.finish("nothing", FINISHED)
