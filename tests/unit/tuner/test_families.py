"""Tasks of one family, whose workloads differ only in numbers: one is searched for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker
from tests.unit.tuner.fakes import Killed, World
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload, make_workload
from tilewright.compiler.targets.host import resolve_target
from tilewright.tuner.events import Recorded
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, TuningRecord
from tilewright.tuner.recording import inputs_from_json, inputs_to_json
from tilewright.tuner.tasks import make_task


@pytest.fixture
def family(world: World) -> World:
    """One single task, and three of one family, of which the second occurs most often."""
    alone, first = world.tasks
    counts = {"layer 1": 1, "layer 2": 3, "layer 3": 2}
    layers = [replace(first, name=n, count=c, alike="layer") for n, c in counts.items()]
    world.tasks = [replace(alone, name="alone"), *layers]
    return world


def screened(world: World) -> set[str]:
    return {t.key.workload_key for t in world.trials()}


def compared(world: World, name: str) -> list[Any]:
    task = next(each for each in world.tasks if each.name == name)
    return [t.schedule for t in world.store.trials(task.key) if t.phase is Phase.FINAL]


def scaled(numbers: Sequence[float]) -> Workload:
    """A product that is scaled and clipped by these numbers."""
    g = Maker()
    x = g.input("x", 64, 64)
    y = g("matmul", x, g.weight("w", 64, 64))
    for number in numbers:
        y = g("mul", y, g.constant(f"c{number}", np.float32(number)))
    graph: Graph = g.graph(y)
    return make_workload(graph, [node.name for node in graph.nodes])


def test_workloads_that_differ_in_numbers_are_of_one_family_and_have_keys_of_their_own() -> None:
    one, other, more = scaled([0.5]), scaled([0.25]), scaled([0.5, 0.25])
    assert one.key != other.key and one.family == other.family
    assert more.family != one.family
    target = resolve_target("x86-64-v4")
    assert make_task(one, Mode(target)).family == make_task(other, Mode(target)).family
    assert make_task(one, Mode(target)).family != make_task(other, Mode(target, 2)).family
    assert make_task(one, Mode(target)).family != make_task(more, Mode(target)).family


def test_one_task_is_searched_and_all_have_records_of_their_own(family: World, gemm: Any) -> None:
    finished = family.tune(trials=40)
    assert screened(family) == {"alone", "layer 2"}, "the one that the model runs most often"
    best = family.store.best_record(family.tasks[2].key)
    default = gemm.space.default()
    assert best is not None and best.schedule != default
    for task, snapshot in zip(family.tasks, finished.tasks, strict=True):
        record = family.store.best_record(task.key)
        assert record is not None and record.key == task.key
        assert record.measurement.certified
        assert snapshot.count == task.count
        if task.name in ("layer 1", "layer 3"):
            assert record.schedule == best.schedule
            assert set(compared(family, task.name)) == {default, best.schedule}
            assert (snapshot.trials, snapshot.relative) == (0, "layer 2")
            assert snapshot.default_seconds == gemm.seconds(default)
        else:
            assert snapshot.relative == ""
    again = family.tune(trials=40)
    assert again.trials_done == 0 and all(task.from_store for task in again.tasks)


def test_the_searched_one_counts_for_all(family: World, gemm: Any) -> None:
    """All times are equal, so that most trials go to the tasks with the most runs."""
    family.tasks[0] = replace(family.tasks[0], count=4)
    family.tune(trials=40)
    names = [t.key.workload_key for t in family.trials()]
    assert names.count("layer 2") > names.count("alone") > 0


def test_relatives_are_compared_after_the_record_and_told_as_it_before(family: World) -> None:
    family.tune(trials=40)
    recorded = [e.task.name for e in family.events if isinstance(e, Recorded)]
    assert recorded.index("layer 2") < min(recorded.index("layer 1"), recorded.index("layer 3"))
    told = family.events[0]
    assert [task.relative for task in told.tasks] == ["", "layer 2", "", "layer 2"]  # type: ignore[union-attr]
    # before they are compared, the time of the model is the sum over all
    assert getattr(family.events[3], "model_seconds", None) is not None


def test_a_relative_for_which_nothing_works_has_no_record(family: World) -> None:
    family.queue.broken = {"layer 3"}
    finished = family.tune(trials=40)
    assert [record is not None for record in finished.records] == [True, True, True, False]


def test_a_known_relative_is_searched_no_more(family: World) -> None:
    family.tune(trials=40)
    known = family.store.best_record(family.tasks[2].key)
    later = replace(family.tasks[1], name="layer 4")
    family.tasks.append(later)
    before = len(family.trials())
    finished = family.tune(trials=40)
    assert len(family.trials()) == before and finished.trials_done == 0
    record = family.store.best_record(later.key)
    assert record is not None and known is not None and record.schedule == known.schedule


def test_a_record_of_another_model_takes_the_place_of_a_search(family: World, gemm: Any) -> None:
    best = min(gemm.space.points, key=gemm.seconds)
    key = replace(family.tasks[1].key, workload_key="elsewhere")
    measured = Measurement(Status.OK, samples_seconds=(1.0,), checks=3)
    known = TuningRecord(key, best, measured, "t", "1")
    relatives = {task.key: known for task in family.tasks[1:]}
    finished = family.tune(trials=16, relatives=relatives)
    assert screened(family) == {"alone"}
    for task, snapshot in zip(family.tasks[1:], finished.tasks[1:], strict=True):
        record = family.store.best_record(task.key)
        assert record is not None and record.schedule == best
        assert record.run_seconds == gemm.seconds(best), "its own time, not the relative's"
        assert snapshot.relative == "elsewhere"
    started = family.events[0]
    for inputs in started.inputs:  # type: ignore[union-attr]
        assert inputs_from_json(inputs_to_json(inputs)) == inputs


@pytest.mark.parametrize("poll", (2, 5, 8, 9, 10))
def test_a_killed_run_goes_on_with_the_same_task(family: World, poll: int) -> None:
    options: dict[str, Any] = {"trials": 40, "batch_size": 4, "job_id": "job"}
    family.queue.kill_at = poll
    with pytest.raises(Killed):
        family.tune(**options)
    finished = family.tune(**options)
    assert all(finished.records) and len(family.trials()) == 40
    assert screened(family) == {"alone", "layer 2"}


def test_a_cancelled_search_leaves_no_record_to_its_relatives(family: World) -> None:
    family.token.cancel("enough")
    assert not any(family.tune(trials=40).records)
    assert not family.queue.submitted


def test_where_nothing_works_relatives_are_tried_by_themselves(family: World, gemm: Any) -> None:
    """The fault may depend on the numbers of the searched task."""
    default = gemm.space.default()
    family.tasks = family.tasks[1:]
    family.queue.broken = {"layer 2"}
    finished = family.tune(trials=16)
    found = [record and record.schedule for record in finished.records]
    assert found == [default, None, default]
