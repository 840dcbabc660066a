"""The recorder of stages, with a clock that the test moves."""

from __future__ import annotations

import threading

import pytest

from tilewright.compiler.timings import StageTime, Timings, timed


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_stages_add_up_in_the_order_in_which_they_first_ended() -> None:
    clock = Clock()
    timings = Timings(clock)
    for stage, seconds in (("lower", 1.0), ("codegen", 2.0), ("lower", 4.0)):
        with timed(timings, stage):
            clock.now += seconds
    timings.add("codegen", 16.0, 5)
    assert timings.stages == (StageTime("lower", 5.0, 2), StageTime("codegen", 18.0, 6))


def test_the_time_of_a_stage_within_another_counts_once() -> None:
    clock = Clock()
    timings = Timings(clock)
    with timed(timings, "propose"):
        clock.now += 1.0
        for _ in range(2):
            with timed(timings, "features"):
                clock.now += 2.0
                with timed(timings, "lower"):
                    clock.now += 4.0
        clock.now += 8.0
    assert timings.stages == (
        StageTime("lower", 8.0, 2),
        StageTime("features", 4.0, 2),
        StageTime("propose", 9.0, 1),
    )


def test_a_stage_that_fails_is_counted_and_fails() -> None:
    clock = Clock()
    timings = Timings(clock)
    with pytest.raises(KeyError), timed(timings, "import"):
        clock.now += 3.0
        raise KeyError
    assert timings.stages == (StageTime("import", 3.0, 1),)


def test_without_a_recorder_nothing_is_counted() -> None:
    with timed(None, "import"):
        pass


def test_a_thread_within_a_stage_of_another_takes_nothing_from_it() -> None:
    clock = Clock()
    timings = Timings(clock)

    def beside() -> None:
        with timed(timings, "codegen"):
            clock.now += 2.0

    with timed(timings, "lower"):
        clock.now += 1.0
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        with timed(timings, "emit"):
            clock.now += 4.0
    assert timings.stages == (
        StageTime("codegen", 2.0, 1),
        StageTime("emit", 4.0, 1),
        StageTime("lower", 3.0, 1),
    )
