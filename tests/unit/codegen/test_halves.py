"""16-bit floats to float32 and back, by a target's instructions or by integer arithmetic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.kernels import HOST, run_nest_code
from tests.unit.codegen.test_arithmetic import elementwise
from tilewright.compiler.codegen import out_of_process
from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Operation,
    Role,
    Tensor,
    op,
)
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Stage, Store, Tile
from tilewright.compiler.targets.families import families
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import known_targets

Array = np.ndarray[Any, Any]

TYPES = {DType.FLOAT16: np.float16, DType.BFLOAT16: ml_dtypes.bfloat16}
ISAS = ("x86-64-v1", "x86-64-v3", "x86-64-v4", "znver4")
"""With instructions for neither type, for float16, and for both."""

EVERY = np.arange(1 << 16, dtype=np.uint16)


def numbers() -> Array:
    """float32 numbers at, near and between all numbers of both types; and of any magnitude."""
    exact = [EVERY.view(kind).astype(np.float32) for kind in TYPES.values()]
    bits = np.concatenate(exact).view(np.uint32)
    steps = [0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0x1FFF]
    random = np.random.default_rng(3).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    return np.concatenate([*(bits + np.uint32(step) for step in steps), random]).view(np.float32)


def converted(name: str, source: DType, to: DType, array: Array, *, vector: bool) -> Array:
    target = resolve_target(name)
    if not target.runs_on(HOST):
        pytest.skip(f"the host is no {name}")

    def make(x: Expr) -> list[Expr]:
        return [Cast(x, to)]

    lanes = target.lanes(DType.FLOAT32)
    nest, _, _ = elementwise(lanes, array.size, [source], make, vector=vector)
    (found,) = run_nest_code(nest, target, array)
    return found


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ISAS)
def test_every_half_is_widened_exactly(name: str, dtype: DType, vector: bool) -> None:
    found = converted(name, dtype, DType.FLOAT32, EVERY.view(dtype.numpy), vector=vector)
    expected = EVERY.view(TYPES[dtype]).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("to", [*TYPES, DType.FLOAT64])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ISAS)
def test_every_half_becomes_another_float(name: str, dtype: DType, to: DType, vector: bool) -> None:
    """float32 holds every half, so that only the conversion to the result rounds."""
    found = converted(name, dtype, to, EVERY.view(dtype.numpy), vector=vector)
    found = found.view(TYPES.get(to, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        halves = EVERY.view(TYPES[dtype]).astype(np.float32)
        expected = halves.astype(TYPES.get(to, np.float64))
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ISAS)
def test_numbers_are_rounded_half_to_even(name: str, dtype: DType, vector: bool) -> None:
    """Subnormal numbers and infinities too; x86's bfloat16 instruction flushes subnormal ones."""
    given = numbers()
    found = converted(name, DType.FLOAT32, dtype, given, vector=vector).view(TYPES[dtype])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = given.astype(TYPES[dtype])
    if dtype is DType.BFLOAT16 and resolve_target(name).has("avx512bf16"):
        tiny = np.abs(given) < np.finfo(np.float32).smallest_normal
        assert (found[tiny] == 0).all()
        found, expected = found[~tiny], expected[~tiny]
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
    is_number = ~np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(expected)[is_number])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", sorted(set(known_targets()) - {"wasm32"}))
def test_every_target_converts_halves(name: str, dtype: DType) -> None:
    """Every target converts halves without a call into a library and without a crash of LLVM; also
    the conversion of an integer."""
    target = resolve_target(name)

    def make(x: Expr, n: Expr) -> list[Expr]:
        return [Cast(Cast(x, DType.FLOAT32) * 0.5, dtype), Cast(n, dtype), Cast(x, DType.INT32)]

    for lanes, vector in ((target.lanes(DType.FLOAT32), True), (1, False)):
        nest, _, _ = elementwise(lanes, 3 * lanes + 1, [dtype, DType.INT32], make, vector=vector)
        assert out_of_process.emit_object(backend_of(target).lower(nest, target).text, target)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", [name for family in families() for name in family.baselines])
def test_numbers_of_outer_loops_are_chosen_inside(name: str, dtype: DType) -> None:
    """LLVM calls a library for a vector of bfloat16 that one block makes and another one reads."""
    target = known_targets()[name]
    lanes = target.lanes(DType.FLOAT32)
    x, a = Tensor("x", (3 * lanes,), DType.INT32), Tensor("a", (2,), dtype)
    i = Axis("i", 3 * lanes)
    y = Tensor("y", (i.extent,), dtype, role=Role.OUTPUT)

    def below(bound: int, first: Expr, second: Expr) -> Expr:
        limit = Const(bound, DType.INT32)
        return op(Operation.SELECT, op(Operation.LT, x[i], limit), first, second)

    magnitude = op(Operation.ABS, a[1])
    value = below(-9, op(Operation.NEG, a[0]), below(0, a[0], below(9, a[1], magnitude)))
    compute = Compute((Store(y[i], value),), value, unroll=(Tile(i, lanes),), vector=i)
    nest = LoopNest("f", (x, a, y), (), (Stage("main", (For(i, lanes, (compute,)),)),))
    text = backend_of(target).lower(nest, target).text
    assert out_of_process.emit_object(text, target)
    if target.runs_on(HOST):
        given = np.array([1.5, -2.0], np.float32).astype(TYPES[dtype])
        numbers = np.arange(-lanes, 2 * lanes, dtype=np.int32) * 4
        (found,) = run_nest_code(nest, target, numbers, given.view(dtype.numpy))
        expected = np.select([numbers < -9, numbers < 0, numbers < 9], [-1.5, 1.5, -2.0], 2.0)
        np.testing.assert_array_equal(found.view(TYPES[dtype]).astype(np.float64), expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", [name for family in families() for name in family.baselines])
def test_numbers_that_a_loop_carries(name: str, dtype: DType) -> None:
    """The largest numbers of columns, which pass from one block of LLVM to the next."""
    target = known_targets()[name]
    lanes = target.lanes(DType.FLOAT32)
    i, j = Axis("i", lanes), Axis("j", 9)
    x = Tensor("x", (j.extent, i.extent), dtype)
    y = Tensor("y", (i.extent,), dtype, role=Role.OUTPUT)
    compute = Compute(
        (Store(y[i], Accumulator(dtype)),), x[j, i], Combiner.MAX,
        reduce=(Tile(j),), unroll=(Tile(i, lanes),), vector=i,
    )  # fmt: skip
    nest = LoopNest("f", (x, y), (), (Stage("main", (For(i, lanes, (compute,)),)),))
    text = backend_of(target).lower(nest, target).text
    assert out_of_process.emit_object(text, target)
    if target.runs_on(HOST):
        given = np.random.default_rng(0).integers(-9, 9, x.shape).astype(TYPES[dtype])
        (found,) = run_nest_code(nest, target, given.view(dtype.numpy))
        np.testing.assert_array_equal(
            found.view(TYPES[dtype]).astype(np.float64), given.astype(np.float64).max(0)
        )
