"""The reasons that end the tune loop before its trials are spent: cancellation, time, too little to
gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.tuner.fakes import Clock, FakeQueue, FakeTask, World
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import ScheduleSpace, SubSpace
from tilewright.tuner.events import Ended, Event, Progress
from tilewright.tuner.limits import LOST_BATCHES
from tilewright.tuner.pipeline import AHEAD
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.measurement import Phase, Status

pytestmark = pytest.mark.filterwarnings("error")


def test_a_cancelled_run_ends_soon_and_keeps_its_best(world: World) -> None:
    def on_event(event: Event) -> None:
        world.events.append(event)
        if isinstance(event, Progress) and event.trials_done >= 24:
            world.token.cancel("no longer wanted")

    world.events = _Listener(on_event)
    finished = world.tune(trials=4000)
    assert finished.cancelled and finished.reason == "no longer wanted"
    assert finished.trials_done < 100
    assert all(finished.records)
    assert {t.measurement.status for t in world.trials()} == {Status.OK}
    assert not world.queue.waiting


def test_what_a_device_measured_before_it_heard_of_the_end_is_stored(world: World) -> None:
    def measures_what_it_has(request_ids: Sequence[str] | None = None) -> None:
        for request in list(world.queue.waiting.values()):
            world.queue._measure(request)

    def on_event(event: Event) -> None:
        if isinstance(event, Progress) and event.trials_done >= 24:
            world.token.cancel("no longer wanted")

    world.queue.cancel = measures_what_it_has  # type: ignore[method-assign]
    world.events = _Listener(on_event)
    world.tune(trials=4000)
    screened = [r for r in world.queue.submitted if r.phase is Phase.SCREEN]
    assert len(world.trials()) == sum(len(request.candidates) for request in screened)
    assert set(world.queue.acknowledged) == {r.request_id for r in world.queue.submitted}


class _Listener(list):  # type: ignore[type-arg]
    def __init__(self, listen: Callable[[Event], None]) -> None:
        super().__init__()
        self._listen = listen

    def append(self, event: Event) -> None:
        if isinstance(event, Progress):
            listen, self._listen = self._listen, list.append.__get__(self)
            listen(event)
            self._listen = listen
        else:
            super().append(event)


def test_a_cancelled_run_does_not_wait_for_a_stuck_device(world: World) -> None:
    world.queue.stuck = True
    world.token.cancel()
    finished = world.tune(trials=100)
    assert finished.cancelled and finished.trials_done == 0


def test_the_time_budget_ends_the_screening_and_leaves_time_for_finals(world: World) -> None:
    world.clock = Clock(step=0.004)
    finished = world.tune(trials=100_000, seconds=3.0)
    assert finished.trials_done < 2 * 300 and finished.ended is Ended.TIME
    assert all(finished.records)
    assert world.trials(Phase.FINAL)


def test_comparisons_end_with_the_time_and_begin_with_what_matters(
    world: World, gemm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a second here. Comparisons that were not made keep their trials for the next
    run."""
    now = 0.0
    measure = world.queue._measure

    def slowly(request: MeasureRequest) -> None:
        nonlocal now
        now += float(request.phase is Phase.FINAL)
        measure(request)

    monkeypatch.setattr(world.queue, "_measure", slowly)
    world.clock = lambda: now  # type: ignore[assignment]
    world.tasks = [FakeTask(f"{n}", gemm.space, gemm.nest, count=n) for n in range(1, 21)]
    finished = world.tune(trials=60, seconds=10.0)
    recorded = [record is not None for record in finished.records]
    assert finished.ended is Ended.TIME and finished.seconds_elapsed <= 13.0
    assert recorded == sorted(recorded) and 10 <= sum(recorded) <= 13
    again = world.tune(trials=60, seconds=30.0)
    assert all(again.records) and again.trials_done == 60


@pytest.mark.parametrize("strategy", ["bayesian", "evolutionary", "portfolio"])
def test_a_search_stops_between_two_candidates_when_the_time_is_over(
    world: World, gemm: Any, strategy: str
) -> None:
    """It would evaluate hundreds, each of which takes a second here."""
    now = 0.0

    def slowly(schedule: Schedule) -> Any:
        nonlocal now
        now += 1.0
        return gemm.nest(schedule)

    world.clock = lambda: now  # type: ignore[assignment]
    world.tasks = [replace(task, lower=slowly) for task in world.tasks]
    finished = world.tune(trials=100_000, seconds=30.0, strategy=strategy)
    assert 0 < finished.seconds_elapsed <= 31.0
    assert finished.ended is Ended.TIME
    assert all(finished.records), "the defaults were measured before"


def test_a_search_stops_between_two_candidates_when_it_is_cancelled(
    world: World, gemm: Any
) -> None:
    looked_at = 0

    def cancelled(schedule: Schedule) -> Any:
        nonlocal looked_at
        looked_at += 1
        if looked_at == 20:
            world.token.cancel("no longer wanted")
        return gemm.nest(schedule)

    world.tasks = [replace(task, lower=cancelled) for task in world.tasks]
    finished = world.tune(trials=100_000)
    assert finished.cancelled and looked_at == 20


def test_a_stuck_device_does_not_outlast_the_time_budget(world: World) -> None:
    world.clock = Clock(step=0.01)
    world.queue.stuck = True
    finished = world.tune(trials=100, seconds=1.0)
    assert finished.trials_done == 0 and finished.records == (None, None)


def test_a_run_ends_when_nothing_is_to_be_gained(world: World, gemm: Any) -> None:
    world.clock = Clock(step=0.01)
    finished = world.tune(trials=100_000, stop_gain=0.005)
    assert finished.ended is Ended.GAIN
    assert finished.trials_done < 0.75 * 2 * len(gemm.space)
    assert finished.forecast is not None and finished.forecast.gain_per_minute < 0.005
    best = min(map(gemm.seconds, gemm.space.points))
    # Half a percent was promised of the whole model; the estimate may be wrong by a few times that.
    found = sum(s.count * (s.best_seconds or 1.0) for s in finished.tasks)
    assert found <= 1.02 * 7 * best


def test_forecasts_are_told_and_judged(world: World) -> None:
    world.clock = Clock(step=0.01)
    finished = world.tune(trials=96)
    assert finished.ended is Ended.TRIALS
    told = [e.forecast for e in world.events if isinstance(e, Progress)]
    known = [f for f in told if f is not None]
    assert told[0] is None and finished.forecast == known[-1]
    assert known[0].gain > known[-1].gain > 0
    error = finished.forecast_error
    assert error is not None and error.checks >= 5
    assert error.absolute_error < 0.2 and 0 <= error.gained < 1


def test_a_run_ends_at_its_target(world: World, gemm: Any) -> None:
    default = gemm.seconds(gemm.space.default())
    target = 7 * 0.8 * default  # of seven kernels
    finished = world.tune(trials=1000, target_seconds=target)
    assert finished.ended is Ended.TARGET
    assert sum(s.count * (s.best_seconds or 1) for s in finished.tasks) <= target
    assert finished.trials_done < 200


def test_tasks_at_the_bound_of_the_machine_get_no_more(world: World, gemm: Any) -> None:
    default = gemm.seconds(gemm.space.default())
    asked: list[int] = []

    def bounds() -> list[float]:
        asked.append(1)
        return [default, 0.0]

    finished = world.tune(trials=64, bounds=bounds)
    at_bound, other = finished.tasks
    # Candidates in flight when the default came back are still measured.
    assert at_bound.trials <= 24 < other.trials
    assert all(finished.records)
    world.tune(trials=64, bounds=bounds)
    assert len(asked) == 1, "with nothing to tune the machine is not measured"


def test_two_tasks_at_their_bounds_end_the_run(world: World, gemm: Any) -> None:
    default = gemm.seconds(gemm.space.default())
    finished = world.tune(trials=4000, bounds=lambda: [default, default])
    assert finished.ended is Ended.SPACES
    assert finished.trials_done < 100 and all(finished.records)


def test_a_run_goes_on_after_a_task_is_used_up(world: World, gemm: Any) -> None:
    """A space of one schedule, which is exhausted first: other tasks follow, and nothing hangs."""
    only = gemm.space.default()
    tiny = ScheduleSpace((SubSpace("columns", (), lambda choice: False, only),))
    world.tasks = [FakeTask("tiny", tiny, gemm.nest, 100), *world.tasks]
    finished = world.tune(trials=60)
    assert finished.tasks[0].trials == 1
    assert finished.trials_done == 60 and all(finished.records)
    alone = World([world.tasks[0]], FakeQueue(gemm.seconds)).tune(trials=60)
    assert alone.ended is Ended.SPACES and alone.trials_done == 1 and all(alone.records)


def test_a_device_that_is_lost_for_good_ends_the_run(world: World) -> None:
    world.queue.fails = lambda candidate, serial: Status.WORKER_LOST
    finished = world.tune(trials=10_000)
    assert finished.ended is Ended.DEVICE and "lost" in finished.reason
    assert finished.trials_done == 0 and finished.records == (None, None)
    assert len(world.queue.submitted) <= LOST_BATCHES + world.queue.capacity + AHEAD
