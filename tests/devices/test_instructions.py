"""Instructions that this machine does not have, run under qemu: each against plain arithmetic."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.devices.conftest import ALL_MACHINES
from tests.devices.emulated_kernels import Array, Case, run_cases
from tests.devices.packages import UnavailableError
from tests.graphs import Maker
from tests.nests.evaluate import pack_tensor, run_nest
from tests.unit.codegen.rounded import bytes_nest, largest_nest, limits_nest
from tests.unit.codegen.test_arithmetic import elementwise
from tests.unit.codegen.test_dot import (
    BRAINS,
    MATRICES,
    SIGNS,
    SIZES,
    all_pairs,
    narrow,
    packed_product,
)
from tests.unit.codegen.test_waiting import depthwise
from tests.unit.schedule.problems import block_matmul, matmul
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.codegen.object import emit_assembly
from tilewright.compiler.driver import make_plan
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Const,
    Expr,
    Operation,
    Role,
    Tensor,
    op,
)
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Stage, Store, Tile
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space, untuned_schedule
from tilewright.compiler.targets.host import resolve_target

pytestmark = [pytest.mark.devices, pytest.mark.timeout(300)]

Types = tuple[DType, DType]

TARGETS = ("aarch64", "armv8.2-a", "armv8.6-a")
"""Without dot products and matrices; with dot products of equal signs; with all of them."""

DOT, MATRIX = 4, 8
"""Bytes that are multiplied at a time."""


def forms(types: Types) -> list[tuple[str, int]]:
    """Targets, and the groups in which they multiply these types."""
    matrix = [(TARGETS[-1], MATRIX)] if types in MATRICES else []
    return [(name, DOT) for name in TARGETS] + matrix


def case(name: str, nest: LoopNest, a: Array, b: Array) -> Case:
    return Case(nest, resolve_target(name), (a, pack_tensor(nest.buffers[1], b)))


def wide(types: Types, a: Array, b: Array) -> tuple[Array, Array]:
    """The factors in int64 or float64."""
    kind = np.float64 if types == BRAINS else np.int64
    x, y = (from_memory(part, t).astype(kind) for part, t in zip((a, b), types, strict=True))
    return x, y


def run(cases: list[Case], folder: Path, cpu: str = "max") -> list[Array]:
    """The matrices that they write, on a CPU with every extension that qemu has, or on this one."""
    try:
        found = run_cases(cases, cpu, folder)
    except UnavailableError as error:
        pytest.skip(str(error))
    return [part.reshape(c.nest.buffers[-1].shape) for part, c in zip(found, cases, strict=True)]


def product_graph(types: Types, rows: int, columns: int, depth: int) -> Graph:
    g = Maker()
    sums = DType.FLOAT32 if types == BRAINS else DType.INT32
    x = g.input("x", rows, depth, dtype=types[0])
    w = g.constant("w", narrow(types[1], depth, columns))
    g.types[w] = TensorType(types[1], (depth, columns))
    bias = g.input("b", columns, dtype=sums)
    return g.graph(g("add", g("matmul", x, w, accumulator=sums.value), bias))


def drawn(random: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Small whole numbers, as they lie."""
    return to_memory(random.integers(0, 9, shape).astype(np.float32), dtype)


@pytest.mark.parametrize("types", SIGNS)
def test_every_pair_of_bytes(types: Types, tmp_path: Path) -> None:
    """At every place of a group."""
    cases, expected = [], []
    for name, group in forms(types):
        a, b = (
            np.concatenate([part] * (group // 4), axis)
            for axis, part in zip((1, 0), all_pairs(types), strict=True)
        )
        nest = packed_product(types, 256, 256, group, 4, group, 4)
        cases.append(case(name, nest, a, b))
        x, y = wide(types, a, b)
        expected.append(x @ y)
    for found, exact in zip(run(cases, tmp_path), expected, strict=True):
        np.testing.assert_array_equal(found, exact)


def test_every_pair_of_bytes_on_risc_v(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Full vectors and groups, and partial ones."""
    if not pytestconfig.getoption(ALL_MACHINES, default=False):
        pytest.skip(f"the emulator is slow at vectors: {ALL_MACHINES}")
    target, cases, expected = resolve_target("riscv64"), [], []
    for types in SIGNS:
        some = [(narrow(types[0], m, k), narrow(types[1], k, n)) for m, n, k in SIZES]
        for a, b in (all_pairs(types), *some):
            nest = packed_product(types, len(a), b.shape[1], len(b), 4)
            cases.append(Case(nest, target, (a, pack_tensor(nest.buffers[1], b))))
            x, y = wide(types, a, b)
            expected.append(x @ y)
    for found, exact in zip(run(cases, tmp_path, "rv64,v=true,vlen=128"), expected, strict=True):
        np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("types", [*SIGNS, BRAINS])
def test_any_rows_columns_and_depth(types: Types, tmp_path: Path) -> None:
    """Rows without a neighbour, vectors and groups that are not full; small whole numbers."""
    cases, expected = [], []
    for rows, columns, depth in SIZES:
        a, b = narrow(types[0], rows, depth), narrow(types[1], depth, columns)
        x, y = wide(types, a, b)
        for name, group in forms(types):
            for tile in (3, 4):
                nest = packed_product(types, rows, columns, depth, 4, group, tile)
                cases.append(case(name, nest, a, b))
                expected.append(x @ y)
    for found, exact in zip(run(cases, tmp_path), expected, strict=True):
        np.testing.assert_array_equal(found, exact)


def test_every_finite_bfloat16(tmp_path: Path) -> None:
    """Within float32's rounding of the sums; the instructions treat subnormal numbers as zeros."""
    every = np.arange(1 << 16, dtype=np.uint16)
    numbers = from_memory(every, DType.BFLOAT16)
    every = every[np.isfinite(numbers) & (np.abs(numbers) >= 2.0**-126)]
    a = every[: every.size // 64 * 64].reshape(-1, 4)
    b = a[[7, 31, 3001, 8000]].T.copy()
    cases = [
        case(name, packed_product(BRAINS, len(a), 4, 4, 4, group, 4), a, b)
        for name, group in forms(BRAINS)
    ]
    x, y = wide(BRAINS, a, b)
    exact, size = x @ y, np.abs(x) @ np.abs(y)
    fits = size < 2.0**127
    for found in run(cases, tmp_path):
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(found - exact)
        assert (error <= 2.0**-22 * size + 2.0**-124)[fits].all()


@pytest.mark.parametrize("types", [(DType.INT8, DType.INT8), (DType.UINT8, DType.INT8), BRAINS])
def test_products_of_the_template(types: Types, tmp_path: Path) -> None:
    """By the meaning of their nests: rows and columns that no tile divides, with a bias."""
    target, random = resolve_target(TARGETS[-1]), np.random.default_rng(0)
    cases, expected = [], []
    for rows, columns, depth in [(6, 24, 32), (5, 21, 20), (2, 3, 9)]:
        graph = product_graph(types, rows, columns, depth)
        (workload,) = [kernel.workload for kernel in make_plan(graph, Mode(target)).kernels]
        schedule = schedule_space(workload, Mode(target)).default()
        assert schedule["products"] == "matrices"
        nest = lower_schedule(workload, schedule, Mode(target)).nest
        buffers = [
            pack_tensor(tensor, drawn(random, tensor.dtype, tensor.shape))
            for tensor in nest.buffers
        ]
        cases.append(Case(nest, target, tuple(buffers[:-1])))
        run_nest(nest, buffers)
        expected.append(buffers[-1])
    for found, meaning in zip(run(cases, tmp_path), expected, strict=True):
        np.testing.assert_array_equal(found.reshape(-1), meaning)


@pytest.mark.parametrize("name", TARGETS)
def test_weights_of_four_bits_by_bytes(name: str, tmp_path: Path) -> None:
    """By the meaning of the nest; if the instruction takes signed bytes only, one is enough."""
    target, random = resolve_target(name), np.random.default_rng(0)
    workload = block_matmul(3, 12, 64, 4, 32, zero=False, quantised=True)
    schedule = schedule_space(workload, Mode(target)).default()
    nest = lower_schedule(workload, schedule, Mode(target)).nest
    buffers = [
        pack_tensor(
            tensor,
            random.integers(-(2**31), 2**31, tensor.shape).astype(np.int32)
            if tensor.dtype is DType.INT32
            else random.integers(0, 2**32, tensor.shape).astype(np.uint32)
            if tensor.dtype is DType.UINT32
            else random.integers(1, 5, tensor.shape).astype(np.float32),
        )
        for tensor in nest.buffers
    ]
    (found,) = run([Case(nest, target, tuple(buffers[:-1]))], tmp_path)
    run_nest(nest, buffers)
    np.testing.assert_allclose(found.reshape(-1), buffers[-1], rtol=1e-6, atol=1e-1)
    assert str(~0x7F7F7F7F) not in lower_nest(nest, target)  # no eighth bits are looked at


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "constant"),
    [(7, 20, 13, True), (30, 33, 16, True), (12, 48, 40, False), (1, 64, 9, True)],
)
def test_lanes_of_vectors_are_factors(
    rows: int, columns: int, depth: int, constant: bool, tmp_path: Path
) -> None:
    """Tails of rows, columns and depth that are not multiples of four; by the meaning of the
    nest."""
    cases, expected = [], []
    random = np.random.default_rng(0)
    for name in (TARGETS[0], "cortex-a53"):
        target = resolve_target(name)
        workload = matmul(rows, columns, depth, constant=constant)
        lowered = lower_schedule(
            workload, schedule_space(workload, Mode(target)).default(), Mode(target)
        )
        buffers = [
            pack_tensor(t, random.standard_normal(t.shape).astype(np.float32))
            for t in lowered.nest.buffers
        ]
        cases.append(Case(lowered.nest, target, tuple(buffers[:-1])))
        run_nest(lowered.nest, buffers)
        expected.append(buffers[-1])
    for found, wanted in zip(run_cases(cases, "max", tmp_path), expected, strict=True):
        np.testing.assert_allclose(found, wanted.reshape(-1), rtol=1e-5, atol=1e-5)


def test_two_levels_of_strassen(tmp_path: Path) -> None:
    """Panels and sums with tails, factors of a tile's rows side by side, loads in pairs."""
    target, workload = resolve_target("neoverse-n1"), matmul(32, 56, 36)
    schedule = Schedule.of("strassen2", tile=8, vectors=3, unroll=4)
    nest = lower_schedule(workload, schedule, Mode(target)).nest
    random = np.random.default_rng(0)
    buffers = [
        pack_tensor(t, random.integers(-4, 5, t.shape).astype(np.float32)) for t in nest.buffers
    ]
    (found,) = run_cases([Case(nest, target, tuple(buffers[:-1]))], "neoverse-n1", tmp_path)
    run_nest(nest, buffers)
    np.testing.assert_array_equal(found, buffers[-1].reshape(-1))


@pytest.mark.parametrize("planar", [True, False])
def test_windows_of_every_element_and_of_every_second_one(planar: bool, tmp_path: Path) -> None:
    """Nothing beyond an input is read, and waiting results are stored at their places."""
    random, cases, expected = np.random.default_rng(0), [], []
    for name, stride in product(("neoverse-n1", "cortex-a53"), (1, 2)):
        target = resolve_target(name)
        workload = depthwise(stride, planar=planar, size=10)
        schedule = Schedule.of("window", order="greedy", taps="all", tile=5, rows=1 + (not planar))
        nest = lower_schedule(workload, schedule, Mode(target)).nest
        buffers = [
            pack_tensor(t, random.integers(-4, 5, t.shape).astype(np.float32)) for t in nest.buffers
        ]
        cases.append(Case(nest, target, tuple(buffers[:-1])))
        run_nest(nest, buffers)
        expected.append(buffers[-1].reshape(-1))
    for found, wanted in zip(run_cases(cases, "max", tmp_path), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


SSE2 = "qemu64,-pni,-ssse3,-sse4.1,-sse4.2,-sse4a,-popcnt,-cx16,-lahf_lm"
"""The instructions of every x86-64, and nothing else."""


def test_what_every_x86_computes(tmp_path: Path) -> None:
    """An instruction beyond SSE2 would end it: rounding, bytes by pairs of 16 bits, halves."""
    target, random = resolve_target("x86-64-v1"), np.random.default_rng(0)
    x = np.concatenate([[0.5, 1.5, -0.5, -3.0, 3e9, -np.inf], random.uniform(-9, 9, 58)])
    x = x.astype(np.float32)

    def functions(x: Expr) -> list[Expr]:
        rounded = [op(o, x) for o in (Operation.FLOOR, Operation.CEIL, Operation.RINT)]
        return [*rounded, maths.sin(x), Cast(Cast(x, DType.FLOAT16), DType.FLOAT32)]

    nests = [
        elementwise(4, x.size, [DType.FLOAT32], lambda x, n=number: [functions(x)[n]])[0]
        for number in range(len(functions(Const(0.0))))
    ]
    cases = [Case(nest, target, (x,)) for nest in nests]
    workload = matmul(3, 20, 9)
    nest = lower_schedule(workload, untuned_schedule(workload, Mode(target)), Mode(target)).nest
    drawn = [random.standard_normal(t.shape).astype(np.float32) for t in nest.buffers[:-1]]
    cases.append(Case(nest, target, tuple(map(pack_tensor, nest.buffers, drawn))))
    a, b = all_pairs(SIGNS[1])
    product = case(target.name, packed_product(SIGNS[1], 256, 256, 4, 4), a, b)
    *results, sums = run([*cases, product], tmp_path, SSE2)
    left, right = wide(SIGNS[1], a, b)
    np.testing.assert_array_equal(sums, left @ right)
    for found, each in zip(results, cases, strict=True):
        expected = np.zeros_like(found).reshape(-1)
        run_nest(each.nest, [*each.inputs, expected])
        np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-6, atol=1e-5)


def test_the_largest_of_any_floats(tmp_path: Path) -> None:
    """A NaN stays at any position; 0.0 is larger than -0.0, or equal to it."""
    nest, random = largest_nest(64, 4), np.random.default_rng(0)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, 1e-42]
    x = random.choice([*special, *random.standard_normal(40)], (8, 64)).astype(np.float32)
    (found,) = run_cases([Case(nest, resolve_target("aarch64"), (x,))], "max", tmp_path)
    np.testing.assert_array_equal(found, x.max(axis=0))


def test_bytes_and_limits_of_any_float(tmp_path: Path) -> None:
    """Ties, values that are too large, infinite or NaN, together and one by one."""
    random = np.random.default_rng(0)
    special = [0.5, 1.5, 254.5, 255.5, -0.5, -3.0, 256.0, 3e9, -3e9, np.inf, -np.inf, np.nan]
    x = np.concatenate([special, random.uniform(-9, 300, 132)]).astype(np.float32)
    nests = [bytes_nest(len(x), 4, 4), bytes_nest(len(x), 9, 4, 7), limits_nest(len(x), 4)]
    found = run_cases([Case(n, resolve_target("aarch64"), (x,)) for n in nests], "max", tmp_path)
    for nest, got in zip(nests, found, strict=True):
        buffers = [x, np.zeros(len(x), nest.buffers[1].dtype.numpy)]
        run_nest(nest, buffers)
        np.testing.assert_array_equal(got.reshape(-1), buffers[1])


def halves_nest(lanes: int = 8, count: int = 512) -> LoopNest:
    """y[i] = a[i] * b[i] + c[i] in float16."""
    i = Axis("i", count)
    a, b, c = (Tensor(name, (count,), DType.FLOAT16) for name in "abc")
    y = Tensor("y", (count,), DType.FLOAT16, role=Role.OUTPUT)
    compute = Compute(
        (Store(y[i], Accumulator(DType.FLOAT16)),),
        op(Operation.FMA, a[i], b[i], c[i]),
        unroll=(Tile(i, lanes),),
        vector=i,
    )
    return LoopNest("k", (a, b, c, y), (), (Stage("main", (For(i, lanes, (compute,)),)),))


def test_halves_are_multiplied_and_added_with_one_rounding(tmp_path: Path) -> None:
    nest, random = halves_nest(), np.random.default_rng(0)
    inputs = tuple(
        (random.integers(-2047, 2048, 512) * 2.0 ** random.integers(-12, -8, 512)).astype(
            np.float16
        )
        for _ in "abc"
    )
    a, b, c = (part.astype(np.float64) for part in inputs)  # which hold products and sums exactly
    (found,) = run([Case(nest, resolve_target("armv8.2-a"), inputs)], tmp_path)
    np.testing.assert_array_equal(found, (a * b + c).astype(np.float16))


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("armv8.2-a", r"fmla\tv\d+\.8h"),
        ("aarch64", r"fmla\tv\d+\.4s"),
        ("sapphirerapids", r"vfmadd\d+ph"),
        ("znver4", r"vfmadd\d+ps"),
    ],
)
def test_halves_are_fused_where_the_target_does_so(name: str, instruction: str) -> None:
    target = resolve_target(name)
    assembly = emit_assembly(lower_nest(halves_nest(), target), target)
    assert re.search(instruction, assembly)


@pytest.mark.parametrize(("types", "instruction"), MATRICES.items())
def test_matrices_are_multiplied_by_their_instruction(types: Types, instruction: str) -> None:
    """Check that the tests above really run these instructions."""
    target = resolve_target(TARGETS[-1])
    assembly = emit_assembly(lower_nest(packed_product(types, 5, 12, 32, 4, 8, 4), target), target)
    assert re.search(rf"\b{instruction}\b", assembly)
