"""Expressions as values: equality and hashes."""

from __future__ import annotations

import pytest

from compiler.dtypes import DType
from compiler.loops.expr import Cast, Const, Expr, Operation, op


def squares(depth: int, exponent: int = 2, *, widened: bool = False) -> Expr:
    """A number squared again and again: one path to it is 2**depth paths."""
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
