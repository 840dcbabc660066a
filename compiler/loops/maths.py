"""Mathematical functions as expressions over native operations.

Every target gets the same code, and kernels call no C library. float32 is native; float16 and
bfloat16 are computed in float32. Bounds hold for float32 arguments, with fused multiply-adds or
without, and are tested over the whole range; an ulp is the distance between neighbouring floats.
NaN gives NaN, infinities give their limits, subnormal arguments and results are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.loops.elementary import (
    INFINITY,
    LN2_HIGH,
    LN2_LOW,
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
    reduce_exponent,
    select,
    split_exponent,
)
from compiler.loops.expr import Expr, Operation, constant, op
from compiler.loops.power import pow
from compiler.loops.trigonometric import cos, sin

__all__ = [
    "absolute",
    "cos",
    "erf",
    "exp",
    "expm1",
    "fma",
    "gelu",
    "gelu_tanh",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "polynomial",
    "pow",
    "rsqrt",
    "select",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "tanh",
]


def exp(x: Expr) -> Expr:
    """e**x; relative error <= 1.2e-7 (2 ulp; subnormal results: half a ulp more).

    n = rint(x / ln 2), r = x - n ln 2, then 2**n * (1 + r + r**2 P(r)). P is a minimax polynomial
    of degree 4 for |r| <= ln(2) / 2, with an approximation error of 3e-9.
    """
    return in_float32("exp", x, _exp)


def _exp(x: Expr) -> Expr:
    # beyond the limits the result is 0 or infinite; within them every step is finite
    n, r = reduce_exponent(maximum(minimum(x, 89.0), -104.0))
    return op(Operation.SCALE, fma(exp_tail(r), r * r, r) + 1.0, n)


def expm1(x: Expr) -> Expr:
    """e**x - 1; relative error <= 3e-7 (3 ulp), near 0 too."""
    return in_float32("expm1", x, _expm1)


def _expm1(x: Expr) -> Expr:
    n, r = reduce_exponent(maximum(minimum(x, 89.0), -30.0))
    p = fma(exp_tail(r), r * r, r)
    # 2**n overflows for the largest results, half of it does not
    half = op(Operation.SCALE, constant(1.0, x.dtype), n - 1.0)
    result = fma(p, half, half - 0.5) * 2.0
    # keeps the sign of zero, and subnormal values
    return select(less(absolute(x), 1e-10), x, result)


def log(x: Expr) -> Expr:
    """Natural logarithm; relative error <= 1.2e-7 (2 ulp). -inf at 0, NaN below.

    x = 2**e m with m in [sqrt(1/2), sqrt(2)); log(m) = f - f**2 / 2 + f**3 Q(f) for f = m - 1. Q is
    a minimax polynomial of degree 7.
    """
    return in_float32("log", x, _log)


def _log(x: Expr) -> Expr:
    exponent, f = split_exponent(x)
    return _log_limits(x, _log_of_parts(exponent, f, None))


def _log_of_parts(exponent: Expr, f: Expr, correction: Expr | None) -> Expr:
    """log(2**exponent * (1 + f + correction)), the small parts added before the large ones."""
    square = f * f
    tail = (
        f
        * square
        * polynomial(
            f,
            (
                0.33333331707704703,
                -0.2500082103550087,
                0.200012268654053,
                -0.16623357298098485,
                0.1420175823379032,
                -0.13160183062653216,
                0.1276157564365747,
                -0.07634493023743867,
            ),
        )
    )
    tail = fma(exponent, LN2_LOW, tail)
    if correction is not None:
        tail = tail + correction
    return fma(exponent, LN2_HIGH, fma(square, -0.5, tail) + f)


def _log_limits(x: Expr, result: Expr) -> Expr:
    """The result for 0 < x < inf; -inf at 0; NaN below; x itself (inf, NaN) otherwise."""
    nan = select(less(x, 0.0), not_a_number(x.dtype), x)
    edge = select(equal(x, 0.0), constant(-INFINITY, x.dtype), nan)
    inside = op(Operation.AND, less(0.0, x), less(x, INFINITY))
    return select(inside, result, edge)


def log1p(x: Expr) -> Expr:
    """log(1 + x); relative error <= 3e-7 (3 ulp), near 0 too. -inf at -1, NaN below."""
    return in_float32("log1p", x, _log1p)


def _log1p(x: Expr) -> Expr:
    u = x + 1.0
    exponent, f = split_exponent(u)
    # what rounding 1 + x lost: x - (u - 1), as a part of u
    lost = x - (u - 1.0)
    large = less(16777216.0, u)
    correction = select(large, constant(0.0, x.dtype), lost / u)
    result = _log_limits(u, _log_of_parts(exponent, f, correction))
    return select(less(absolute(x), 1e-10), x, result)


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent; relative error <= 4e-7 (4 ulp), near 0 too.

    x P(x**2) / Q(x**2), both of degree 4, for |x| <= 9.02; the result is 1 beyond.
    """
    return in_float32("tanh", x, _tanh)


def _tanh(x: Expr) -> Expr:
    return _odd_rational(
        x,
        _TANH_LIMIT,
        (
            0.9999999747438985,
            0.13367883356059013,
            0.0034799976561589513,
            2.0353361984538386e-05,
            1.3002133791099398e-08,
        ),
        (
            1.0,
            0.4670119517644259,
            0.025817622032139366,
            0.00032601727819621607,
            7.631877268428121e-07,
        ),
    )


_TANH_LIMIT = 9.02


def erf(x: Expr) -> Expr:
    """Error function; relative error <= 5e-7 (5 ulp), near 0 too.

    x P(x**2) / Q(x**2), both of degree 5, for |x| <= 4; the result is 1 beyond.
    """
    return in_float32("erf", x, _erf)


def _erf(x: Expr) -> Expr:
    return _odd_rational(
        x,
        _ERF_LIMIT,
        (
            1.1283791150375786,
            0.20259930958858402,
            0.05419669481436379,
            0.004237908413333169,
            0.0002868609101107731,
            1.8475200152640701e-06,
        ),
        (
            1.0,
            0.5128808728443854,
            0.11899801097402533,
            0.01592914421621644,
            0.0012604646227013009,
            3.6085076522062955e-05,
        ),
    )


_ERF_LIMIT = 4.0


def _odd_rational(
    x: Expr, limit: float, numerator: Sequence[float], denominator: Sequence[float]
) -> Expr:
    """x P(x**2) / Q(x**2), constant beyond +-limit."""
    x = maximum(minimum(x, limit), -limit)
    square = x * x
    return x * polynomial(square, numerator) / polynomial(square, denominator)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x); relative error <= 3e-7 where the result is normal, else 0 or subnormal."""
    return in_float32("sigmoid", x, lambda v: constant(1.0, v.dtype) / (_exp(-v) + 1.0))


def silu(x: Expr) -> Expr:
    """x sigmoid(x); absolute error <= 2e-7 max(1, |x|)."""
    return in_float32("silu", x, lambda v: v / (_exp(-v) + 1.0))


def gelu(x: Expr) -> Expr:
    """x/2 (1 + erf(x / sqrt(2))); absolute error <= 3e-7 max(1, |x|)."""
    return in_float32("gelu", x, _gelu)


def _gelu(x: Expr) -> Expr:
    half = x * 0.5
    return fma(half, _erf(x * 0.7071067811865476), half)


def gelu_tanh(x: Expr) -> Expr:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))); absolute error <= 3e-7 max(1, |x|).

    Written as x sigmoid(2 u), which needs no tanh.
    """
    return in_float32("gelu_tanh", x, _gelu_tanh)


def _gelu_tanh(x: Expr) -> Expr:
    u = x * fma(x * x, 0.044715, 1.0)
    return x / (_exp(u * -1.5957691216057308) + 1.0)


def softplus(x: Expr) -> Expr:
    """log(1 + e**x) = max(x, 0) + log1p(e**-|x|); relative error <= 4e-7."""
    return in_float32("softplus", x, _softplus)


def _softplus(x: Expr) -> Expr:
    return maximum(x, 0.0) + _log1p(_exp(-absolute(x)))


def sqrt(x: Expr) -> Expr:
    """Square root, correctly rounded."""
    return op(Operation.SQRT, x)


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x); relative error <= 1.2e-7 (1 ulp)."""
    return constant(1.0, x.dtype) / op(Operation.SQRT, x)
