"""Exponential and logarithmic functions, as tensor expressions."""

from __future__ import annotations

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.elementary import (
    INFINITY,
    LOG2_E,
    absolute,
    by_type,
    centred,
    equal,
    exp_tail,
    fma,
    in_float,
    less,
    ln2_parts,
    maximum,
    minimum,
    not_a_number,
    polynomial,
    reduce_exponent,
    select,
    split_exponent,
)
from tilewright.compiler.loops.expr import Expr, Operation, constant, op


def exp(x: Expr) -> Expr:
    """Return e**x; relative error <= 1.2e-7 (float32), 2.5e-16 (float64).

    Subnormal results have an additional error of half an ulp. With n = rint(x / ln 2) and r = x - n
    ln 2, the result is 2**n * (1 + r + r**2 P(r)), where P is a polynomial.
    """
    return in_float("exp", x, exp_of)


def exp_of(x: Expr) -> Expr:
    """Return e**x for a float32 or float64 expression; other types must use `exp`."""
    # Beyond the limits the result is 0 or infinite; within them every step is finite.
    lowest, highest = by_type(x, (-104.0, 89.0), (-746.0, 710.0))
    n, r = reduce_exponent(maximum(minimum(x, highest), lowest))
    return op(Operation.SCALE, fma(exp_tail(r), r * r, r) + 1.0, n)


def exp_of_negative(x: Expr) -> Expr:
    """Return e**x for x <= 0, accurate enough for softmax, in two thirds of the time of `exp`.

    float32: absolute error <= 1.6e-7, relative error <= 1.8e-7 (1 + |x| / 2). With n = rint(x / ln
    2) and r = x / ln 2 - n, the result is 2**n P(r) for a polynomial P, and exactly 1 for x = 0.
    float64 uses `exp`.
    """
    return in_float("exp_of_negative", x, _exp_of_negative)


def _exp_of_negative(x: Expr) -> Expr:
    if x.dtype is DType.FLOAT64:
        return exp_of(x)
    x = maximum(x, -104.0)
    n = op(Operation.RINT, x * LOG2_E)
    return op(Operation.SCALE, polynomial(fma(x, LOG2_E, -n), _POWER_OF_2), n)


_POWER_OF_2 = (
    1.0,
    0.6931469763830662,
    0.24022240460641392,
    0.05550735031329834,
    0.009671618998826483,
    0.001326459082648581,
)


def expm1(x: Expr) -> Expr:
    """Return e**x - 1; relative error <= 3e-7 (float32), 5e-16 (float64), near 0 too."""
    return in_float("expm1", x, expm1_of)


def expm1_of(x: Expr) -> Expr:
    """Return e**x - 1 for a float32 or float64 expression; other types must use `expm1`."""
    lowest, highest = by_type(x, (-30.0, 89.0), (-40.0, 710.0))
    n, r = reduce_exponent(maximum(minimum(x, highest), lowest))
    p = fma(exp_tail(r), r * r, r)
    # For the largest results 2**n overflows, but half of it does not.
    half = op(Operation.SCALE, constant(1.0, x.dtype), n - 1.0)
    result = fma(p, half, half - 0.5) * 2.0
    # This keeps the sign of zero, and subnormal values.
    return select(less(absolute(x), by_type(x, 1e-10, 1e-20)), x, result)


def log(x: Expr) -> Expr:
    """Return the natural logarithm; relative error <= 1.2e-7 (float32), 2.5e-16 (float64).

    The result is -inf at 0 and NaN below. x is split into 2**e (1 + f), with 1 + f in [sqrt(1/2),
    sqrt(2)). For float32, log(1 + f) = f - f**2 / 2 + f**3 Q(f). For float64, log(1 + f) = f - f**2
    / 2 + s (f**2 / 2 + R(s**2)) with s = f / (2 + f), as in FreeBSD's msun. Q and R are
    polynomials.
    """
    return in_float("log", x, _log)


def _log(x: Expr) -> Expr:
    exponent, f = split_exponent(x)
    return _log_limits(x, _log_of_parts(exponent, f, None))


def log_normal(x: Expr) -> Expr:
    """Return the natural logarithm of a positive normal number, with fewer operations than `log`.

    The result is NaN for infinity and NaN, and undefined for zeros, negative and subnormal numbers.
    """
    return in_float("log_normal", x, _log_normal)


def _log_normal(x: Expr) -> Expr:
    mantissa, exponent = op(Operation.MANTISSA, x), op(Operation.EXPONENT, x)
    return _log_of_parts(*centred(exponent, mantissa), None) + (x - x)


def _log_of_parts(exponent: Expr, f: Expr, correction: Expr | None) -> Expr:
    """Return log(2**exponent * (1 + f + correction)); a correction of None counts as 0.

    The sum adds small terms before large ones, to reduce rounding errors.
    """
    high, low = ln2_parts(f)
    square = f * f
    tail = by_type(f, _log_tail, _log_tail_double)(f, square)
    tail = fma(exponent, low, tail)
    if correction is not None:
        tail = tail + correction
    return fma(exponent, high, fma(square, -0.5, tail) + f)


def _log_tail(f: Expr, square: Expr) -> Expr:
    """Return log(1 + f) - f + f**2 / 2 for a float32 f, computed as f**3 Q(f) with a polynomial Q.

    `square` is f**2.
    """
    return f * square * polynomial(f, _LOG)


_LOG = (
    0.33333331707704703,
    -0.2500082103550087,
    0.200012268654053,
    -0.16623357298098485,
    0.1420175823379032,
    -0.13160183062653216,
    0.1276157564365747,
    -0.07634493023743867,
)


def _log_tail_double(f: Expr, square: Expr) -> Expr:
    s = f / (f + 2.0)
    z = s * s
    return s * fma(square, 0.5, z * polynomial(z, _LOG_DOUBLE))


_LOG_DOUBLE = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)


def _log_limits(x: Expr, result: Expr) -> Expr:
    """Return the logarithm of x from `result`, which is valid for 0 < x < inf only.

    The logarithm is -inf at 0, NaN below 0, inf at inf, and NaN at NaN.
    """
    nan = select(less(x, 0.0), not_a_number(x.dtype), x)
    edge = select(equal(x, 0.0), constant(-INFINITY, x.dtype), nan)
    inside = op(Operation.AND, less(0.0, x), less(x, INFINITY))
    return select(inside, result, edge)


def log1p(x: Expr) -> Expr:
    """Return log(1 + x); relative error <= 3e-7 (float32), 5e-16 (float64), near 0 too.

    The result is -inf at -1 and NaN below.
    """
    return in_float("log1p", x, log1p_of)


def log1p_of(x: Expr) -> Expr:
    """Return log(1 + x) for a float32 or float64 expression; other types must use `log1p`."""
    u = x + 1.0
    exponent, f = split_exponent(u)
    # The rounding error of 1 + x, divided by u: (x - (u - 1)) / u.
    lost = x - (u - 1.0)
    large = less(by_type(x, 2.0**24, 2.0**53), u)
    correction = select(large, constant(0.0, x.dtype), lost / u)
    result = _log_limits(u, _log_of_parts(exponent, f, correction))
    return select(less(absolute(x), by_type(x, 1e-10, 1e-20)), x, result)
