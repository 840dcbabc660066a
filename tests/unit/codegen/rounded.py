"""Kernels that quantise: floats as the nearest bytes, between limits, and the largest of them."""

from __future__ import annotations

from tests.unit.codegen.checks import kernel
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Operation,
    Role,
    Tensor,
    op,
)
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Store, Tile


def bytes_nest(count: int, together: int, lanes: int, zero: int = -128) -> LoopNest:
    """y[i] = int8(uint8(rint(x[i]))) + zero, in groups of `together` vectors of `lanes` lanes."""
    i = Axis("i", count)
    x = Tensor("x", (count,), DType.FLOAT32)
    y = Tensor("y", (count,), DType.INT8, role=Role.OUTPUT)
    nearest = Cast(Cast(op(Operation.RINT, x[i]), DType.UINT8), DType.INT8)
    value = op(Operation.ADD, nearest, Const(zero, DType.INT8))
    compute = Compute((Store(y[i], value),), value, unroll=(Tile(i, lanes),), vector=i)
    return kernel((x, y), For(i, together * lanes, (compute,)))


def read_as_nest(count: int, lanes: int, first: DType, second: DType) -> LoopNest:
    """y[i] = float32(second(first(rint(x[i])))): integers of one size, read with the other sign."""
    i = Axis("i", count)
    x = Tensor("x", (count,), DType.FLOAT32)
    y = Tensor("y", (count,), DType.FLOAT32, role=Role.OUTPUT)
    whole = Cast(Cast(op(Operation.RINT, x[i]), first), second)
    value = Cast(whole, DType.FLOAT32)
    compute = Compute((Store(y[i], value),), value, unroll=(Tile(i, lanes),), vector=i)
    return kernel((x, y), For(i, lanes, (compute,)))


def limits_nest(count: int, lanes: int) -> LoopNest:
    """y[i] = min(max(x[i], -1), 6)."""
    i = Axis("i", count)
    x = Tensor("x", (count,), DType.FLOAT32)
    y = Tensor("y", (count,), DType.FLOAT32, role=Role.OUTPUT)
    low = op(Operation.MAX, x[i], Const(-1.0, DType.FLOAT32))
    value = op(Operation.MIN, low, Const(6.0, DType.FLOAT32))
    compute = Compute((Store(y[i], value),), value, unroll=(Tile(i, lanes),), vector=i)
    return kernel((x, y), For(i, lanes, (compute,)))


def largest_nest(count: int, lanes: int) -> LoopNest:
    """y[i] = max over j of x[j, i]."""
    i, j = Axis("i", count), Axis("j", 8)
    x = Tensor("x", (j.extent, count), DType.FLOAT32)
    y = Tensor("y", (count,), DType.FLOAT32, role=Role.OUTPUT)
    compute = Compute(
        (Store(y[i], Accumulator(DType.FLOAT32)),),
        x[j, i],
        Combiner.MAX,
        reduce=(Tile(j),),
        unroll=(Tile(i, lanes),),
        vector=i,
    )
    return kernel((x, y), For(i, lanes, (compute,)))
