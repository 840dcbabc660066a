"""Expressions for integer powers, and for shifts by run-time amounts."""

from __future__ import annotations

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Const, Expr, Operation, op


def power(base: Expr, exponent: Expr) -> Expr:
    """Return base ** exponent for integers, computed by repeated squaring; the result wraps around.

    With a negative exponent, the result is 1 or -1 if the base is 1 or -1, and 0 for any other
    base.
    """
    one, zero = Const(1, base.dtype), Const(0, base.dtype)
    result: Expr = one
    factor = base
    for bit in range(_value_bits(exponent.dtype)):
        result = maths.select(_is_set(exponent, bit), op(Operation.MUL, result, factor), result)
        factor = op(Operation.MUL, factor, factor)
    if not exponent.dtype.is_signed:
        return result
    unit = op(Operation.EQ, base, one)
    if base.dtype.is_signed:
        minus = op(Operation.EQ, base, Const(-1, base.dtype))
        sign = maths.select(_is_set(exponent, 0), base, one)
        inverse = maths.select(unit, one, maths.select(minus, sign, zero))
    else:
        inverse = maths.select(unit, one, zero)
    return maths.select(op(Operation.LT, exponent, Const(0, exponent.dtype)), inverse, result)


def shift_left(x: Expr, amount: Expr) -> Expr:
    """Return x * 2**amount, or 0 if the amount is negative or at least the number of bits of x."""
    return _shift(x, amount, Operation.MUL)


def shift_right(x: Expr, amount: Expr) -> Expr:
    """Return x // 2**amount, rounded down.

    If the amount is negative or at least the number of bits of `x`, the result is 0, or -1 for a
    negative `x`.
    """
    if not x.dtype.is_signed:
        return _shift(x, amount, Operation.DIV)
    negative = op(Operation.LT, x, Const(0, x.dtype))
    inverted = maths.select(negative, op(Operation.NOT, x), x)
    shifted = _shift(inverted, amount, Operation.DIV)
    return maths.select(negative, op(Operation.NOT, shifted), shifted)


def _shift(x: Expr, amount: Expr, operation: Operation) -> Expr:
    """Shift x by a run-time number of bits; `operation` is MUL for left and DIV for right.

    The expression shifts by 1, 2, 4, ... bits, each if the corresponding bit of the amount is set.
    """
    width = 8 * x.dtype.bytes
    zero = Const(0, x.dtype)
    for bit in range(width.bit_length() - 1):
        factor = Const(1 << (1 << bit), x.dtype)
        x = maths.select(_is_set(amount, bit), op(operation, x, factor), x)
    within = op(Operation.LT, amount, Const(width, amount.dtype))
    if amount.dtype.is_signed:
        within = op(Operation.AND, within, op(Operation.LE, Const(0, amount.dtype), amount))
    return maths.select(within, x, zero)


def _is_set(x: Expr, bit: int) -> Expr:
    masked = op(Operation.AND, x, Const(1 << bit, x.dtype))
    return op(Operation.NE, masked, Const(0, x.dtype))


def _value_bits(dtype: DType) -> int:
    return 8 * dtype.bytes - dtype.is_signed
