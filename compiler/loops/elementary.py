"""Pieces that the mathematical functions share: short names, polynomials, argument reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.dtypes import DType
from compiler.errors import CompilerError
from compiler.loops.expr import Cast, Expr, Operation, constant, op

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
# ln 2 in two parts: the first has 9 bits, so that its product with an exponent is exact.
LN2_HIGH = 0.693359375
LN2_LOW = -2.12194440054690581e-4
INFINITY = float("inf")
NARROW = (DType.FLOAT16, DType.BFLOAT16)


def fma(a: Expr | float, b: Expr | float, c: Expr | float) -> Expr:
    """a*b + c, rounded once where the target has the instruction."""
    return op(Operation.FMA, a, b, c)


def maximum(a: Expr | float, b: Expr | float) -> Expr:
    """The larger one; beside a constant, NaN passes through."""
    return op(Operation.MAX, a, b)


def minimum(a: Expr | float, b: Expr | float) -> Expr:
    """The smaller one; beside a constant, NaN passes through."""
    return op(Operation.MIN, a, b)


def absolute(x: Expr) -> Expr:
    """|x|."""
    return op(Operation.ABS, x)


def less(a: Expr | float, b: Expr | float) -> Expr:
    """a < b, false beside NaN."""
    return op(Operation.LT, a, b)


def equal(a: Expr | float, b: Expr | float) -> Expr:
    """a == b, false beside NaN."""
    return op(Operation.EQ, a, b)


def select(condition: Expr, if_true: Expr, if_false: Expr) -> Expr:
    """One of two values."""
    return op(Operation.SELECT, condition, if_true, if_false)


def not_a_number(dtype: DType) -> Expr:
    """NaN as inf - inf: a constant NaN would differ from itself, and so would its expression."""
    return constant(INFINITY, dtype) - INFINITY


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule; coefficients from the constant term up."""
    result = constant(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def split_exponent(x: Expr) -> tuple[Expr, Expr]:
    """e and f of x = 2**e (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1), for positive x."""
    subnormal = less(x, 1.17549435e-38)
    normal = select(subnormal, x * 8388608.0, x)
    mantissa = op(Operation.MANTISSA, normal)
    exponent = op(Operation.EXPONENT, normal) + select(
        subnormal, constant(-23.0, x.dtype), constant(0.0, x.dtype)
    )
    high = less(1.4142135, mantissa)
    return (
        select(high, exponent + 1.0, exponent),
        select(high, mantissa * 0.5, mantissa) - 1.0,
    )


def reduce_exponent(x: Expr) -> tuple[Expr, Expr]:
    """n and r of x = n ln 2 + r, |r| <= ln(2) / 2."""
    n = op(Operation.RINT, x * LOG2_E)
    return n, fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))


def exp_tail(r: Expr) -> Expr:
    """(e**r - 1 - r) / r**2."""
    return polynomial(
        r,
        (
            0.499999934477676,
            0.16666520631511766,
            0.04166838805112139,
            0.008368716898083208,
            0.0013814598366013334,
        ),
    )


def in_float32(name: str, x: Expr, function: Callable[[Expr], Expr]) -> Expr:
    """Apply a float32 function, through casts for the narrower types.

    Raises:
        CompilerError: for float64 and for integers.
    """
    if x.dtype in NARROW:
        return Cast(function(Cast(x, DType.FLOAT32)), x.dtype)
    if x.dtype is not DType.FLOAT32:
        raise CompilerError(f"{name}: no {x.dtype} implementation, only float32 and narrower")
    return function(x)
