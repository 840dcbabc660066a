"""Helpers for mathematical functions: short names for operations, polynomials, argument reduction.

float32 and float64 differ in constants, mostly coefficients: `by_type` selects them. A polynomial
without a source is a Chebyshev or minimax fit of the named function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.loops.expr import Cast, Expr, Operation, constant, op

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
INFINITY = float("inf")
NARROW = (DType.FLOAT16, DType.BFLOAT16)

_T = TypeVar("_T")


def by_type(x: Expr, single: _T, double: _T) -> _T:
    """Return `double` if the expression is float64, else `single`."""
    return double if x.dtype is DType.FLOAT64 else single


def ln2_parts(x: Expr) -> tuple[float, float]:
    """Return ln 2 as the sum of two constants.

    The first constant has so few bits that its product with an exponent is exact.
    """
    return by_type(
        x,
        (0.693359375, -2.12194440054690581e-4),
        (6.93147180369123816490e-01, 1.90821492927058770002e-10),
    )


def fma(a: Expr | float, b: Expr | float, c: Expr | float) -> Expr:
    """Return a*b + c as an expression, rounded once if the target has an FMA instruction."""
    return op(Operation.FMA, a, b, c)


def maximum(a: Expr | float, b: Expr | float) -> Expr:
    """Return the maximum of two operands as an expression.

    If one operand is a constant and the other is NaN, the result is NaN. If neither operand is a
    constant and one is NaN, the result is `b`.
    """
    return op(Operation.MAX, a, b)


def minimum(a: Expr | float, b: Expr | float) -> Expr:
    """Return the minimum of two operands as an expression.

    If one operand is a constant and the other is NaN, the result is NaN. If neither operand is a
    constant and one is NaN, the result is `b`.
    """
    return op(Operation.MIN, a, b)


def absolute(x: Expr) -> Expr:
    """Return the absolute value of an expression."""
    return op(Operation.ABS, x)


def less(a: Expr | float, b: Expr | float) -> Expr:
    """Return the comparison a < b as an expression; it is false if an operand is NaN."""
    return op(Operation.LT, a, b)


def equal(a: Expr | float, b: Expr | float) -> Expr:
    """Return the comparison a == b as an expression; it is false if an operand is NaN."""
    return op(Operation.EQ, a, b)


def select(condition: Expr, if_true: Expr, if_false: Expr) -> Expr:
    """Return an expression that is `if_true` where the condition holds, else `if_false`."""
    return op(Operation.SELECT, condition, if_true, if_false)


def not_a_number(dtype: DType) -> Expr:
    """Return NaN as the expression inf - inf.

    A constant NaN is not equal to itself. An expression with such a constant would therefore
    compare as different from its own copy.
    """
    return constant(INFINITY, dtype) - INFINITY


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Evaluate a polynomial by Horner's rule, with coefficients from the constant term up."""
    result = constant(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def split_exponent(x: Expr) -> tuple[Expr, Expr]:
    """Split a positive x into e and f, so that x = 2**e (1 + f).

    f is in [sqrt(1/2) - 1, sqrt(2) - 1).
    """
    smallest, bits = by_type(x, (1.17549435e-38, 23), (2.2250738585072014e-308, 52))
    subnormal = less(x, smallest)
    normal = select(subnormal, x * 2.0**bits, x)
    mantissa = op(Operation.MANTISSA, normal)
    exponent = op(Operation.EXPONENT, normal) + select(
        subnormal, constant(float(-bits), x.dtype), constant(0.0, x.dtype)
    )
    return centred(exponent, mantissa)


def centred(exponent: Expr, mantissa: Expr) -> tuple[Expr, Expr]:
    """Return e and f, so that 2**exponent * mantissa = 2**e (1 + f), for a mantissa in [1, 2).

    f is in [sqrt(1/2) - 1, sqrt(2) - 1).
    """
    high = less(by_type(mantissa, 1.4142135, 1.4142135623730951), mantissa)
    return (
        select(high, exponent + 1.0, exponent),
        select(high, mantissa * 0.5, mantissa) - 1.0,
    )


def reduce_exponent(x: Expr) -> tuple[Expr, Expr]:
    """Split x into n and r, so that x = n ln 2 + r with an integer n and |r| <= ln(2) / 2."""
    high, low = ln2_parts(x)
    n = op(Operation.RINT, x * LOG2_E)
    return n, fma(n, -low, fma(n, -high, x))


def exp_tail(r: Expr) -> Expr:
    """Return (e**r - 1 - r) / r**2 for |r| <= ln(2) / 2.

    The error is at most 3e-9 (float32) or 1.4e-18 (float64).
    """
    return polynomial(r, by_type(r, _EXP_TAIL, _EXP_TAIL_DOUBLE))


_EXP_TAIL = (
    0.499999934477676,
    0.16666520631511766,
    0.04166838805112139,
    0.008368716898083208,
    0.0013814598366013334,
)
_EXP_TAIL_DOUBLE = (
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326141,
    0.0013888888888883752,
    0.00019841269874800493,
    2.4801587325533363e-05,
    2.7557255425746435e-06,
    2.7557273661348637e-07,
    2.510520637395701e-08,
    2.0914679376583935e-09,
)


def with_sign_of(x: Expr, magnitude: Expr) -> Expr:
    """Return the value of an odd function at x, given its value `magnitude` at |x|.

    The sign of zero is lost; the caller handles x = -0.0 if necessary.
    """
    return select(less(x, 0.0), -magnitude, magnitude)


def in_float(name: str, x: Expr, function: Callable[[Expr], Expr]) -> Expr:
    """Apply a function for float32 and float64 to an expression of any float type.

    An argument of type float16 or bfloat16 is cast to float32, and the result is cast back.

    Args:
        name: the name of the function, for the error message.
        x: the argument.
        function: maps a float32 or float64 expression to one of the same type.

    Raises:
        CompilerError: if `x` is not a float.
    """
    if x.dtype in NARROW:
        return Cast(function(Cast(x, DType.FLOAT32)), x.dtype)
    if not x.dtype.is_float:
        raise CompilerError(f"{name}: no {x.dtype} implementation, only floats")
    return function(x)
