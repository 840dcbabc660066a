"""Expressions from others, against the same expressions written out."""

from __future__ import annotations

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    IndexValue,
    Load,
    Reduce,
    Tensor,
    finished,
)
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.rewriting import load_at, reindex, substitute

i, j, k = Axis("i", 8), Axis("j", 4), Axis("k", 3)
x = Tensor("x", (32,), DType.FLOAT32)
rows = Tensor("rows", (32,), DType.INT64)


def gathered(at: Affine) -> Load:
    """x[at; 0: rows[at]]"""
    return Load(x, (at,), ((0, Load(rows, (at,))),))


def over(at: Affine) -> Expr:
    """Loads, a gather, a position as a number, and a sum that has an axis of its own."""
    number = Cast(IndexValue(at, DType.INT32), DType.FLOAT32)
    return gathered(at) * number + Reduce(Combiner.SUM, (k,), Load(x, (at + k,)))


def test_every_kind_of_index_moves() -> None:
    there = affine(j) * 2 + 1
    assert reindex(over(affine(i)), {i: there}) == over(there)
    assert load_at(gathered(affine(i)), {i: there}) == gathered(there)
    assert reindex(over(affine(i)), {j: there}) == over(affine(i))


def test_known_parts_are_replaced_outermost_first() -> None:
    inner = Reduce(Combiner.MAX, (k,), Load(x, (affine(k),)))
    outer = Reduce(Combiner.SUM, (j,), Load(x, (affine(j),)) - inner)
    expr = outer * inner
    one, two = Const(1.0, DType.FLOAT32), Const(2.0, DType.FLOAT32)
    assert substitute(expr, {outer: one, inner: two}) == one * two
    assert (
        substitute(expr, {inner: two})
        == Reduce(Combiner.SUM, (j,), Load(x, (affine(j),)) - two) * two
    )
    assert substitute(outer, {outer: finished(outer)}) == Accumulator(DType.FLOAT32)
