"""Expressions as values: equality, hashes, their nodes in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Fold,
    Incoming,
    Item,
    Items,
    Load,
    Operation,
    Reduce,
    Tee,
    Tensor,
    children,
    op,
    walk,
)
from tilewright.compiler.loops.index import affine


def squares(depth: int, exponent: int = 2, *, widened: bool = False) -> Expr:
    """A number squared again and again: one node has 2**depth paths."""
    value: Expr = Const(exponent, DType.INT64)
    for _ in range(depth):
        left = value
        if widened:
            left, value = (Cast(Cast(value, DType.INT32), DType.INT64) for _ in range(2))
        value = op(Operation.MUL, left, value)
    return value


@pytest.mark.parametrize("widened", [False, True])
def test_equal_expressions_are_found_equal_in_a_step_a_node(widened: bool) -> None:
    one, other = (squares(64, widened=widened) for _ in range(2))
    assert one == other and hash(one) == hash(other)
    assert len({one, other}) == 1


X = Tensor("x", (8,), DType.INT64)


def loaded(value: Expr) -> Expr:
    return Load(X, (affine(0),), ((0, value),))


def folded(value: Expr) -> Expr:
    fold = Fold((Const(0, DType.INT64),), (Accumulator(DType.INT64),))
    return Item(Reduce(fold, (), Items((value, value))), 0)


def stored(value: Expr) -> Expr:
    return Tee(value, Load(X, (affine(0),), ((0, value),)))


@pytest.mark.parametrize("wrap", [loaded, folded, stored])
def test_every_kind_of_node_is_compared_once(wrap: Callable[[Expr], Expr]) -> None:
    def nested(exponent: int, depth: int = 64) -> Expr:
        value: Expr = Const(exponent, DType.INT64)
        for _ in range(depth):
            value = op(Operation.MUL, wrap(value), wrap(value))
        return value

    assert nested(2) == nested(2) and len({nested(2), nested(2)}) == 1
    assert nested(2) != nested(3) and nested(2) != nested(2, 63)
    assert wrap(Const(2, DType.INT64)) == wrap(Const(2, DType.INT64))
    assert wrap(Const(2, DType.INT64)) != wrap(Const(3, DType.INT64))


def test_what_a_node_has_beside_its_operands_counts() -> None:
    value = Const(2, DType.INT64)
    fold = Fold((Const(0, DType.INT64),) * 2, (Accumulator(DType.INT64), Incoming(DType.INT64)))
    reduction = Reduce(fold, (), Items((value, value)))
    assert Item(reduction, 0) != Item(reduction, 1)
    assert Reduce(Combiner.SUM, (), value) != Reduce(Combiner.MAX, (), value)
    assert X[0] != X[1] and X[0] == X[0] and X[0] != loaded(value)
    assert X[0] != Tensor("x", (9,), DType.INT64)[0]
    assert Tee(value, X[0]) != Tee(value, X[1])
    assert Items((value, value)) != Items((value,))


def test_expressions_that_differ_anywhere_are_not_equal() -> None:
    assert squares(64) != squares(64, 3)
    assert squares(64) != squares(63)
    assert op(Operation.ADD, Const(1.0), Const(2.0)) != op(Operation.SUB, Const(1.0), Const(2.0))
    assert op(Operation.NEG, Const(1.0)) != Const(1.0)
    narrow, wide = (
        op(Operation.NEG, Cast(Cast(Const(1.0), t), DType.FLOAT32))
        for t in (DType.INT32, DType.INT64)
    )
    assert narrow != wide


def test_nodes_of_a_tree_come_once_and_after_their_operands() -> None:
    tree = op(Operation.ADD, squares(200), squares(3, exponent=5))
    found = list(walk(tree))
    places = {node: place for place, node in enumerate(found)}
    assert len(places) == len(found) == 201 + 4 + 1
    assert found[-1] is tree
    assert all(places[child] < places[node] for node in found for child in children(node))
