"""Schedules that are known beforehand are measured once each, as trials of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.tuner.fakes import FakeReferences, FakeTask, World
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.fixed_trials import AHEAD, WAITING, FixedTrials, Wanted
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.batches import MeasureResult
from tilewright.tuner.protocol.measurement import Phase, Status, Trial

pytestmark = pytest.mark.filterwarnings("error")


def fixed(world: World) -> FixedTrials:
    return FixedTrials(
        world.builder,
        world.queue,
        world.store,
        TuneOptions(trials=48, job_id="job", codegen_version="1"),
        FakeReferences(),  # type: ignore[arg-type]
        lambda objects: b"".join(objects),
    )


def measure(
    world: World, tasks: Iterable[FakeTask], stopped: Callable[[], bool] = lambda: False
) -> list[Trial]:
    """The defaults of tasks."""
    wanted = (
        Wanted(task, (task.space.default(),), Phase.SCREEN, "default")  # type: ignore[arg-type]
        for task in tasks
    )
    return fixed(world).measure(wanted, stopped)


def test_each_default_is_a_trial_that_the_job_starts_from(world: World, gemm: Any) -> None:
    assert len(measure(world, world.tasks)) == 2
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
    assert len(measure(world, world.tasks)) == 2
    assert {t.measurement.status for t in world.trials()} == {Status.BUILD_ERROR}
    assert {t.measurement.error for t in world.trials()} == {"refused"}


def test_the_device_has_several_in_hand_and_tasks_are_made_meanwhile(world: World) -> None:
    """Nothing that is measured hangs on a result."""
    world.tasks = [replace(world.tasks[0], name=f"task {n}") for n in range(40)]
    made: list[int] = []
    in_hand: list[int] = []
    poll = world.queue.poll

    def looking(timeout_seconds: float) -> list[MeasureResult]:
        in_hand.append(len(world.queue.waiting))
        if len(in_hand) == 1:
            assert len(made) < len(world.tasks), "all tasks were made before the first was measured"
        return poll(timeout_seconds)

    def tasks() -> Iterator[FakeTask]:
        for number, task in enumerate(world.tasks):
            made.append(number)
            yield task

    world.queue.poll = looking  # type: ignore[method-assign]
    assert len(measure(world, tasks())) == 40
    assert max(in_hand) == world.queue.capacity + WAITING
    assert len(world.trials()) == len(world.queue.acknowledged) == 40


def test_a_task_that_cannot_be_made_leaves_nothing_under_way(world: World) -> None:
    def tasks() -> Iterator[FakeTask]:
        for number in range(AHEAD + 2):
            yield replace(world.tasks[0], name=f"task {number}")
        raise CompilerError("no template takes it")

    with pytest.raises(CompilerError, match="no template takes it"):
        measure(world, tasks())
    assert world.queue.submitted and not world.queue.waiting and not world.queue.results


def test_it_stops_when_it_is_told_to(world: World) -> None:
    world.queue.stuck = True
    looks = iter([False, False, False, True, True, True, True])
    assert len(measure(world, world.tasks, lambda: next(looks))) == 0
    assert not world.trials()


def test_code_that_is_refused_for_spilling_is_measured_all_the_same(world: World) -> None:
    def spills(schedule: Schedule) -> bool:
        return True

    world.builder.spills = spills
    assert len(measure(world, world.tasks)) == 2
    assert all(t.measurement.ok for t in world.trials())


def test_two_schedules_are_compared_in_one_request_with_the_first(world: World, gemm: Any) -> None:
    default = gemm.space.default()
    other = next(s for s in gemm.space if s != default)
    wanted = Wanted(world.tasks[0], (default, other), Phase.CONFIRM, "confirm")  # type: ignore[arg-type]
    trials = fixed(world).measure([wanted], lambda: False)
    (request,) = world.queue.submitted
    assert [t.schedule for t in trials] == [default, other]
    assert request.incumbent == trials[0].id and request.phase is Phase.CONFIRM
    assert len(world.trials(Phase.CONFIRM)) == 2


def test_a_default_beside_two_schedules_is_two_trials(world: World, gemm: Any) -> None:
    default, *others = (gemm.space.default(), *[s for s in gemm.space if s != gemm.space.default()])
    wanted = [
        Wanted(world.tasks[0], (default, other), Phase.CONFIRM, "confirm", name)  # type: ignore[arg-type]
        for name, other in zip("ab", others, strict=False)
    ]
    assert len(fixed(world).measure(wanted, lambda: False)) == 4
    assert sum(t.schedule == default for t in world.trials(Phase.CONFIRM)) == 2


def test_one_of_two_that_does_not_build_leaves_the_other(world: World, gemm: Any) -> None:
    default = gemm.space.default()
    other = next(s for s in gemm.space if s != default)
    world.builder.refuses = lambda schedule: schedule == other
    wanted = Wanted(world.tasks[0], (default, other), Phase.CONFIRM, "confirm")  # type: ignore[arg-type]
    trials = fixed(world).measure([wanted], lambda: False)
    found = {t.schedule: t.measurement.status for t in trials}
    assert found == {default: Status.OK, other: Status.BUILD_ERROR}
