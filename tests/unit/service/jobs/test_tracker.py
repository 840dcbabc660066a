"""A job's progress according to its events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.service.jobs.test_cost_models import product
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.target import known_targets
from tilewright.db.stores.jobs import JobProgress
from tilewright.db.stores.tasks import JobTask, TaskStatus
from tilewright.service.jobs.pipeline.tracker import Tracker
from tilewright.tuner.events import Ended, Finished, Progress, Recorded, Started, TaskSnapshot
from tilewright.tuner.forecast import Forecast
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord
from tilewright.tuner.tasks import Task, make_task

TARGET = known_targets()["x86-64-v3"]
FORECAST = Forecast(0.02, 30.0, 50, 1e-3)


def tasks() -> list[Task]:
    """Two products, the second of which the model runs three times."""
    made = (("first", 8, 1), ("second", 16, 3))
    return [make_task(product(rows), Mode(TARGET), name=name, count=n) for name, rows, n in made]


def snapshot(task: Task, **changes: Any) -> TaskSnapshot:
    return TaskSnapshot(task.name, task.key, task.count, **changes)


def record(key: RecordKey, schedule: Schedule, seconds: float) -> TuningRecord:
    samples = tuple(seconds * factor for factor in (1.0, 1.1, 1.2, 1.1))
    measured = Measurement(
        Status.OK,
        samples_seconds=samples,
        max_error=1e-7,
        comparison=Comparison("incumbent", (0.9,) * 8),
    )
    return TuningRecord(key, schedule, measured, "trial", "4", "0.1")


def test_it_begins_with_tuning_and_the_whole_budget() -> None:
    first, second = tasks()
    tracker = Tracker([first, second], 7)
    assert tracker.progress == JobProgress(phase="tuning", tasks_total=2, trials_budget=7)
    assert tracker.candidates_per_second is None
    row, other = tracker.rows[first.key], tracker.rows[second.key]
    assert (row.name, row.count, row.status) == ("first", 1, TaskStatus.PENDING)
    assert row.facts is not None and row.facts["flops"] == row.weight == 2 * 8 * 96 * 128
    assert (other.count, other.weight) == (3, 3 * 2 * 16 * 96 * 128)
    assert "origins" not in row.facts


def test_a_run_is_followed_to_its_end() -> None:
    first, second = tasks()
    tracker = Tracker([first, second], 40)

    def told(*rows: JobTask) -> list[tuple[str, str, int]]:
        return [(row.name, row.status.value, row.trials) for row in rows]

    started = (snapshot(first), snapshot(second, from_store=True, best_seconds=2e-4))
    changed = tracker.take(Started(started, 40))
    assert told(*changed) == [("first", "pending", 0), ("second", "cached", 0)]
    assert tracker.progress == JobProgress("tuning", 2, 1, 40)
    assert "origins" not in (changed[0].facts or {}), "nobody suggested anything yet"

    went = snapshot(
        first,
        trials=5,
        failures=2,
        default_seconds=4e-4,
        best_seconds=3e-4,
        origins=(("bayesian", 4), ("default", 1)),
        best_origin="bayesian",
    )
    changed = tracker.take(Progress(went, 5, 40, None, 1.0, 90.0, 12.5, FORECAST, 0.01))
    assert told(*changed) == [("first", "tuning", 5)]
    facts = changed[0].facts or {}
    assert facts["origins"] == {"bayesian": 4, "default": 1}
    assert (facts["best_origin"], facts["forecast_gain"]) == ("bayesian", 0.01)
    assert tracker.candidates_per_second == 12.5
    # a task that never ran by default counts with its best time, and each as often as it runs
    default, best = 4e-4 + 3 * 2e-4, 3e-4 + 3 * 2e-4
    expected = JobProgress("tuning", 2, 1, 40, 5, 2, default, best, 90.0, 0.04)
    assert tracker.progress == expected

    # without a forecast, and with times that are not known just now, the last ones remain
    again = replace(went, trials=6, default_seconds=None, best_seconds=None, failures=1)
    (row,) = tracker.take(Progress(again, 6, 40, None, 1.0, 80.0, 10.0))
    assert (row.default_seconds, row.best_seconds, row.trials) == (4e-4, 3e-4, 6)
    assert tracker.progress == replace(expected, trials_done=6, trials_failed=1, seconds_left=80.0)

    schedule = next(iter(first.space.points))
    kept = record(first.key, schedule, 2.5e-4)
    (row,) = tracker.take(Recorded(replace(went, trials=8), kept))
    assert "forecast_gain" not in (row.facts or {})
    assert told(row) == [("first", "tuned", 8)]
    facts = row.facts or {}
    interval = kept.measurement.interval
    assert interval is not None
    assert facts["at_least_seconds"] == interval.low
    assert (facts["max_error"], facts["samples"]) == (1e-7, 4)
    compared = Comparison("incumbent", (0.9,) * 8).to_json()
    assert facts["comparison"] == {k: v for k, v in compared.items() if k != "ratios"}
    assert facts["schedule"] == schedule.to_json()
    assert row.best_seconds == kept.run_seconds
    assert (tracker.progress.tasks_done, tracker.progress.trials_done) == (2, 6)
    assert tracker.progress.seconds_left == 80.0

    finished = Finished(
        (replace(went, trials=9), replace(started[1], trials=1)),
        (kept, None),
        10,
        60.0,
        forecast=replace(FORECAST, gain=0.0),
    )
    changed = tracker.take(finished)
    assert told(*changed) == [("first", "tuned", 9), ("second", "failed", 1)]
    assert tracker.progress.trials_done == 10 and tracker.progress.trials_budget == 40
    assert (tracker.progress.seconds_left, tracker.progress.forecast_gain) == (0.0, 0.0)
    assert tracker.progress.tasks_done == 2


def test_what_was_not_tried_or_was_cancelled_has_not_failed() -> None:
    first, second = tasks()
    for ended, statuses in (
        (Ended.CANCELLED, ["tuning", "pending"]),
        (Ended.TIME, ["failed", "pending"]),
    ):
        tracker = Tracker([first, second], 7)
        states = snapshot(first, trials=3), snapshot(second)
        changed = tracker.take(Finished(states, (None, None), 3, 1.0, ended=ended))
        assert [row.status.value for row in changed] == statuses
        assert [tracker.rows[task.key].status.value for task in (first, second)] == statuses


def test_a_task_that_is_not_searched_names_the_one_that_is() -> None:
    first, second = tasks()
    tracker = Tracker([first, second], 7)
    key = first.key.workload_key
    states = (
        snapshot(first, trials=3, default_seconds=2e-4, best_seconds=1e-4),
        snapshot(second, default_seconds=2e-4, best_seconds=1e-4, relative=key),
    )
    row = tracker.take(Started(states, 40))[1]
    assert (row.status.value, row.trials, (row.facts or {})["relative"]) == ("pending", 0, key)
    assert tracker.progress.best_seconds == pytest.approx(4e-4), "once, and three times"
    (row,) = tracker.take(Recorded(states[1], record(second.key, second.space.default(), 3e-4)))
    assert (row.status.value, row.best_seconds) == ("tuned", 3e-4)
    tracker = Tracker([first, second], 7)
    rows = tracker.take(Finished(states, (None, None), 3, 1.0))
    assert [row.status.value for row in rows] == ["failed", "failed"]


def test_a_record_of_another_release_keeps_its_time_and_its_schedule() -> None:
    first, second = tasks()
    tracker = Tracker([first, second], 7)
    kept = record(first.key, Schedule.of("gone", knob=1), 1e-4)
    (row,) = tracker.take(Recorded(snapshot(first, from_store=True), kept))
    facts = row.facts or {}
    assert row.status is TaskStatus.CACHED and row.best_seconds == 1e-4
    assert (facts["algorithm"], facts["schedule"]) == ("gone", kept.schedule.to_json())
    plain = replace(kept, measurement=replace(kept.measurement, comparison=None))
    (row,) = tracker.take(Recorded(snapshot(first), plain))
    assert (row.facts or {})["comparison"] is None
