"""Hyperbolic functions and their inverses, computed from exponentials and logarithms."""

from __future__ import annotations

from tilewright.compiler.loops.elementary import (
    LN2,
    absolute,
    by_type,
    in_float,
    less,
    not_a_number,
    select,
    with_sign_of,
)
from tilewright.compiler.loops.exponential import exp_of, expm1_of, log1p_of
from tilewright.compiler.loops.expr import Expr, Operation, constant, op


def sinh(x: Expr) -> Expr:
    """Hyperbolic sine; relative error <= 5e-7 (float32), 1e-15 (float64), near 0 too.

    Computed as (t + t / (t + 1)) / 2 with t = e**|x| - 1; where t overflows, as (e**(|x| / 2))**2 /
    2. The sign is restored afterwards.
    """
    return in_float("sinh", x, _sinh)


def _sinh(x: Expr) -> Expr:
    magnitude = absolute(x)
    t = expm1_of(magnitude)
    small = (t + t / (t + 1.0)) * 0.5
    value = select(less(magnitude, _large(x)), small, _half_of_exp(magnitude))
    return select(less(magnitude, _tiny(x)), x, with_sign_of(x, value))


def cosh(x: Expr) -> Expr:
    """Hyperbolic cosine, (e**|x| + e**-|x|) / 2.

    Relative error <= 5e-7 (float32), 1e-15 (float64).
    """
    return in_float("cosh", x, _cosh)


def _cosh(x: Expr) -> Expr:
    magnitude = absolute(x)
    power = exp_of(magnitude)
    small = (power + 1.0 / power) * 0.5
    return select(less(magnitude, _large(x)), small, _half_of_exp(magnitude))


def _half_of_exp(x: Expr) -> Expr:
    """Return e**x / 2, computed without e**x.

    The result may be finite where e**x overflows.
    """
    root = exp_of(x * 0.5)
    return root * 0.5 * root


def _large(x: Expr) -> float:
    """A limit for x, beyond which e**x may overflow; it depends on the type of x only.

    Even at the limit, e**-x is negligible compared with e**x.
    """
    return by_type(x, 88.0, 709.0)


def _tiny(x: Expr) -> float:
    """The largest |x| for which an odd function with slope 1 at 0 is computed as x itself.

    The next term of the function's Taylor series is then below the rounding error. The limit
    depends on the type of x only.
    """
    return by_type(x, 1e-5, 1e-9)


def asinh(x: Expr) -> Expr:
    """Inverse hyperbolic sine; relative error <= 5e-7 (float32), 1e-15 (float64), near 0 too.

    Computed as log1p(a + a**2 / (1 + sqrt(1 + a**2))) with a = |x|; for large a, as log(a) + ln 2.
    The sign is restored afterwards.
    """
    return in_float("asinh", x, _asinh)


def _asinh(x: Expr) -> Expr:
    magnitude = absolute(x)
    square = magnitude * magnitude
    inside = magnitude + square / (op(Operation.SQRT, square + 1.0) + 1.0)
    value = _log1p_or_of_double(magnitude, inside)
    return select(less(magnitude, _tiny(x)), x, with_sign_of(x, value))


def acosh(x: Expr) -> Expr:
    """Inverse hyperbolic cosine; relative error <= 5e-7 (float32), 1e-15 (float64); NaN below 1.

    Computed as log1p(t + sqrt(t (t + 2))) with t = x - 1; for large x, as log(x) + ln 2.
    """
    return in_float("acosh", x, _acosh)


def _acosh(x: Expr) -> Expr:
    t = x - 1.0
    inside = t + op(Operation.SQRT, t * (t + 2.0))
    return select(less(x, 1.0), not_a_number(x.dtype), _log1p_or_of_double(x, inside))


def _log1p_or_of_double(x: Expr, inside: Expr) -> Expr:
    """Return log1p(inside), or log(2 x) for large x.

    `inside` contains a square of x, which overflows for large x.
    """
    large = less(by_type(x, 1e9, 1e18), x)
    value = log1p_of(select(large, x, inside))
    return value + select(large, constant(LN2, x.dtype), constant(0.0, x.dtype))


def atanh(x: Expr) -> Expr:
    """Inverse hyperbolic tangent, log1p(2 |x| / (1 - |x|)) / 2 with the sign of x.

    Relative error <= 5e-7 (float32), 1e-15 (float64). The result is +-inf at +-1 and NaN beyond.
    """
    return in_float("atanh", x, _atanh)


def _atanh(x: Expr) -> Expr:
    magnitude = absolute(x)
    value = log1p_of(magnitude * 2.0 / (1.0 - magnitude)) * 0.5
    return select(less(magnitude, _tiny(x)), x, with_sign_of(x, value))
