"""Products of matrices in one instruction: where they are offered, and what schedules set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.devices.amx import amx_target, emulated_amx, has_amx
from tests.devices.packages import UnavailableError
from tests.graphs import Maker, random_inputs
from tests.kernels import WorkloadCode, as_workload, run_nest_code
from tests.nests.evaluate import pack_tensor, run_nest
from tests.nests.parse import parse_nest
from tests.nests.verify import verify_nest
from tests.unit.c_library.conftest import Loaded
from tests.unit.codegen.test_dot import BRAINS, narrow
from tests.unit.schedule.dynamic_nests import dynamic_workload
from tests.unit.schedule.problems import half_conv, half_matmul, int8_matmul, requantised
from tilewright.compiler.driver import load_program, make_plan
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Role
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space, untuned_schedules
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.targets.host import resolve_target

Types = tuple[DType, DType]
BYTES = (DType.UINT8, DType.INT8)
AMX = "sapphirerapids-amx"


def product(types: Types = BYTES, rows: int = 9, columns: int = 40, depth: int = 64) -> Workload:
    g = Maker()
    sums = DType.FLOAT32 if types[0].is_float else DType.INT32
    x = g.input("x", rows, depth, dtype=types[0])
    w = g.constant("w", narrow(types[1], depth, columns))
    g.types[w] = TensorType(types[1], (depth, columns))
    graph = g.graph(g("matmul", x, w, accumulator=sums.value))
    (kernel,) = make_plan(graph, Mode(resolve_target("neoverse-v1"))).kernels
    return kernel.workload


def offered(workload: Workload, name: str) -> set[object]:
    space = schedule_space(workload, Mode(resolve_target(name)))
    return {dict(point.choices).get("products") for point in space}


@pytest.mark.parametrize(
    ("workload", "name", "expected"),
    [
        (product(), "neoverse-v1", {"matrices", "groups"}),
        (product(BRAINS), "neoverse-v1", {"matrices", "groups"}),
        (product(), "neoverse-n1", {None}),
        (product(), "neoverse-v1-sve256", {None}),  # two rows are half a vector
        (product(), "znver4", {None}),
        (product(rows=1), "neoverse-v1", {None}),  # no row next to it
        (product(depth=4), "neoverse-v1", {None}),  # half a group
        (product((DType.INT8, DType.UINT8)), "neoverse-v1", {None}),  # the other way round
        (product(), AMX, {"tiles", "groups"}),
        (product(BRAINS), AMX, {"tiles", "groups"}),
        (product((DType.INT8, DType.INT8)), AMX, {"tiles", "groups"}),
        (product(), "sapphirerapids", {None}),
        (product(rows=1), AMX, {None}),
        (product(depth=148), AMX, {None}),  # 37 groups: rows of a matrix would hold but one
    ],
)
def test_where_matrices_are_multiplied(
    workload: Workload, name: str, expected: set[object]
) -> None:
    assert offered(workload, name) == expected


@pytest.mark.parametrize("types", [BYTES, BRAINS])
def test_matrices_are_the_default_and_take_two_rows(types: Types) -> None:
    workload, target = product(types), resolve_target("neoverse-v1")
    space = schedule_space(workload, Mode(target))
    schedule = space.default()
    assert schedule["products"] == "matrices" and schedule.integer("tile") % 2 == 0
    for point in space:
        assert dict(point.choices)["products"] == "groups" or point.integer("tile") % 2 == 0
    nest = lower_schedule(workload, schedule, Mode(target)).nest
    verify_nest(nest)
    assert parse_nest(print_nest(nest)) == nest
    (compute,) = nest.computes
    assert compute.group * types[0].bytes == 8


def test_matrices_need_their_instruction() -> None:
    workload = product()
    schedule = schedule_space(workload, Mode(resolve_target("neoverse-v1"))).default()
    with pytest.raises(ScheduleError, match="the target has no matrix instruction"):
        lower_schedule(workload, schedule, Mode(resolve_target("neoverse-n1")))
    plain = Schedule.of("gemm", **{**dict(schedule.choices), "products": "groups"})
    nest = lower_schedule(workload, plain, Mode(resolve_target("neoverse-v1"))).nest
    assert nest.computes[0].group == 4


@pytest.mark.parametrize("types", [BYTES, BRAINS])
@pytest.mark.parametrize(("rows", "depth"), [(9, 64), (100, 96), (128, 20)])
def test_registers_of_matrices_are_the_default_and_hold_the_tile(
    types: Types, rows: int, depth: int
) -> None:
    """Whole registers of rows, or all rows; as many as fit into eight registers; no other knob."""
    workload, target = product(types, rows, 80, depth), resolve_target(AMX)
    space = schedule_space(workload, Mode(target))
    assert space.default()["products"] == "tiles"
    tiled = [point for point in space if point["products"] == "tiles"]
    found = {(point.integer("tile"), point.integer("vectors")) for point in tiled}
    assert len(tiled) == len({(point["order"], *pair) for pair in found for point in tiled})
    for tile, vectors in found:
        assert tile % 16 == 0 or tile == rows
        high = -(-tile // 16)
        assert high * vectors + high + vectors <= 8
    assert rows < 32 or (32, 2) in found
    (compute,) = lower_schedule(workload, space.default(), Mode(target)).nest.computes
    assert compute.rows is not None and compute.group * types[0].bytes == 4
    (step,) = (tile.step for tile in compute.reduce)
    assert depth % step == 0 and 16 <= step * types[0].bytes <= 64


def test_registers_of_matrices_need_their_instruction() -> None:
    workload = product()
    schedule = schedule_space(workload, Mode(resolve_target(AMX))).default()
    with pytest.raises(ScheduleError, match="the target has no matrix registers"):
        lower_schedule(workload, schedule, Mode(resolve_target("sapphirerapids")))


def batched(types: Types, rows: int, columns: int, depth: int) -> Workload:
    """Both factors are known at run time only."""
    make = Maker()
    sums = "float32" if types == BRAINS else "int32"
    x = make.input("x", 2, rows, depth, dtype=types[0])
    y = make.input("y", 2, depth, columns, dtype=types[1])
    return as_workload(make.graph(make("matmul", x, y, accumulator=sums)))


WORKLOADS = {
    "bytes, rounded to bytes": int8_matmul(50, 70, 128),
    "bfloat16 behind a GELU": half_matmul(37, 40, 48),
    "two at a time": batched(BYTES, 20, 40, 64),
    "two of bfloat16": batched(BRAINS, 17, 24, 64),
    "an image with its neighbours": half_conv(16, 32, 8),
}


def _in_tiles(schedule: Schedule) -> bool:
    return dict(schedule.choices).get("products") == "tiles"


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_registers_of_matrices_are_the_default_of_workloads(workload: Workload) -> None:
    """For a CPU with AMX, which has vectors of 512 bits.

    The emulator's target has the host's vectors. If they have 256 bits, Winograd's algorithm is the
    default for an image.
    """
    assert _in_tiles(schedule_space(workload, Mode(resolve_target(AMX))).default())


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_workloads_in_registers_of_matrices(workload: Workload) -> None:
    """By the meaning of their nests, on threads that start and end anywhere."""
    random = np.random.default_rng(0)
    try:
        with emulated_amx():
            target = amx_target()
            space = schedule_space(workload, Mode(target))
            schedule = next(p for p in (space.default(), *space) if _in_tiles(p))
            nest = lower_schedule(workload, schedule, Mode(target)).nest
            verify_nest(nest)
            buffers = [
                pack_tensor(
                    t, to_memory(random.integers(0, 9, t.shape).astype(np.float32), t.dtype)
                )
                for t in nest.buffers
            ]
            given = [b for t, b in zip(nest.buffers, buffers, strict=True) if t.role in _GIVEN]
            found = run_nest_code(nest, target, *given, random=random)[-1].reshape(-1)
    except UnavailableError as error:
        pytest.skip(str(error))
    for written in buffers[len(given) :]:
        written[:] = 0
    run_nest(nest, buffers)
    dtype = nest.buffers[-1].dtype
    code, meaning = (from_memory(part, dtype).astype(np.float64) for part in (found, buffers[-1]))
    rounding = 2.0**-7 if dtype is DType.BFLOAT16 else 0.0
    np.testing.assert_allclose(code, meaning, rtol=rounding)


_GIVEN = (Role.INPUT, Role.WEIGHT)


def test_open_rows_in_registers_of_matrices() -> None:
    """One code for all sizes: full tiles, then halves of them, each with shapes of its own."""
    rows = Dimension("n", 1, 200)
    workload = dynamic_workload(rows_of_bytes, rows)
    random = np.random.default_rng(0)
    try:
        with emulated_amx():
            target = amx_target()
            schedule = next(iter(untuned_schedules(workload, Mode(target))))
            assert schedule["products"] == "tiles" and schedule.integer("tile") == 32
            with WorkloadCode(workload, schedule, target) as code:
                for n in (1, 31, 32, 75, 200):
                    sizes = {"n": n}
                    arrays = random_inputs(workload.at(sizes).graph, n)
                    (exact,) = run_graph(workload.at(sizes).graph, arrays)
                    given = [arrays[name] for name in workload.graph.inputs]
                    np.testing.assert_array_equal(code.run(given, random, sizes), exact)
    except UnavailableError as error:
        pytest.skip(str(error))


def rows_of_bytes(make: Maker, n: int) -> str:
    x, w = make.input("x", n, 96, dtype=DType.UINT8), make.input("w", 96, 64, dtype=DType.INT8)
    return make("matmul", x, w, accumulator="int32")


def two_layers(make: Maker) -> Graph:
    """Bytes by bytes, rounded to bytes, by bytes: the middle layers of a quantised model."""
    total = make("matmul", make.input("x", 70, 64, dtype=DType.UINT8), bytes_of(make, "v", 64, 96),
                 accumulator="int32")  # fmt: skip
    between = requantised(make, total)
    return make.graph(make("matmul", between, bytes_of(make, "w", 96, 40), accumulator="int32"))


def bytes_of(make: Maker, name: str, *shape: int) -> str:
    return make.constant(name, narrow(DType.INT8, *shape))


def test_a_program_in_registers_of_matrices(tmp_path: Path) -> None:
    """On two threads, and as a C library, which asks the system itself."""
    graph = two_layers(Maker())
    inputs = {"x": narrow(DType.UINT8, 70, 64)}
    (exact,) = run_graph(graph, inputs)
    try:
        with emulated_amx() as amx:
            target = amx_target()
            made = ProgramBuilder(None, Mode(target, 2)).build(
                make_plan(graph, Mode(target, in_place=False))
            )
            assert {s["products"] for s in made.schedules.values()} == {"tiles"}
            executed = amx.amx_executed()
            executable = load_program(made, 2)
            for _ in range(8):
                np.testing.assert_array_equal(executable.run(inputs)[0], exact)
            assert has_amx() or amx.amx_executed() > executed
            library = Loaded(made, tmp_path / "library")
            status, model = library.init(library.memory())
            outputs = library.outputs()
            assert (status, library.run(model, inputs, outputs)) == (0, (0, []))
            np.testing.assert_array_equal(outputs[0], exact)
    except UnavailableError as error:
        pytest.skip(str(error))
