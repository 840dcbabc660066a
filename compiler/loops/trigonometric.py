"""Sine and cosine."""

from __future__ import annotations

from compiler.loops.elementary import (
    equal,
    fma,
    in_float32,
    less,
    maximum,
    minimum,
    polynomial,
    select,
)
from compiler.loops.expr import Expr, Operation, op


def sin(x: Expr) -> Expr:
    """Sine; absolute error <= 1.2e-7 for |x| <= 8192 (1e-6 for |x| <= 1e5); NaN at infinity.

    Larger arguments give some number between -1 and 1: no operation here has the bits to reduce
    them.
    """
    return in_float32("sin", x, lambda v: _sine(v, 0))


def cos(x: Expr) -> Expr:
    """Cosine; bounds as `sin`."""
    return in_float32("cos", x, lambda v: _sine(v, 1))


def _sine(x: Expr, quarter_turns: int) -> Expr:
    """sin(x + quarter_turns pi/2), by reduction to |r| <= pi/4 and one of two polynomials."""
    n = op(Operation.RINT, x * 0.6366197723675814)
    r = x
    # pi/2 in parts of 10 or 11 bits: their products with n are exact up to n = 8192
    for part in (1.5703125, 4.8351287841796875e-4, 3.1385570764541626e-07, 6.0771005065061922e-11):
        r = fma(n, -part, r)
    # for huge arguments the reduction is lost; the result stays a sine
    r = maximum(minimum(r, 0.8), -0.8)
    square = r * r
    sine = fma(
        r * square,
        polynomial(square, (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)),
        r,
    )
    cosine = fma(
        square * square,
        polynomial(square, (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)),
        fma(square, -0.5, 1.0),
    )
    turns = n + float(quarter_turns) if quarter_turns else n
    quadrant = fma(op(Operation.FLOOR, turns * 0.25), -4.0, turns)
    odd = op(Operation.OR, equal(quadrant, 1.0), equal(quadrant, 3.0))
    value = select(odd, cosine, sine)
    return select(less(1.5, quadrant), -value, value)
