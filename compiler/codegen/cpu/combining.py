"""Combination of a reduction's partial results: several accumulators, or the lanes of a vector.

A partial result is a tuple of values. For a plain combiner, such as a sum, it has one value; for a
`Fold`, a reduction of tuples, one value per item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from tilewright.compiler.codegen.cpu.arithmetic import apply, extract_lane
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, suffix
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Combiner, Operation

Partial = tuple[Value, ...]


def neutral(combiner: Combiner, dtype: DType) -> float:
    """Return the neutral element of a combiner, with which a reduction starts: 0 for sums."""
    match combiner:
        case Combiner.SUM:
            return 0
        case Combiner.PRODUCT:
            return 1
        case Combiner.MAX if dtype.is_float:
            return float("-inf")
        case Combiner.MIN if dtype.is_float:
            return float("inf")
        case Combiner.MAX:
            return -(1 << (dtype.bytes * 8 - 1)) if dtype.is_signed else 0
        case Combiner.MIN:
            bits = 1 if dtype is DType.BOOL else dtype.bytes * 8
            return (1 << (bits - dtype.is_signed)) - 1
    assert_never(combiner)


def join_lanes(
    emitter: Emitter, values: Partial, joined: Callable[[Partial, Partial], Partial]
) -> Partial:
    """Combine the lanes of vectors to scalars, in log2(lanes) steps that halve the vectors.

    Args:
        values: one partial result, as vectors of equal width.
        joined: emits the combination of two partial results.
    """
    lanes = values[0].lanes
    while lanes > 1:
        half = lanes // 2
        lower = tuple(_part(emitter, value, 0, half) for value in values)
        upper = tuple(_part(emitter, value, half, lanes) for value in values)
        values = joined(lower, upper)
        lanes = half
    return values


def _part(emitter: Emitter, value: Value, first: int, end: int) -> Value:
    if end - first == 1:
        return extract_lane(emitter, value, first)
    return emitter.shuffle(value, None, range(first, end))


def combine(emitter: Emitter, combiner: Combiner, a: Value, b: Value) -> Value:
    """Emit the combination of two partial results of a reduction, such as their sum or maximum."""
    match combiner:
        case Combiner.SUM:
            return apply(emitter, Operation.ADD, a, b)
        case Combiner.PRODUCT:
            return apply(emitter, Operation.MUL, a, b)
        case Combiner.MAX | Combiner.MIN:
            operation = Operation.MAX if combiner is Combiner.MAX else Operation.MIN
            dtype = b.dtype
            if dtype in (DType.FLOAT32, DType.FLOAT64) and emitter.target.family.extrema_of_nan:
                name = f"llvm.{operation.value}imum.{suffix(dtype, b.lanes)}"
                return emitter.call(dtype, b.lanes, name, a, b)
            joined = apply(emitter, operation, a, b)
            if b.dtype is None or not b.dtype.is_float:
                return joined
            # The native operation returns `b` if either is NaN. The selection keeps any NaN, and is
            # one masked instruction on targets that have those.
            return apply(emitter, Operation.SELECT, apply(emitter, Operation.EQ, a, a), joined, a)
    assert_never(combiner)


def same_lanes(emitter: Emitter, partial: Sequence[Value], lanes: int) -> Partial:
    """Convert the values of a partial result to vectors of `lanes` lanes.

    Scalars are broadcast; narrower vectors are extended by copies of their last lane.
    """
    return tuple(
        emitter.splat(value, lanes)
        if value.lanes in (1, lanes)
        else emitter.shuffle(value, value, [min(i, value.lanes - 1) for i in range(lanes)])
        for value in partial
    )
