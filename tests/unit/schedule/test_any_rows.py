"""Kernels of a product of weights whose number of rows changes between uses."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tests.kernels import HOST, run_workload
from tests.unit.schedule.problems import conv, matmul
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.compiler.schedule import select
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space, untuned_schedule, untuned_schedules
from tilewright.compiler.schedule.space import SubSpace
from tilewright.compiler.sizes import Dimension, dynamic_size
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

TARGET = resolve_target("x86-64-v4")
ROWS = range(2, 120)

# Sums of 96 float32 products and gelu's polynomial, relative to the largest element.
ROUNDING = 1e-5


def of_any_rows(workload: Workload, target: Target = TARGET, threads: int = 1) -> Schedule:
    return next(untuned_schedules(workload, Mode(target, threads), any_rows=True))


def test_tiles_and_weights_do_not_depend_on_the_rows() -> None:
    (schedule,) = {of_any_rows(matmul(rows, 2304, 768)) for rows in ROWS}
    packed = {
        buffer.layout
        for rows in (2, 9, 77)
        for buffer in lower_workload(matmul(rows, 2304, 768), schedule, Mode(TARGET)).spec.buffers
        if buffer.role is BufferRole.WEIGHT and len(buffer.shape) == 2
    }
    assert len(packed) == 1


def test_code_depends_on_the_rows_that_are_left_over_alone() -> None:
    digests = defaultdict(set)
    for rows in ROWS:
        workload = matmul(rows, 96, 64)
        schedule = of_any_rows(workload)
        tile = schedule.integer("tile")
        digest = lower_workload(workload, schedule, Mode(TARGET)).digest
        digests[rows % tile, min(rows // tile, 2)].add(digest)
    assert all(len(equal) == 1 for equal in digests.values())
    assert len(set.union(*digests.values())) == len(digests)


@pytest.mark.parametrize("rows", [2, 9, 13, 18, 31])
def test_every_row_is_computed(rows: int) -> None:
    workload = matmul(rows, 70, 96)
    graph, rng = workload.graph, np.random.default_rng(rows)
    arrays = tuple(
        rng.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs
    )
    (expected,) = run_graph(graph, dict(zip(graph.inputs, arrays, strict=True)), float64=True)
    got = run_workload(workload, of_any_rows(workload, HOST), HOST, arrays, rng)
    np.testing.assert_allclose(got, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


def test_threads_share_panels_where_the_rows_are_few() -> None:
    few, many = matmul(8, 2304, 768), matmul(256, 2304, 768)
    orders = [of_any_rows(w, threads=4)["order"] for w in (few, many)]
    assert orders == ["lanes-outer", "lanes-inner"]


def test_the_space_of_open_rows_starts_from_what_serves_them() -> None:
    workload = matmul(dynamic_size(Dimension("s0", 1, 512)), 96, 64)
    space = schedule_space(workload, Mode(TARGET))
    default = space.default()
    assert default == untuned_schedule(workload, Mode(TARGET))
    assert default in space and default in space.points
    knobs = {knob.name: knob.values for knob in space.subspaces[0].knobs}
    assert all(value in knobs[name] for name, value in default.choices), "a search turns them"
    assert list(knobs["tile"]) == sorted(knobs["tile"])
    typical = schedule_space(workload.typical(), Mode(TARGET))
    products = [point for point in typical.points if point.algorithm == default.algorithm]
    assert set(products) <= set(space.points)
    assert "strassen" in {each.algorithm for each in typical.subspaces}
    for each in space.subspaces:  # Strassen's algorithm needs the parity of the rows
        lower_workload(workload, each.default, Mode(TARGET))
    other = typical.starting_with(Schedule.of("another", a=1))
    assert other.default() == Schedule.of("another", a=1) in other.points
    assert set(typical.points) <= set(other.points)


def test_open_rows_start_unsplit_where_more_of_them_could_be_split() -> None:
    mode = Mode(resolve_target("icelake-server"), threads=4)
    workload = matmul(dynamic_size(Dimension("s0", 2, 16)), 256, 1024)
    untuned = untuned_schedule(workload, mode)
    space = schedule_space(workload, mode)
    default = space.default()
    assert dict(default.choices) == {**dict(untuned.choices), "split": 1}
    assert default in space.points
    codes = {lower_workload(workload, e, Mode(mode.target, 4)).digest for e in (untuned, default)}
    assert len(codes) == 1


def test_other_workloads_keep_their_defaults() -> None:
    for workload in (conv(16), matmul(1, 96, 64), matmul(16, 96, 64, 4, constant=False)):
        assert of_any_rows(workload) == schedule_space(workload, Mode(TARGET)).default()


def test_templates_that_are_not_asked_for_make_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is liked most serves all rows: the others need no default."""
    asked: list[object] = []
    original = select._space

    def counted(template: Any, *arguments: Any) -> SubSpace | None:
        asked.append(template)
        return original(template, *arguments)

    monkeypatch.setattr(select, "_space", counted)
    tried = untuned_schedules(matmul(dynamic_size(Dimension("s0", 1, 512)), 96, 64), Mode(TARGET))
    assert next(tried).algorithm == "gemm"
    few = len(asked)
    everything = list(tried)
    assert few < len(asked) == len(set(asked)) and len(everything) > 1
