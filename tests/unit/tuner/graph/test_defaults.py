"""Untuned defaults are measured once each, as trials of the job."""

from __future__ import annotations

from typing import Any

import pytest

from compiler.schedule.schedule import Schedule
from tests.unit.tuner.fakes import FakeReferences, World
from tuner.graph.defaults import Defaults
from tuner.measure.measurement import Phase, Status
from tuner.options import TuneOptions

pytestmark = pytest.mark.filterwarnings("error")


def defaults(world: World) -> Defaults:
    return Defaults(
        world.builder,
        world.queue,
        world.store,
        TuneOptions(trials=48, job_id="job", codegen_version="1"),
        FakeReferences(),  # type: ignore[arg-type]
        lambda objects: b"".join(objects),
    )


def test_each_default_is_a_trial_that_the_job_starts_from(world: World, gemm: Any) -> None:
    assert defaults(world).measure(world.tasks, lambda: False) == 2  # type: ignore[arg-type]
    (first, second) = world.trials()
    assert {first.schedule, second.schedule} == {gemm.space.default()}
    assert (first.job_id, first.codegen_version, first.origin) == ("job", "1", "default")
    assert first.measurement.run_seconds == gemm.seconds(gemm.space.default())
    assert len(world.queue.acknowledged) == 2
    finished = world.tune(trials=10, job_id="job")
    assert finished.trials_done == len(world.trials()) == 10  # these two among them
    assert sum(t.schedule == gemm.space.default() for t in world.trials(Phase.SCREEN)) == 2


def test_a_default_that_fails_is_a_trial_too(world: World) -> None:
    world.builder.refuses = lambda schedule: True
    assert defaults(world).measure(world.tasks, lambda: False) == 2  # type: ignore[arg-type]
    assert {t.measurement.status for t in world.trials()} == {Status.BUILD_ERROR}
    assert {t.measurement.error for t in world.trials()} == {"refused"}


def test_it_stops_when_it_is_told_to(world: World) -> None:
    world.queue.stuck = True
    looks = iter([False, False, False, True, True, True, True])
    assert defaults(world).measure(world.tasks, lambda: next(looks)) == 0  # type: ignore[arg-type]
    assert not world.trials()


def test_code_that_is_refused_for_spilling_is_measured_all_the_same(world: World) -> None:
    def spills(schedule: Schedule) -> bool:
        return True

    world.builder.spills = spills
    assert defaults(world).measure(world.tasks, lambda: False) == 2  # type: ignore[arg-type]
    assert all(t.measurement.ok for t in world.trials())
