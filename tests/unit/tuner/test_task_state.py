"""A task's state of its measurements: the times that count, and the times that models learn
from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tuner.fakes import World
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.cost_model import make_cost_model
from tilewright.tuner.measure.speed import Speed
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, Trial
from tilewright.tuner.task_state import TaskState

STEADY = Speed(1.0, 1.0)
DISTURBED = Speed(2.0, 1.0, arithmetic_ratio=2.0)


@pytest.fixture
def state(world: World) -> TaskState:
    options = TuneOptions(codegen_version="1")
    return TaskState.start(world.tasks[0], make_cost_model("none", 0), options)  # type: ignore[arg-type]


def take(state: TaskState, schedule: Schedule, seconds: float, speed: Speed) -> None:
    measured = Measurement(Status.OK, samples_seconds=(seconds,), speed=speed)
    name = state.new_trial_id(schedule, Phase.SCREEN)
    state.take([Trial(name, state.task.key, schedule, measured, codegen_version="1")])


@pytest.mark.parametrize("first", [STEADY, DISTURBED])
def test_what_a_disturbed_device_said_gives_way_whoever_came_first(
    state: TaskState, first: Speed
) -> None:
    """Also if it was faster: a disturbed machine may have another clock rate, too."""
    schedule = state.task.space.default()
    times = {STEADY: 2e-5, DISTURBED: 1e-5}
    for speed in sorted(times, key=lambda speed: speed is not first):
        take(state, schedule, times[speed], speed)
    assert state.best_seconds == state.default_seconds == times[STEADY]
    take(state, schedule, 1.5e-5, STEADY)
    assert state.best_seconds == 1.5e-5, "of its own kind the fastest"


def test_no_model_learns_from_a_disturbed_device(state: TaskState, gemm: Any) -> None:
    steady, disturbed = [s for s in gemm.space.points if state.features.row(s) is not None][:2]
    take(state, steady, 1e-5, STEADY)
    take(state, disturbed, 2e-5, DISTURBED)
    assert [sample.run_seconds for sample in state.samples()] == [1e-5]
    assert set(state.measured) == {steady, disturbed}, "it is known all the same"
