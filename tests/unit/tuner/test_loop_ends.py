"""What ends the tune loop before its trials are spent: cancellation, time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.tuner.fakes import Clock, World
from tuner.events import Event, Progress
from tuner.measure.measurement import (
    Phase,
    Status,
)

pytestmark = pytest.mark.filterwarnings("error")


def test_a_cancelled_run_ends_soon_and_keeps_its_best(world: World) -> None:
    def on_event(event: Event) -> None:
        world.events.append(event)
        if isinstance(event, Progress) and event.trials_done >= 24:
            world.token.cancel("no longer wanted")

    world.events = _Listener(on_event)  # type: ignore[assignment]
    finished = world.tune(trials=4000)
    assert finished.cancelled and finished.reason == "no longer wanted"
    assert finished.trials_done < 100
    assert all(finished.records)
    assert {t.measurement.status for t in world.trials()} == {Status.OK}
    assert not world.queue.waiting


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
    world.clock = Clock(step=0.01)
    finished = world.tune(trials=100_000, seconds=3.0)
    assert finished.trials_done < 2 * 300
    assert all(finished.records)
    assert world.trials(Phase.FINAL)


def test_a_stuck_device_does_not_outlast_the_time_budget(world: World) -> None:
    world.clock = Clock(step=0.01)
    world.queue.stuck = True
    finished = world.tune(trials=100, seconds=1.0)
    assert finished.trials_done == 0 and finished.records == (None, None)
