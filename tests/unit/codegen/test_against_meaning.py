"""Generated code computes what its loop nest says: kernels run beside `run_nest`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.codegen.lower import lower_nest, scratch_layout, stage_extent, stage_symbol
from compiler.codegen.object import emit_object, load_objects
from compiler.loops import maths
from compiler.loops.evaluate import pack_tensor, run_nest, unpack_tensor
from compiler.loops.expr import Expr, Role, Tensor
from compiler.loops.index import Axis
from compiler.loops.nest import Compute, For, LoopNest, Stage, Store, Tile
from compiler.loops.semantics import evaluate_expression
from compiler.target import Target, resolve_target
from tests.unit.loops import nests

Array = np.ndarray[Any, Any]

HOST = resolve_target("host")
WIDTHS = [bits for bits in (128, 256, 512) if bits <= HOST.vector_bits]
FUNCTIONS = [
    "cos", "erf", "exp", "expm1", "gelu", "gelu_tanh", "log", "log1p", "rsqrt", "sigmoid", "silu",
    "sin", "softplus", "sqrt", "tanh",
]  # fmt: skip


def aligned(array: Array) -> Array:
    """A copy that starts at a multiple of 64 bytes."""
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def run_code(nest: LoopNest, target: Target, buffers: list[Array]) -> list[Array]:
    """What a kernel's object code makes of its buffers, in their physical form."""
    library = load_objects([emit_object(lower_nest(nest, target), target)])
    placed = [aligned(buffer) for buffer in buffers]
    pointers = (ctypes.c_void_p * len(placed))(*[b.ctypes.data for b in placed])
    scratch = aligned(np.zeros(scratch_layout(nest)[1] + 64, np.uint8))
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    for number, stage in enumerate(nest.stages):
        function = ctypes.CFUNCTYPE(None, *kinds)(library.address(stage_symbol(nest, number)))
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
    y = Tensor("y", (axis.extent,), role=Role.OUTPUT)
    compute = Compute((Store(y[axis], body),), body, unroll=(Tile(axis, lanes),), vector=axis)
    loop = For(axis, lanes, (compute,))
    return LoopNest("f", (*inputs, y), (), (Stage("main", (loop,)),))


def check_function(function: Callable[..., Expr], bits: int, *inputs: Array) -> None:
    """Code agrees with the meaning of the expression to two units in the last place."""
    target = resolve_target(f"host:{bits}")
    axis = Axis("i", inputs[0].size)
    tensors = [Tensor(f"x{number}", x.shape) for number, x in enumerate(inputs)]
    body = function(*(tensor[axis] for tensor in tensors))
    code = run_code(
        elementwise(body, axis, bits // 32, *tensors), target, [*inputs, np.zeros_like(inputs[0])]
    )[-1]
    meaning = evaluate_expression(body, lambda load: inputs[tensors.index(load.tensor)])
    np.testing.assert_array_equal(np.isnan(code), np.isnan(meaning))
    number = ~np.isnan(code)
    np.testing.assert_allclose(code[number], meaning[number], rtol=2.4e-7, atol=3e-45)
    np.testing.assert_array_equal(np.signbit(code[number]), np.signbit(meaning[number]))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, bits: int) -> None:
    every = np.arange(0, 1 << 32, 65_537, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    check_function(getattr(maths, name), bits, np.concatenate([every, random(999) * 10, edges]))


@pytest.mark.parametrize("bits", WIDTHS)
def test_pow(bits: int) -> None:
    numbers = [0, -0.0, 1, -1, 2, 0.5, -3, 2.5, np.inf, -np.inf, np.nan, 1e-45, 1e30, 7, -8.25]
    x, y = (g.ravel() for g in np.meshgrid(*[np.array(numbers, np.float32)] * 2))
    check_function(maths.pow, bits, x, y)


@pytest.mark.skipif(not resolve_target("x86-64-v2").runs_on(HOST), reason="the host is no x86-64")
def test_target_without_fma() -> None:
    target = resolve_target("x86-64-v2")
    x = random(500) * 20
    tensor, axis = Tensor("x", (500,)), Axis("i", 500)
    nest = elementwise(maths.exp(tensor[axis]), axis, 4, tensor)
    code = run_code(nest, target, [x, np.zeros_like(x)])[-1]
    np.testing.assert_allclose(code, np.exp(x.astype(np.float64)), rtol=1.2e-7)
