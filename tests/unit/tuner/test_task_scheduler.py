"""Which task gets the next batch."""

from __future__ import annotations

from tuner.task_scheduler import TaskScheduler


def _spend(scheduler: TaskScheduler, number: int, best: float | None) -> None:
    scheduler.started(number)
    scheduler.finished(number, best)


def test_every_task_is_tried_first_the_heaviest_before_the_others() -> None:
    scheduler = TaskScheduler([1, 4, 1], [100.0, 100.0, 300.0])
    order = []
    for _ in range(3):
        number = scheduler.next()
        assert number is not None
        order.append(number)
        _spend(scheduler, number, 1e-3)
    assert order == [1, 2, 0]


def test_batches_go_where_most_can_be_saved() -> None:
    # Task 1 runs at a tenth of task 0's rate, and as often.
    scheduler = TaskScheduler([1, 1], [1e6, 1e6])
    _spend(scheduler, 0, 1e-3)
    _spend(scheduler, 1, 1e-2)
    assert scheduler.next() == 1
    assert scheduler.gain(1) > 10 * scheduler.gain(0)


def test_a_task_that_stands_still_loses_its_turn() -> None:
    scheduler = TaskScheduler([1, 1], [1e6, 1e6])
    _spend(scheduler, 0, 2e-3)
    _spend(scheduler, 1, 2.2e-3)
    before = scheduler.gain(1)
    for _ in range(6):
        _spend(scheduler, 1, 2.2e-3)
    assert scheduler.gain(1) < before / 10
    assert scheduler.next() == 0


def test_an_improvement_renews_the_chance() -> None:
    scheduler = TaskScheduler([1, 1], [1e6, 1e6])
    _spend(scheduler, 0, 1e-3)
    for _ in range(4):
        _spend(scheduler, 1, 5e-3)
    before = scheduler.gain(1)
    _spend(scheduler, 1, 4e-3)
    assert scheduler.tasks[1].stale_batches == 0
    assert scheduler.gain(1) > 2 * before


def test_batches_on_their_way_lower_the_gain() -> None:
    scheduler = TaskScheduler([1, 1], [1e6, 1e6])
    _spend(scheduler, 0, 1e-3)
    _spend(scheduler, 1, 1e-3)
    first = scheduler.next()
    assert first is not None
    scheduler.started(first)
    assert scheduler.next() == 1 - first


def test_frequent_tasks_count_more() -> None:
    scheduler = TaskScheduler([1, 8], [1e6, 1e6])
    for number in (0, 1):
        _spend(scheduler, number, 1e-3)
    assert scheduler.next() == 1


def test_exhausted_tasks_are_left_alone() -> None:
    scheduler = TaskScheduler([1, 1], [1.0, 1.0])
    scheduler.tasks[0].exhausted = True
    assert scheduler.next() == 1
    scheduler.tasks[1].exhausted = True
    assert scheduler.next() is None


def test_failures_alone_leave_a_task_in_the_race() -> None:
    scheduler = TaskScheduler([1, 1], [1e6, 1e6])
    _spend(scheduler, 0, None)
    _spend(scheduler, 1, 1e-3)
    assert scheduler.tasks[0].best_seconds is None
    assert scheduler.gain(0) > 0
