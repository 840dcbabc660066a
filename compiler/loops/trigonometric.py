"""Sine, cosine and tangent, as tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import pi

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.elementary import (
    INFINITY,
    absolute,
    equal,
    fma,
    in_float,
    less,
    maximum,
    polynomial,
    select,
    with_sign_of,
)
from tilewright.compiler.loops.expr import Cast, Expr, Operation, op


def sin(x: Expr) -> Expr:
    """Sine, for every argument; relative error <= 6.2e-8 (float32), 4e-16 (float64).

    NaN at infinity.
    """
    return in_float("sin", x, lambda v: _odd(v, lambda t: _sine(t, 0)))


def cos(x: Expr) -> Expr:
    """Cosine, for every argument; relative error <= 6.2e-8 (float32), 4e-16 (float64).

    NaN at infinity.
    """
    return in_float("cos", x, lambda v: _even(v, lambda t: _sine(t, 1)))


def tan(x: Expr) -> Expr:
    """Tangent, for every argument; relative error <= 6.2e-8 (float32), 8e-16 (float64).

    NaN at infinity.
    """
    return in_float("tan", x, lambda v: _odd(v, _tangent))


@dataclass(frozen=True, slots=True)
class _Turned:
    """An angle x = (n + r) pi / 2, with an integer n and |r| <= 1/2, reduced for sine and cosine.

    Attributes:
        n: the number of quarter turns.
        sine, cosine: the sine and the cosine of r pi / 2, in float64.
    """

    n: Expr
    sine: Expr
    cosine: Expr


def _even(x: Expr, function: Callable[[_Turned], Expr]) -> Expr:
    """Return a trigonometric function of |x|, as `function` computes it from the reduced angle.

    The result has the type of x. All computations are in float64.
    """
    magnitude = absolute(x)
    if x.dtype is DType.FLOAT32:
        n, r = _quarter_turns(
            (Cast(magnitude, DType.FLOAT64),), width=29, reach=128, bits=190, scale=0
        )
        return Cast(function(_turned(n, r, _SINE, _COSINE)), DType.FLOAT32)
    # Two parts of 26 and 27 bits, scaled so that they neither overflow nor underflow.
    normal = maximum(magnitude, 1e-300)
    exponent, mantissa = op(Operation.EXPONENT, normal), op(Operation.MANTISSA, normal)
    high = op(Operation.FLOOR, mantissa * 2.0 ** (_FIRST_PART - 1)) * 2.0 ** (1 - _FIRST_PART)
    scaled = exponent - float(_SCALE)
    parts = tuple(op(Operation.SCALE, part, scaled) for part in (high, mantissa - high))
    n, r = _quarter_turns(parts, width=24, reach=1024, bits=1140, scale=_SCALE)
    value = function(_turned(n, r, _SINE_DOUBLE, _COSINE_DOUBLE))
    return select(less(magnitude, INFINITY), value, x - x)


def _odd(x: Expr, function: Callable[[_Turned], Expr]) -> Expr:
    small = less(absolute(x), 1e-4 if x.dtype is DType.FLOAT32 else 1e-9)
    return select(small, x, with_sign_of(x, _even(x, function)))


def _quarter_turns(
    parts: Sequence[Expr], width: int, reach: int, bits: int, scale: int
) -> tuple[Expr, Expr]:
    """Reduce an angle x = sum(parts) 2**scale: return n and r of x = (n + r) pi / 2.

    n is an integer that is correct up to a multiple of 4, and |r| <= 1/2.

    The method is by Payne and Hanek (1983), without a table that is read at run time. 2/pi is a sum
    of chunks of `width` bits, so that the product of a chunk and a part of x is exact, and its
    remainder modulo 4 too. For any x, most products are multiples of 4 or negligible. The remaining
    ones are added from the largest to the smallest, and only the last bit of r is rounded.

    Args:
        parts: summands of x 2**-scale, the largest first.
        width: the number of bits of each chunk of 2/pi.
        reach: the exponent of the largest possible argument, which is below 2**reach.
        bits: the number of bits of 2/pi to use. It is at least a sum of three numbers: `reach`; 62
            bits, because a float64 is never closer than 2**-62 to a multiple of pi / 2; and 54 bits
            for the digits of r. For float32, the last two numbers are 30 and 30.
        scale: the exponent by which the parts are scaled down.
    """
    products: list[tuple[int, Expr]] = []
    for position, piece in enumerate(_two_over_pi(width, bits, scale)):
        for below, part in enumerate(parts):
            product = part * piece
            if reach - position * width > 0:
                fours = op(Operation.RINT, product * 0.25)
                product = fma(fours, -4.0, product)
            products.append((position * width + below * _FIRST_PART, product))
    rests = [product for _, product in sorted(products, key=lambda item: item[0])]
    total = rests[0]
    for rest in rests[1:]:
        total = total + rest
    n = op(Operation.RINT, total)
    r = rests[0] - n
    for rest in rests[1:]:
        r = r + rest
    return n, r


_SCALE = 512
_FIRST_PART = 26
"""Number of bits of the first of the two parts into which a mantissa is split."""


@cache
def _two_over_pi(width: int, bits: int, scale: int) -> tuple[float, ...]:
    """The first `bits` bits of 2/pi, times 2**scale, as a sum of numbers of `width` bits each."""
    known = 4 * len(_TWO_OVER_PI)
    value = int(_TWO_OVER_PI, 16)
    count = -(-bits // width)
    assert count * width <= known
    ends = [width * (i + 1) for i in range(count)]
    return tuple(
        float(value >> known - end & (1 << width) - 1) * 2.0 ** (scale - end) for end in ends
    )


_TWO_OVER_PI = (
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebb"
    "c561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73ee88235f5"
    "2ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff8"
    "97ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d"
    "7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b"
)
"""The first digits of 2/pi after the point, in hexadecimal."""


def _turned(n: Expr, r: Expr, sine: Sequence[float], cosine: Sequence[float]) -> _Turned:
    angle = fma(r, pi / 2, r * _HALF_PI_LOW)
    square = angle * angle
    return _Turned(
        n,
        fma(angle * square, polynomial(square, sine), angle),
        fma(square * square, polynomial(square, cosine), fma(square, -0.5, 1.0)),
    )


_HALF_PI_LOW = 6.123233995736766e-17
"""The rounding error of pi / 2 in float64: pi / 2 - float64(pi / 2)."""


def _sine(turned: _Turned, quarter_turns: int) -> Expr:
    """Return the sine of an angle plus a number of quarter turns.

    With one quarter turn, this is the cosine of the angle.
    """
    turns = turned.n + float(quarter_turns) if quarter_turns else turned.n
    quadrant = fma(op(Operation.FLOOR, turns * 0.25), -4.0, turns)
    odd = op(Operation.OR, equal(quadrant, 1.0), equal(quadrant, 3.0))
    value = select(odd, turned.cosine, turned.sine)
    return select(less(1.5, quadrant), -value, value)


def _tangent(turned: _Turned) -> Expr:
    half = turned.n * 0.5
    even = equal(op(Operation.FLOOR, half), half)
    above = select(even, turned.sine, -turned.cosine)
    return above / select(even, turned.cosine, turned.sine)


# (sin(x) - x) / x**3 and (cos(x) - 1 + x**2 / 2) / x**4 over x**2
_SINE = (
    -0.16666666663741367,
    0.00833333183062943,
    -0.00019840063040804117,
    2.7246868722877944e-06,
)
_COSINE = (
    0.04166666666422613,
    -0.0013888887635227975,
    2.4800580601354642e-05,
    -2.7298407652795173e-07,
)
_SINE_DOUBLE = (
    -0.16666666666666666,
    0.008333333333330827,
    -0.0001984126983657571,
    2.755731600817155e-06,
    -2.5051112272573243e-08,
    1.5916726193889336e-10,
)
_COSINE_DOUBLE = (
    0.041666666666666664,
    -0.0013888888888887322,
    2.4801587298651292e-05,
    -2.755731721268659e-07,
    2.0876134024090145e-09,
    -1.1381754653662937e-11,
)
