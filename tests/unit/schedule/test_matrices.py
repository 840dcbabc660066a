"""Products of matrices in one instruction: where they are offered, and what schedules ask."""

from __future__ import annotations

import pytest

from compiler.driver import make_plan
from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.graph.types import TensorType
from compiler.loops.text import parse_nest, print_nest
from compiler.loops.verify import verify_nest
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import lower_schedule, schedule_space
from compiler.target import resolve_target
from compiler.workload import Workload
from tests.graphs import Maker
from tests.unit.codegen.test_dot import BRAINS, narrow

Types = tuple[DType, DType]
BYTES = (DType.UINT8, DType.INT8)


def product(types: Types = BYTES, rows: int = 9, columns: int = 40, depth: int = 64) -> Workload:
    g = Maker()
    sums = DType.FLOAT32 if types[0].is_float else DType.INT32
    x = g.input("x", rows, depth, dtype=types[0])
    w = g.constant("w", narrow(types[1], depth, columns))
    g.types[w] = TensorType(types[1], (depth, columns))
    graph = g.graph(g("matmul", x, w, accumulator=sums.value))
    (kernel,) = make_plan(graph, resolve_target("neoverse-v1")).kernels
    return kernel.workload


def offered(workload: Workload, name: str) -> set[object]:
    space = schedule_space(workload, resolve_target(name))
    return {dict(point.choices).get("products") for point in space}


@pytest.mark.parametrize(
    ("workload", "name", "expected"),
    [
        (product(), "neoverse-v1", {"matrices", "groups"}),
        (product(BRAINS), "neoverse-v1", {"matrices", "groups"}),
        (product(), "neoverse-n1", {None}),
        (product(), "znver4", {None}),
        (product(rows=1), "neoverse-v1", {None}),  # no row beside it
        (product(depth=4), "neoverse-v1", {None}),  # half a group
        (product((DType.INT8, DType.UINT8)), "neoverse-v1", {None}),  # the other way round
    ],
)
def test_where_matrices_are_multiplied(
    workload: Workload, name: str, expected: set[object]
) -> None:
    assert offered(workload, name) == expected


@pytest.mark.parametrize("types", [BYTES, BRAINS])
def test_matrices_are_the_default_and_take_two_rows(types: Types) -> None:
    workload, target = product(types), resolve_target("neoverse-v1")
    space = schedule_space(workload, target)
    schedule = space.default()
    assert schedule["products"] == "matrices" and schedule.integer("tile") % 2 == 0
    for point in space:
        assert dict(point.choices)["products"] == "groups" or point.integer("tile") % 2 == 0
    nest = lower_schedule(workload, schedule, target).nest
    verify_nest(nest)
    assert parse_nest(print_nest(nest)) == nest
    (compute,) = nest.computes
    assert compute.group * types[0].bytes == 8


def test_matrices_need_their_instruction() -> None:
    workload = product()
    schedule = schedule_space(workload, resolve_target("neoverse-v1")).default()
    with pytest.raises(ScheduleError, match="the target multiplies no matrices"):
        lower_schedule(workload, schedule, resolve_target("neoverse-n1"))
    plain = Schedule.of("gemm", **{**dict(schedule.choices), "products": "groups"})
    nest = lower_schedule(workload, plain, resolve_target("neoverse-v1")).nest
    assert nest.computes[0].group == 4
