"""Inverse trigonometric functions, as tensor expressions."""

from __future__ import annotations

from math import pi

from tilewright.compiler.loops.elementary import (
    absolute,
    by_type,
    fma,
    in_float,
    less,
    polynomial,
    select,
    with_sign_of,
)
from tilewright.compiler.loops.expr import Expr, Operation, constant, op

_PI_LOW = 1.2246467991473532e-16
"""The rounding error of pi in float64: pi - float64(pi)."""


def asin(x: Expr) -> Expr:
    """Inverse sine; relative error <= 2.4e-7 (float32), 5e-16 (float64), near 0 too.

    The result is NaN beyond +-1.
    """
    return in_float("asin", x, _asin)


def _asin(x: Expr) -> Expr:
    magnitude = absolute(x)
    inside = less(magnitude, 0.5)
    arc = _small_arc(magnitude, inside)
    value = select(inside, arc, fma(arc, -2.0, _low(x, 0.5)) + pi / 2)
    return select(less(magnitude, by_type(x, 1e-5, 1e-9)), x, with_sign_of(x, value))


def acos(x: Expr) -> Expr:
    """Inverse cosine; relative error <= 2.4e-7 (float32), 5e-16 (float64).

    The result is NaN beyond +-1.
    """
    return in_float("acos", x, _acos)


def _acos(x: Expr) -> Expr:
    magnitude = absolute(x)
    inside = less(magnitude, 0.5)
    arc = _small_arc(magnitude, inside)
    middle = (_low(x, 0.5) - with_sign_of(x, arc)) + pi / 2
    double = arc * 2.0
    outside = select(less(x, 0.0), (_low(x, 1.0) - double) + pi, double)
    return select(inside, middle, outside)


def _small_arc(magnitude: Expr, inside: Expr) -> Expr:
    """Return asin(x) for x in [0, 1/2], else asin(sqrt((1 - x) / 2)), which is acos(x) / 2.

    `magnitude` is x, and `inside` is the condition x < 1/2.
    """
    square = select(inside, magnitude * magnitude, (1.0 - magnitude) * 0.5)
    x = select(inside, magnitude, op(Operation.SQRT, square))
    return fma(x * square, polynomial(square, by_type(x, _ASIN, _ASIN_DOUBLE)), x)


def _low(x: Expr, share: float) -> Expr:
    """Return share * (pi - p), where p is pi rounded to the type of x.

    Callers add this correction to a result that contains share * p.
    """
    single = pi - 3.1415927410125732
    return constant(share * by_type(x, single, _PI_LOW), x.dtype)


def atan(x: Expr) -> Expr:
    """Inverse tangent; relative error <= 2.4e-7 (float32), 5e-16 (float64), near 0 too.

    Two identities reduce the argument to at most tan(pi / 8): atan(a) = pi/4 + atan((a - 1) / (a +
    1)) and atan(a) = pi/2 + atan(-1 / a).
    """
    return in_float("atan", x, _atan)


def _atan(x: Expr) -> Expr:
    magnitude = absolute(x)
    middle, steep = (less(edge, magnitude) for edge in (0.4142135623730951, 2.414213562373095))
    zero = constant(0.0, x.dtype)
    above = select(steep, constant(-1.0, x.dtype), select(middle, magnitude - 1.0, magnitude))
    below = select(steep, magnitude, select(middle, magnitude + 1.0, zero + 1.0))
    base = select(steep, zero + pi / 2, select(middle, zero + pi / 4, zero))
    low = select(steep, _low(x, 0.5), select(middle, _low(x, 0.25), zero))
    t = above / below
    square = t * t
    rest = fma(t * square, polynomial(square, by_type(x, _ATAN, _ATAN_DOUBLE)), low)
    value = base + (t + rest)
    return select(less(magnitude, by_type(x, 1e-5, 1e-9)), x, with_sign_of(x, value))


# (asin(x) - x) / x**3 and (atan(x) - x) / x**3 over x**2
_ASIN = (
    0.16666672414795305,
    0.07498855072600821,
    0.04500138006991017,
    0.026554542206161328,
    0.038085023561092654,
)
_ASIN_DOUBLE = (
    0.16666666666666669,
    0.07499999999998433,
    0.04464285714635543,
    0.030381944138531247,
    0.02237217294214989,
    0.017352392720869973,
    0.013971212973552933,
    0.011479177415184906,
    0.01032281435018578,
    0.005457506718640358,
    0.01740087944269402,
    -0.014851887071247204,
    0.028757851367421566,
)
_ATAN = (
    -0.3333333175381697,
    0.1999953879477192,
    -0.14263897112598675,
    0.1074309966767457,
    -0.06449835224591496,
)
_ATAN_DOUBLE = (
    -0.3333333333333333,
    0.1999999999999548,
    -0.14285714284657894,
    0.11111111014561013,
    -0.09090904549884611,
    0.07692182535116648,
    -0.06664502215671447,
    0.058580687568615106,
    -0.05085030492810941,
    0.03921955253255129,
    -0.019162068915902573,
)
