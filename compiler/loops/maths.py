"""Mathematical functions as expressions over native operations.

Every target gets the same code, and kernels call no C library. float32 and float64 are computed in
their own type, float16 and bfloat16 in float32. If a docstring states two error bounds, the first
one is for float32 and the second for float64. The bounds hold with or without fused multiply-adds
(pow states an exception), and are tested over the whole range. NaN gives NaN, infinities give their
limits, subnormal arguments and results are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.elementary import (
    absolute,
    fma,
    in_float,
    less,
    maximum,
    minimum,
    polynomial,
    select,
    with_sign_of,
)
from tilewright.compiler.loops.exponential import (
    exp,
    exp_of,
    exp_of_negative,
    expm1,
    expm1_of,
    log,
    log1p,
    log1p_of,
    log_normal,
)
from tilewright.compiler.loops.expr import Expr, Operation, constant, op
from tilewright.compiler.loops.hyperbolic import acosh, asinh, atanh, cosh, sinh
from tilewright.compiler.loops.inverse import acos, asin, atan
from tilewright.compiler.loops.power import pow
from tilewright.compiler.loops.trigonometric import cos, sin, tan

__all__ = [
    "absolute",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp_of_negative",
    "expm1",
    "fma",
    "gelu",
    "gelu_tanh",
    "log",
    "log1p",
    "log_normal",
    "maximum",
    "minimum",
    "polynomial",
    "pow",
    "rsqrt",
    "select",
    "sigmoid",
    "silu",
    "sin",
    "sinh",
    "softplus",
    "sqrt",
    "tan",
    "tanh",
]


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent; relative error <= 4e-7 (float32), 7e-16 (float64), near 0 too.

    float32: x P(x**2) / Q(x**2), both of degree 4, for |x| <= 9.02; the result is +-1 beyond.
    float64: -t / (t + 2) with t = e**(-2|x|) - 1.
    """
    return in_float("tanh", x, _tanh)


def _tanh(x: Expr) -> Expr:
    if x.dtype is DType.FLOAT64:
        magnitude = absolute(x)
        t = expm1_of(magnitude * -2.0)
        return select(less(magnitude, 1e-10), x, with_sign_of(x, -t / (t + 2.0)))
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
    """Error function; relative error <= 5e-7 (float32), 5e-16 (float64), near 0 too.

    For float32, the result is x P(x**2) / Q(x**2) for |x| <= 4, both of degree 5, and +-1 beyond.
    For float64 and x >= 0, it is x P(x**2) below 1, else 1 - e**(-x**2) Q((x - 2) / (x + 2)); the
    function is odd.
    """
    return in_float("erf", x, _erf)


def _erf(x: Expr) -> Expr:
    if x.dtype is DType.FLOAT64:
        return _erf_double(x)
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


def _erf_double(x: Expr) -> Expr:
    magnitude = minimum(absolute(x), 6.0)
    small = x * polynomial(x * x, _ERF_INNER)
    t = (magnitude - 2.0) / (magnitude + 2.0)
    beyond = exp_of(-(magnitude * magnitude)) * polynomial(t, _ERFC_OUTER)
    return select(less(magnitude, 1.0), small, with_sign_of(x, 1.0 - beyond))


_ERF_INNER = (
    1.1283791670955126,
    -0.3761263890318375,
    0.11283791670954879,
    -0.026866170645076792,
    0.0052239776248180145,
    -0.000854832698083379,
    0.0001205533111164271,
    -1.4925595266831182e-05,
    1.6461000484121368e-06,
    -1.6350312701054695e-07,
    1.4659775274047436e-08,
    -1.1372848856791674e-09,
    5.957176147748911e-11,
)
_ERFC_OUTER = (
    0.25539567631050575,
    -0.4271858474139584,
    0.24165819424246646,
    -0.07897858101573213,
    0.003732892404327764,
    0.006997461739200444,
    -0.0008471432509203844,
    -0.000981977026567889,
    4.355560219515472e-05,
    0.00017436116545392264,
    2.7525480361206068e-05,
    -2.7579864674305787e-05,
    -1.396807230177146e-05,
    1.392621183618803e-06,
    3.789215643758464e-06,
    1.1780775215625583e-06,
    -5.322696855655786e-07,
    -4.215301054238321e-07,
)


def _odd_rational(
    x: Expr, limit: float, numerator: Sequence[float], denominator: Sequence[float]
) -> Expr:
    """Return the odd function x P(x**2) / Q(x**2), with x clamped to [-limit, limit].

    `numerator` and `denominator` are the coefficients of P and Q, from the constant term up.
    """
    x = maximum(minimum(x, limit), -limit)
    square = x * x
    return x * polynomial(square, numerator) / polynomial(square, denominator)


def sigmoid(x: Expr) -> Expr:
    """Logistic sigmoid, 1 / (1 + e**-x).

    The relative error is at most 3e-7 for normal float32 results. A result below the smallest
    normal number is 0 or subnormal.
    """
    return in_float("sigmoid", x, lambda v: constant(1.0, v.dtype) / (exp_of(-v) + 1.0))


def silu(x: Expr) -> Expr:
    """SiLU, x sigmoid(x); absolute error <= 2e-7 max(1, |x|)."""
    return in_float("silu", x, lambda v: v / (exp_of(-v) + 1.0))


def gelu(x: Expr) -> Expr:
    """GELU, x/2 (1 + erf(x / sqrt(2))); absolute error <= 3e-7 max(1, |x|)."""
    return in_float("gelu", x, _gelu)


def _gelu(x: Expr) -> Expr:
    half = x * 0.5
    return fma(half, _erf(x * 0.7071067811865476), half)


def gelu_tanh(x: Expr) -> Expr:
    """GELU by tanh, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))).

    The absolute error is at most 3e-7 max(1, |x|). Computed as x sigmoid(2 u), where u is the
    argument of tanh; this takes one exponential.
    """
    return in_float("gelu_tanh", x, _gelu_tanh)


def _gelu_tanh(x: Expr) -> Expr:
    u = x * fma(x * x, 0.044715, 1.0)
    return x / (exp_of(u * -1.5957691216057308) + 1.0)


def softplus(x: Expr) -> Expr:
    """Softplus, log(1 + e**x) = max(x, 0) + log1p(e**-|x|); relative error <= 4e-7."""
    return in_float("softplus", x, _softplus)


def _softplus(x: Expr) -> Expr:
    return maximum(x, 0.0) + log1p_of(exp_of(-absolute(x)))


def sqrt(x: Expr) -> Expr:
    """Square root, correctly rounded."""
    return op(Operation.SQRT, x)


def rsqrt(x: Expr) -> Expr:
    """Reciprocal square root, 1 / sqrt(x); relative error <= 1.2e-7 (1 ulp)."""
    return constant(1.0, x.dtype) / op(Operation.SQRT, x)
