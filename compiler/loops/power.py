"""Powers x**y: by a logarithm of extra precision, or by multiplications for constant exponents."""

from __future__ import annotations

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.elementary import (
    INFINITY,
    LN2,
    NARROW,
    absolute,
    by_type,
    equal,
    exp_tail,
    fma,
    in_float,
    less,
    maximum,
    minimum,
    not_a_number,
    polynomial,
    select,
    split_exponent,
)
from tilewright.compiler.loops.expr import Cast, Const, Expr, Operation, constant, op


def pow(x: Expr, y: Expr) -> Expr:
    """Power x**y with the special cases of C's pow.

    For normal results, the relative error is at most 6.1e-8 (float32) or 5e-16 (float64; 4e-13
    without fused multiply-adds). A constant exponent that is a small integer becomes
    multiplications. Otherwise the result is 2**(y log2(|x|)): float32 is computed in float64,
    float64 with the logarithm as a sum of two numbers.
    """
    if isinstance(y, Const) and (simple := _simple_power(x, y.value)) is not None:
        return simple
    if x.dtype in NARROW:
        wide = _pow(Cast(x, DType.FLOAT32), Cast(y, DType.FLOAT32))
        return Cast(wide, x.dtype)
    in_float("pow", y, lambda v: v)
    return in_float("pow", x, lambda v: _pow(v, y))


def _simple_power(x: Expr, exponent: float) -> Expr | None:
    """Return x**exponent by multiplications and a division, if the exponent is 0 to 4, -1 or -2.

    Returns None for any other exponent.
    """
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
    value = by_type(x, _pow_single, _pow_double)(magnitude, y)
    return _pow_limits(x, y, magnitude, value)


def _pow_single(magnitude: Expr, y: Expr) -> Expr:
    """Return x**y = 2**(y log2(x)) for a float32 x > 0 (`magnitude`), computed in float64.

    In float64, all float32 arguments are normal numbers, and no step overflows. log2(1 + f) is
    computed as s Q(s**2), where s = f / (2 + f) and Q is a polynomial.
    """
    exponent, f = split_exponent(Cast(magnitude, DType.FLOAT64))
    s = f / (f + 2.0)
    logarithm = fma(s, polynomial(s * s, _LOG2), exponent)
    product = maximum(minimum(Cast(y, DType.FLOAT64) * logarithm, 192.0), -192.0)
    n = op(Operation.RINT, product)
    r = (product - n) * LN2
    power = fma(polynomial(r, _EXP_TAIL_SHORT), r * r, r) + 1.0
    return Cast(op(Operation.SCALE, power, n), DType.FLOAT32)


# log2((1 + s) / (1 - s)) / s over s**2, error 8e-14; (e**r - 1 - r) / r**2, error 1.4e-9
_LOG2 = (
    2.8853900817778504,
    0.9617966941123595,
    0.5770779426302618,
    0.41220922733052445,
    0.3199066608891474,
    0.28288718263073565,
)
_EXP_TAIL_SHORT = (
    0.5000000013457727,
    0.16666666681614256,
    0.04166646500604005,
    0.008333310934448869,
    0.0013933641031986701,
    0.00019890980869750327,
)


def _pow_double(magnitude: Expr, y: Expr) -> Expr:
    """Return x**y = 2**(y log2(x)) for a float64 x > 0, given as `magnitude`.

    The logarithm and its product with y are sums of two numbers, for more than 53 bits of
    precision.
    """
    high, low = _log2_parts(magnitude)
    product = y * high
    # The exact error of the product, if the target fuses. At 0 and inf, the limits below decide.
    rest = fma(y, low, fma(y, high, -product))
    product = maximum(minimum(product, 1200.0), -1200.0)
    rest = select(less(absolute(product), 1200.0), rest, constant(0.0, y.dtype))
    n = op(Operation.RINT, product)
    # The rest of the exponent after rounding to n, times ln 2 in two parts.
    r = (product - n) + rest
    angle = r * LN2
    angle = fma(r, _LN2_REST, angle)
    return op(Operation.SCALE, fma(exp_tail(angle), angle * angle, angle) + 1.0, n)


_LN2_REST = 2.3190468138462996e-17
"""The rounding error of ln 2 in float64: ln 2 - float64(ln 2)."""


def _log2_parts(x: Expr) -> tuple[Expr, Expr]:
    """Return log2 of a positive float64 as the sum of a large and a small number.

    The relative error of the sum is at most 2**-66. The method is that of e_pow in FreeBSD's msun.
    x is split into 2**e c (1 + f / c), where c is 1 or 3/2. With s = f / (2 c + f) and a polynomial
    L, log(1 + f / c) is 2/3 s (3 + s**2 + s**4 L(s**2)). s, s**2 and the products are sums of two
    numbers as well.
    """
    exponent, f = split_exponent(x)
    # from [sqrt(1/2), sqrt(2)) to [sqrt(3) / 2, sqrt(3))
    mantissa = f + 1.0
    low = less(mantissa, 0.8660254037844386)
    exponent = select(low, exponent - 1.0, exponent)
    mantissa = select(low, mantissa * 2.0, mantissa)
    upper = less(1.224744871391589, mantissa)
    base = select(upper, constant(1.5, x.dtype), constant(1.0, x.dtype))
    distance = mantissa - base
    divisor = mantissa + base
    s = distance / divisor
    # distance - s divisor, including the rounding error of the divisor
    lost = mantissa - (divisor - base)
    s_low = (fma(-s, divisor, distance) - s * lost) / divisor
    square = s * s
    square_low = fma(s, s, -square) + s * s_low * 2.0
    tail = square * square * polynomial(square, _POW_LOG)
    rest = square_low + tail
    sum_ = square + 3.0
    sum_low = (square - (sum_ - 3.0)) + rest
    product, product_low = _times(s, s_low, sum_, sum_low)
    scaled, scaled_low = _times(product, product_low, constant(_CP, x.dtype), _CP_LOW)
    zero = constant(0.0, x.dtype)
    shift, shift_low = (select(upper, zero + part, zero) for part in _LOG2_OF_BASE)
    whole, error = _plus(exponent, shift)
    total, error2 = _plus(whole, scaled)
    return _plus(total, ((shift_low + scaled_low) + error) + error2)


def _times(a: Expr, a_low: Expr, b: Expr, b_low: Expr | float) -> tuple[Expr, Expr]:
    """Return the product of a + a_low and b + b_low, as the sum of a large and a small number."""
    product = a * b
    return product, fma(a, b, -product) + (a * b_low + a_low * b)


def _plus(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return the sum of two numbers and its rounding error (Knuth's two-sum)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


_CP, _CP_LOW = 0.9617966939259756, 5.0577616648125907e-17
"""2 / (3 ln 2), as the sum of two numbers."""
_LOG2_OF_BASE = (0.5849625007211562, -5.224490061390109e-18)
"""log2(3/2), as the sum of two numbers."""
_POW_LOG = (
    5.99999999999994648725e-01,
    4.28571428578550184252e-01,
    3.33333329818377432918e-01,
    2.72728123808534006489e-01,
    2.30660745775561754067e-01,
    2.06975017800338417784e-01,
)


def _pow_limits(x: Expr, y: Expr, magnitude: Expr, value: Expr) -> Expr:
    """Return x**y from `value`, which is valid for a finite, positive |x| only.

    Adds the special cases of C's pow: zeros, infinities, NaN and negative bases.
    """
    one = constant(1.0, x.dtype)
    zero = constant(0.0, x.dtype)
    infinite = constant(INFINITY, x.dtype)
    grows = op(Operation.NE, less(1.0, magnitude), less(y, 0.0))
    endless = equal(absolute(y), INFINITY)
    # An infinite exponent, or a base that is 0 or infinite, gives 0 or inf: `grows` says which.
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
    # The sign of -0 counts as well: 1 / -0 is -inf.
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
