"""Bytes that are made and read again inside an expression."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Cast,
    Expr,
    Load,
    Op,
    Operation,
    Tensor,
    constant,
    op,
    walk,
)
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.int8_casts import remove_int8_casts
from tilewright.compiler.loops.semantics import evaluate_expression

X = Load(Tensor("x", (1000,), DType.FLOAT32), (affine(Axis("i", 1000)),))
NUMBERS = np.concatenate([np.linspace(-400, 400, 995), [1e30, -1e30, np.inf, -np.inf, np.nan]])


def rounded(x: Expr) -> Expr:
    return op(Operation.RINT, x)


def quantised(whole: Expr, byte: DType, zero: float) -> Expr:
    return Cast(whole + zero if zero else whole, byte)


def dequantised(value: Expr, zero: int) -> Expr:
    wide: Expr = Cast(value, DType.INT32)
    return Cast(
        op(Operation.SUB, wide, constant(zero, DType.INT32)) if zero else wide, DType.FLOAT32
    )


def value(expr: Expr) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(evaluate_expression(expr, lambda _: NUMBERS.astype(np.float32)))


@pytest.mark.parametrize("byte", [DType.UINT8, DType.INT8])
@pytest.mark.parametrize(("zero", "other"), [(0, 0), (7, 7), (-3, -3), (7, 0), (0, 9), (128, 1)])
def test_the_number_stays_a_float(byte: DType, zero: int, other: int) -> None:
    before = dequantised(quantised(rounded(X * 0.7), byte, zero), other)
    after = remove_int8_casts(before)
    np.testing.assert_array_equal(value(after), value(before))
    assert not any(isinstance(node, Cast) for node in walk(after))
    assert sum(isinstance(n, Op) and n.operation is Operation.RINT for n in walk(after)) == 1


@pytest.mark.parametrize(
    ("kind", "zero"),
    [(DType.UINT8, 100), (DType.INT8, -100), (DType.INT16, -32768), (DType.INT32, 2**31 - 1)],
)
@pytest.mark.parametrize("operation", [Operation.SUB, Operation.ADD])
def test_a_constant_that_lets_integers_wrap_is_taken_off_them(
    kind: DType, zero: int, operation: Operation
) -> None:
    byte = quantised(rounded(X), DType.INT8 if kind is DType.INT8 else DType.UINT8, 0)
    wide = byte if kind.bytes == 1 else Cast(byte, kind)
    before = Cast(op(operation, wide, constant(zero, kind)), DType.FLOAT32)
    np.testing.assert_array_equal(value(remove_int8_casts(before)), value(before))


def test_what_is_done_with_it_stays() -> None:
    inner = dequantised(quantised(rounded(X), DType.UINT8, 3), 3)
    before = Cast(rounded(inner * 0.5) + 1.0, DType.UINT8)
    after = remove_int8_casts(before)
    np.testing.assert_array_equal(value(after), value(before))
    assert [node.type for node in walk(after) if isinstance(node, Cast)] == [DType.UINT8]


@pytest.mark.parametrize(
    "expr",
    [
        dequantised(Cast(X * 0.7, DType.UINT8), 3),  # the operand of the cast is not whole
        dequantised(Cast(rounded(X) + 0.5, DType.UINT8), 3),
        Cast(Cast(rounded(X), DType.UINT8), DType.FLOAT64),
        Cast(Cast(rounded(X), DType.INT16), DType.FLOAT32),
        Cast(op(Operation.MUL, Cast(Cast(rounded(X), DType.UINT8), DType.INT32), 3), DType.FLOAT32),
        Cast(rounded(X), DType.UINT8),
    ],
)
def test_others_are_left_alone(expr: Expr) -> None:
    assert remove_int8_casts(expr) == expr
