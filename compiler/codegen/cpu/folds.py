"""Combination of a reduction's partial results, for `Fold`s and for combiners such as sums.

A `Fold` reduces tuples of values with an expression of its own, such as the maximum and its index.
"""

from __future__ import annotations

from tilewright.compiler.codegen.cpu import combining
from tilewright.compiler.codegen.cpu.arithmetic import cast
from tilewright.compiler.codegen.cpu.combining import Partial, combine, neutral
from tilewright.compiler.codegen.cpu.operations import apply
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Fold,
    Incoming,
    Op,
)


def start(emitter: Emitter, combiner: Combiner | Fold, dtype: DType) -> Partial:
    """Return the start value of a reduction: a tuple of constants, the neutral element.

    A plain combiner has one constant, a Fold one per item.
    """
    if isinstance(combiner, Fold):
        return tuple(emitter.const(c.value, c.type) for c in combiner.neutral)
    return (emitter.const(neutral(combiner, dtype), dtype),)


def join(emitter: Emitter, combiner: Combiner | Fold, a: Partial, b: Partial) -> Partial:
    """Emit the combination of two partial results of a reduction, `a` and `b`."""
    if isinstance(combiner, Fold):
        return _joined(emitter, combiner, a, b)
    ((x,), (y,)) = a, b
    return (combine(emitter, combiner, x, y),)


def join_lanes(emitter: Emitter, combiner: Combiner | Fold, partial: Partial) -> Partial:
    """Emit the combination of the lanes of a partial result, and return one scalar for each item.

    All vectors of the partial result have the same width.
    """
    return combining.join_lanes(emitter, partial, lambda a, b: join(emitter, combiner, a, b))


def _joined(emitter: Emitter, fold: Fold, a: Partial, b: Partial) -> Partial:
    memo: dict[Expr, Value] = {}

    def visit(node: Expr) -> Value:
        if node not in memo:
            memo[node] = compute(node)
        return memo[node]

    def compute(node: Expr) -> Value:
        match node:
            case Accumulator(number=number):
                return a[number]
            case Incoming(number=number):
                return b[number]
            case Const(value=value, type=dtype):
                return emitter.const(value, dtype)
            case Op(operation=operation, args=args):
                return apply(emitter, operation, *map(visit, args))
            case Cast(value=value, type=dtype):
                return cast(emitter, visit(value), dtype)
            case _:
                raise TypeError(f"a fold joins by {type(node).__name__}")

    return tuple(map(visit, fold.joined))
