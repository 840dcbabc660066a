"""Powers: x**y in two-part arithmetic, and constant exponents as multiplications."""

from __future__ import annotations

from compiler.dtypes import DType
from compiler.loops.elementary import (
    INFINITY,
    LN2,
    NARROW,
    absolute,
    equal,
    exp_tail,
    fma,
    in_float32,
    less,
    maximum,
    minimum,
    not_a_number,
    polynomial,
    select,
    split_exponent,
)
from compiler.loops.expr import Cast, Const, Expr, Operation, constant, op


def pow(x: Expr, y: Expr) -> Expr:
    """x**y as C's pow; relative error <= 6e-7 where the result is normal (5 ulp), and
    2e-5 on a target without fused multiply-adds.

    A constant exponent that is a small integer or a half becomes multiplications and square
    roots. Otherwise 2**(y log2(|x|)) with the logarithm and the product in two parts each.
    """
    if isinstance(y, Const) and (simple := _simple_power(x, y.value)) is not None:
        return simple
    if x.dtype in NARROW:
        wide = _pow(Cast(x, DType.FLOAT32), Cast(y, DType.FLOAT32))
        return Cast(wide, x.dtype)
    in_float32("pow", y, lambda v: v)
    return in_float32("pow", x, lambda v: _pow(v, y))


def _simple_power(x: Expr, exponent: float) -> Expr | None:
    """x**exponent by multiplication and square root, or None."""
    match exponent:
        case 0:
            return constant(1.0, x.dtype)
        case 1:
            return x
        case 2:
            return x * x
        case 3:
            return x * x * x
        case 4:
            return (x * x) * (x * x)
        case -1:
            return constant(1.0, x.dtype) / x
        case -2:
            return constant(1.0, x.dtype) / (x * x)
        case _:
            return None


def _pow(x: Expr, y: Expr) -> Expr:
    magnitude = absolute(x)
    high, low = _log2_parts(magnitude)
    product = y * high
    # exact error of the product, where the target fuses; at 0 and inf the limits below decide
    rest = fma(y, low, fma(y, high, -product))
    product = maximum(minimum(product, 192.0), -192.0)
    rest = select(less(absolute(product), 192.0), rest, constant(0.0, x.dtype))
    n = op(Operation.RINT, product)
    r = ((product - n) + rest) * LN2
    value = op(Operation.SCALE, fma(exp_tail(r), r * r, r) + 1.0, n)
    return _pow_limits(x, y, magnitude, value)


def _log2_parts(x: Expr) -> tuple[Expr, Expr]:
    """log2 of a positive number as a large and a small part.

    With s = f / (2 + f): log2(1 + f) = (2 s + 2/3 s**3 + ...) / ln 2. s, the constant 2 / ln 2 and
    the sums carry their rounding errors along.
    """
    exponent, f = split_exponent(x)
    divisor = f + 2.0
    s = f / divisor
    # (f - s (2 + f)) / (2 + f), with the part of f that the divisor lost
    lost = f - (divisor - 2.0)
    s_low = (fma(-s, divisor, f) - s * lost) / divisor
    square = s * s
    # 2/ln(2) (1/3 + s**2/5 + ...), on |s| <= 0.1716
    tail = s * square * polynomial(square, (0.9617966939, 0.5770780164, 0.4121985831, 0.3205988980))
    scale_high, scale_low = 2.885390043258667, 3.851925e-8
    product = s * scale_high
    error = fma(s, scale_high, -product)
    small = fma(s_low, scale_high, fma(s, scale_low, error)) + tail
    total = exponent + product
    # |exponent| >= |product| unless it is 0, where the sum is exact
    remainder = product - (total - exponent)
    small = small + remainder
    high = total + small
    return high, small - (high - total)


def _pow_limits(x: Expr, y: Expr, magnitude: Expr, value: Expr) -> Expr:
    """Zeros, infinities, NaN and negative bases, as C's pow defines them."""
    one = constant(1.0, x.dtype)
    zero = constant(0.0, x.dtype)
    infinite = constant(INFINITY, x.dtype)
    grows = op(Operation.NE, less(1.0, magnitude), less(y, 0.0))
    endless = equal(absolute(y), INFINITY)
    # an infinite exponent, or a base that is 0 or infinite: 0 or inf by its direction
    edge = op(
        Operation.OR,
        endless,
        op(Operation.OR, equal(magnitude, 0.0), equal(magnitude, INFINITY)),
    )
    value = select(edge, select(grows, infinite, zero), value)
    value = select(
        op(Operation.AND, equal(magnitude, 1.0), equal(absolute(y), INFINITY)), one, value
    )
    half = y * 0.5
    integral = equal(op(Operation.FLOOR, y), y)
    odd = op(Operation.AND, integral, op(Operation.NE, op(Operation.FLOOR, half), half))
    # the sign of -0 counts as well: 1 / -0 is -inf
    negative = op(Operation.OR, less(x, 0.0), less(one / x, 0.0))
    value = select(op(Operation.AND, negative, odd), -value, value)
    invalid = op(
        Operation.AND,
        op(Operation.AND, less(x, 0.0), less(-INFINITY, x)),
        op(Operation.AND, less(absolute(y), INFINITY), op(Operation.NOT, integral)),
    )
    nan = not_a_number(x.dtype)
    is_nan = op(Operation.OR, op(Operation.NE, x, x), op(Operation.NE, y, y))
    value = select(op(Operation.OR, invalid, is_nan), nan, value)
    return select(op(Operation.OR, equal(y, 0.0), equal(x, 1.0)), one, value)
