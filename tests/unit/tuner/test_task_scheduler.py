"""Which task gets the next batch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tilewright.tuner.task_scheduler import MOST_FAILURES, Profile, TaskProgress, TaskScheduler


@dataclass(eq=False)
class Some:
    """A task that is nothing but its progress."""

    progress: TaskProgress


Scheduler = TaskScheduler[Some]


def _scheduler(*profiles: Profile | float) -> Scheduler:
    """Tasks of equal work, given by their weights, or whole profiles."""
    whole = [p if isinstance(p, Profile) else Profile(p, 1e6) for p in profiles]
    return TaskScheduler([Some(TaskProgress(profile)) for profile in whole])


def _spend(scheduler: Scheduler, number: int, *seconds: float | None) -> None:
    """A batch comes back with these times; each has different code."""
    task = scheduler.tasks[number]
    scheduler.started(task, len(seconds))
    known = task.progress.history.trials
    measured = [(s, f"{number} {known + i}") for i, s in enumerate(seconds)]
    task.progress.finished(len(seconds), measured)


def _next(scheduler: Scheduler) -> int | None:
    """The number of the task that is next."""
    found = scheduler.next()
    return None if found is None else scheduler.tasks.index(found)


def _gain(scheduler: Scheduler, number: int, batch_size: int = 8) -> float:
    return scheduler.gain(scheduler.tasks[number], batch_size)


def test_every_task_is_tried_first_the_heaviest_before_the_others() -> None:
    scheduler = _scheduler(Profile(1, 100.0), Profile(4, 100.0), Profile(1, 300.0))
    order = []
    for _ in range(3):
        number = _next(scheduler)
        assert number is not None
        order.append(number)
        _spend(scheduler, number, 1e-3)
    assert order == [1, 2, 0]


def test_batches_go_where_most_can_be_saved() -> None:
    # Task 1 runs at a tenth of task 0's rate, and as often.
    scheduler = _scheduler(1, 1)
    _spend(scheduler, 0, 1e-3)
    _spend(scheduler, 1, 1e-2)
    assert _next(scheduler) == 1
    assert _gain(scheduler, 1) > 10 * _gain(scheduler, 0)


def test_a_task_that_stands_still_loses_its_turn() -> None:
    scheduler = _scheduler(1, 1)
    _spend(scheduler, 0, 2e-3)
    _spend(scheduler, 1, 2.2e-3)
    before = _gain(scheduler, 1)
    for _ in range(6):
        _spend(scheduler, 1, 2.2e-3, 2.3e-3)
    assert _gain(scheduler, 1) < before / 10
    assert _next(scheduler) == 0


def test_an_improvement_renews_the_chance() -> None:
    scheduler = _scheduler(1, 1)
    _spend(scheduler, 0, 1e-3)
    for _ in range(4):
        _spend(scheduler, 1, 5e-3)
    before = _gain(scheduler, 1)
    _spend(scheduler, 1, 4e-3)
    assert _gain(scheduler, 1) > 1.2 * before


def test_times_close_together_promise_little() -> None:
    scheduler = _scheduler(Profile(1, 1e6, "a"), Profile(1, 1e6, "b"))
    _spend(scheduler, 0, *(1e-3 * (1 + 0.001 * i) for i in range(6)))
    _spend(scheduler, 1, *(1e-3 * (1 + 0.1 * i) for i in range(6)))
    assert _gain(scheduler, 1) > 3 * _gain(scheduler, 0)


def test_tasks_alike_tell_what_is_to_be_gained() -> None:
    profiles = [Profile(1, 1e6, kind) for kind in ("gemm", "gemm", "pool", "pool")]
    scheduler = _scheduler(*profiles)
    _spend(scheduler, 0, *(1e-3 * (1 + 0.2 * i) for i in range(6)))
    _spend(scheduler, 2, *(1e-3 * (1 + 0.001 * i) for i in range(6)))
    _spend(scheduler, 1, 1e-3)
    _spend(scheduler, 3, 1e-3)
    assert _gain(scheduler, 1) > 3 * _gain(scheduler, 3)


def test_the_same_code_again_is_no_news_but_a_trial() -> None:
    scheduler = _scheduler(1)
    scheduler.tasks[0].progress.seen([(1e-3, "a"), (1e-3, "a"), (2e-3, "b")])
    history = scheduler.tasks[0].progress.history
    assert history.trials == 3 and history.fastest == [1e-3, 2e-3]


def test_batches_on_their_way_lower_the_gain() -> None:
    scheduler = _scheduler(1, 1)
    _spend(scheduler, 0, 1e-3)
    _spend(scheduler, 1, 1e-3)
    first = _next(scheduler)
    assert first is not None
    scheduler.started(scheduler.tasks[first], 8)
    assert _next(scheduler) == 1 - first


def test_frequent_tasks_count_more() -> None:
    scheduler = _scheduler(1, 8)
    for number in (0, 1):
        _spend(scheduler, number, 1e-3)
    assert _next(scheduler) == 1


def test_exhausted_tasks_are_left_alone() -> None:
    scheduler = _scheduler(1, 1)
    scheduler.tasks[0].progress.exhausted = True
    assert _next(scheduler) == 1
    scheduler.tasks[1].progress.exhausted = True
    assert _next(scheduler) is None


@pytest.mark.parametrize(("best", "open_"), [(1.3e-3, True), (1.015e-3, False), (0.9e-3, False)])
def test_a_task_at_its_bound_gets_no_more(best: float, open_: bool) -> None:
    scheduler = _scheduler(Profile(1, 1e6, bound_seconds=1e-3))
    _spend(scheduler, 0, best)
    assert (_next(scheduler) == 0) is open_
    # Nor does the expectation exceed the machine's limit.
    assert _gain(scheduler, 0, 10_000) <= max(0.0, best - 1e-3)


def test_failures_alone_leave_a_task_in_the_race_for_a_while() -> None:
    scheduler = _scheduler(1, 1)
    _spend(scheduler, 0, None)
    _spend(scheduler, 1, 1e-3)
    assert scheduler.tasks[0].progress.best_seconds is None
    assert _gain(scheduler, 0) > 0
    _spend(scheduler, 0, *[None] * MOST_FAILURES)
    assert not scheduler.tasks[0].progress.open
    assert _next(scheduler) == 1


@pytest.mark.parametrize("failed", [0, 1, 3])
@pytest.mark.parametrize("away", [0, 1, 4])
def test_a_task_without_a_time_waits_for_its_trials_and_for_those_on_their_way(
    failed: int, away: int
) -> None:
    """Its estimated cost, 1 ms by the other's rate twice a run, over all trials so far and one."""
    scheduler = _scheduler(2, 1)
    _spend(scheduler, 1, 1e-3)
    if failed:
        _spend(scheduler, 0, *[None] * failed)
    if away:
        scheduler.started(scheduler.tasks[0], away)
    assert _gain(scheduler, 0) == pytest.approx(2e-3 / (1 + failed + away))


def test_one_that_worked_keeps_a_task_open() -> None:
    scheduler = _scheduler(1)
    _spend(scheduler, 0, 1e-3, *[None] * (2 * MOST_FAILURES))
    assert _next(scheduler) == 0
