"""Generated code computes the meaning of its loop nest: kernels are compared with `run_nest`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.nests.evaluate import pack_tensor, run_nest, unpack_tensor
from tests.unit.loops import nests
from tilewright.compiler.codegen.cpu.lower import (
    lower_nest,
    scratch_layout,
    stage_extent,
    stage_symbol,
)
from tilewright.compiler.codegen.object import emit_object, load_objects
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Expr, Operation, Role, Tensor, op
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Stage, Store, Tile
from tilewright.compiler.loops.semantics import evaluate_expression
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

Array = np.ndarray[Any, Any]

HOST = resolve_target("host")
WIDTHS = [bits for bits in (128, 256, 512) if bits <= HOST.vector_bits]
FUNCTIONS = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1", "gelu",
    "gelu_tanh", "log", "log1p", "rsqrt", "sigmoid", "silu", "sin", "sinh", "softplus", "sqrt",
    "tan", "tanh",
]  # fmt: skip


def aligned(array: Array) -> Array:
    """A copy that starts at a multiple of 64 bytes."""
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def run_code(nest: LoopNest, target: Target, buffers: list[Array]) -> list[Array]:
    """The buffers that a kernel's object code has changed, in their physical form."""
    library = load_objects([emit_object(lower_nest(nest, target), target)])
    placed = [aligned(buffer) for buffer in buffers]
    pointers = (ctypes.c_void_p * len(placed))(*[b.ctypes.data for b in placed])
    scratch = aligned(np.zeros(scratch_layout(nest)[1] + 64, np.uint8))
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    for number, stage in enumerate(nest.stages):
        function = ctypes.CFUNCTYPE(None, *kinds)(library.address(stage_symbol(nest.name, number)))
        function(pointers, scratch.ctypes.data, None, 0, stage_extent(stage))
    return placed


def both(nest: LoopNest, target: Target, *inputs: Array) -> tuple[Array, Array]:
    """The output by code and by meaning, as logical arrays."""
    output = nest.buffers[-1]
    buffers = [pack_tensor(t, x) for t, x in zip(nest.buffers, inputs, strict=False)]
    buffers.append(np.zeros(output.bytes // output.dtype.bytes, output.dtype.numpy))
    code = run_code(nest, target, buffers)
    run_nest(nest, buffers)
    return unpack_tensor(output, code[-1]), unpack_tensor(output, buffers[-1])


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(8, 64, 9), (10, 75, 4), (3, 5, 1)])
def test_matrix_product(rows: int, columns: int, depth: int, bits: int) -> None:
    target = resolve_target(f"host:{bits}")
    nest = nests.matmul(rows, columns, depth, lanes=bits // 32)
    code, meaning = both(nest, target, random(rows, depth), random(depth, columns), random(columns))
    np.testing.assert_allclose(code, meaning, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", WIDTHS)
def test_max_pool(bits: int) -> None:
    nest = nests.max_pool(channels=16, lanes=bits // 32)
    code, meaning = both(nest, resolve_target(f"host:{bits}"), random(16, 9, 9) - 5)
    np.testing.assert_array_equal(code, meaning)


@pytest.mark.parametrize("bits", WIDTHS)
def test_max_pool_keeps_nan(bits: int) -> None:
    x = random(16, 9, 9)
    x[3, 4, 4] = x[0, 0, 0] = x[15, 8, 7] = np.nan
    nest = nests.max_pool(channels=16, lanes=bits // 32)
    code, meaning = both(nest, resolve_target(f"host:{bits}"), x)
    np.testing.assert_array_equal(code, meaning)
    assert np.isnan(code).sum() == 1 + 1 + 2 and np.isnan(code[3, 2, 2])


def elementwise(body: Expr, axis: Axis, lanes: int, *inputs: Tensor) -> LoopNest:
    y = Tensor("y", (axis.extent,), body.dtype, role=Role.OUTPUT)
    compute = Compute((Store(y[axis], body),), body, unroll=(Tile(axis, lanes),), vector=axis)
    loop = For(axis, lanes, (compute,))
    return LoopNest("f", (*inputs, y), (), (Stage("main", (loop,)),))


def check_function(function: Callable[..., Expr], bits: int, *inputs: Array) -> None:
    """Code agrees with the meaning of the expression to two units in the last place."""
    target = resolve_target(f"host:{bits}")
    axis = Axis("i", inputs[0].size)
    dtype = DType(inputs[0].dtype.name)
    tensors = [Tensor(f"x{number}", x.shape, dtype) for number, x in enumerate(inputs)]
    body = function(*(tensor[axis] for tensor in tensors))
    code = run_code(
        elementwise(body, axis, bits // 32, *tensors), target, [*inputs, np.zeros_like(inputs[0])]
    )[-1]
    meaning = evaluate_expression(body, lambda load: inputs[tensors.index(load.tensor)])
    np.testing.assert_array_equal(np.isnan(code), np.isnan(meaning))
    number = ~np.isnan(code)
    limits = np.finfo(inputs[0].dtype)
    few, tiny = 2 * float(limits.eps), 2 * float(limits.smallest_subnormal)
    np.testing.assert_allclose(code[number], meaning[number], rtol=few, atol=tiny)
    np.testing.assert_array_equal(np.signbit(code[number]), np.signbit(meaning[number]))


FLOATS = [np.float32, np.float64]


def everywhere(kind: type, count: int) -> Array:
    """All exponents and signs alike."""
    size = np.dtype(kind).itemsize
    return np.random.default_rng(9).integers(0, 256, count * size, dtype=np.uint8).view(kind)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, kind: type, bits: int) -> None:
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], kind)
    values = [everywhere(kind, 50_000), random(999).astype(kind) * 10, random(555).astype(kind)]
    check_function(getattr(maths, name), bits, np.concatenate([*values, edges]))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("kind", FLOATS)
def test_pow(kind: type, bits: int) -> None:
    numbers = [0, -0.0, 1, -1, 2, 0.5, -3, 2.5, np.inf, -np.inf, np.nan, 1e-45, 1e30, 7, -8.25]
    x, y = (g.ravel() for g in np.meshgrid(*[np.array(numbers, kind)] * 2))
    check_function(maths.pow, bits, x, y)


V1 = pytest.param("x86-64-v1", marks=pytest.mark.skipif(
    not resolve_target("x86-64-v1").runs_on(HOST), reason="the host is no x86-64"
))  # fmt: skip


@pytest.mark.parametrize("name", [*(f"host:{bits}" for bits in WIDTHS), V1])
@pytest.mark.parametrize("kind", [*FLOATS, np.float16])
def test_the_remainder_is_exact(kind: type, name: str) -> None:
    """Whatever the quotient: up to 2**2097 for float64, with fused multiply-adds or without."""
    target, limits, count = resolve_target(name), np.finfo(kind), 3000
    edges = [
        0,
        -0.0,
        1,
        3,
        -0.5,
        np.inf,
        np.nan,
        limits.tiny,
        limits.smallest_subnormal,
        limits.max,
    ]
    pairs = np.meshgrid(*[np.array([*edges, -limits.max], kind)] * 2)
    whole = np.arange(count).astype(kind)
    raw = everywhere(kind, 2 * count)
    x = np.concatenate([pairs[0].ravel(), raw[:count], random(count).astype(kind) * 99, whole])
    y = np.concatenate(
        [pairs[1].ravel(), raw[count:], random(count).astype(kind)[::-1], whole[::-1]]
    )
    axis, dtype = Axis("i", x.size), DType(np.dtype(kind).name)
    a, b = Tensor("a", x.shape, dtype), Tensor("b", x.shape, dtype)
    nest = elementwise(op(Operation.REM, a[axis], b[axis]), axis, target.vector_bits // 32, a, b)
    code = run_code(nest, target, [x, y, np.zeros_like(x)])[-1]
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    np.testing.assert_array_equal(code, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(code[number]), np.signbit(expected[number]))


@pytest.mark.skipif(not resolve_target("x86-64-v1").runs_on(HOST), reason="the host is no x86-64")
@pytest.mark.parametrize("name", ["x86-64-v1", "x86-64-v2"])
@pytest.mark.parametrize(("function", "most"), [("exp", 1.2e-7), ("sin", 3e-7), ("tanh", 3e-7)])
def test_targets_without_fma(function: str, most: float, name: str) -> None:
    """And without instructions that round, as `exp` and `sin` do."""
    x = random(500) * 20
    tensor, axis = Tensor("x", (500,)), Axis("i", 500)
    nest = elementwise(getattr(maths, function)(tensor[axis]), axis, 4, tensor)
    code = run_code(nest, resolve_target(name), [x, np.zeros_like(x)])[-1]
    np.testing.assert_allclose(code, getattr(np, function)(x.astype(np.float64)), rtol=most)
