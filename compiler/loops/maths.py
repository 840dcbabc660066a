"""Mathematical functions as expressions over native operations.

Every target gets the same code, and kernels call no C library. float32 is native; float16 and
bfloat16 are computed in float32. Bounds hold for float32 arguments, with fused multiply-adds or
without, and are tested over the whole range; an ulp is the distance between neighbouring floats.
NaN gives NaN, infinities give their limits, subnormal arguments and results are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.dtypes import DType
from compiler.errors import CompilerError
from compiler.loops.expr import Cast, Const, Expr, Operation, constant, op

_LOG2_E = 1.4426950408889634
_LN2 = 0.6931471805599453
# ln 2 in two parts: the first has 9 bits, so that its product with an exponent is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440054690581e-4
_HUGE = float("inf")


def exp(x: Expr) -> Expr:
    """e**x; relative error <= 1.2e-7 (2 ulp; subnormal results: half a ulp more).

    n = rint(x / ln 2), r = x - n ln 2, then 2**n * (1 + r + r**2 P(r)). P is a minimax polynomial
    of degree 4 for |r| <= ln(2) / 2, with an approximation error of 3e-9.
    """
    return _float32("exp", x, _exp)


def _exp(x: Expr) -> Expr:
    # beyond the limits the result is 0 or infinite; within them every step is finite
    n, r = _reduce_exp(maximum(minimum(x, 89.0), -104.0))
    return op(Operation.SCALE, fma(_exp_tail(r), r * r, r) + 1.0, n)


def _reduce_exp(x: Expr) -> tuple[Expr, Expr]:
    """n and r of x = n ln 2 + r, |r| <= ln(2) / 2."""
    n = op(Operation.RINT, x * _LOG2_E)
    return n, fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))


def _exp_tail(r: Expr) -> Expr:
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


def expm1(x: Expr) -> Expr:
    """e**x - 1; relative error <= 3e-7 (3 ulp), near 0 too."""
    return _float32("expm1", x, _expm1)


def _expm1(x: Expr) -> Expr:
    n, r = _reduce_exp(maximum(minimum(x, 89.0), -30.0))
    p = fma(_exp_tail(r), r * r, r)
    # 2**n overflows for the largest results, half of it does not
    half = op(Operation.SCALE, constant(1.0, x.dtype), n - 1.0)
    result = fma(p, half, half - 0.5) * 2.0
    # keeps the sign of zero, and subnormal values
    return select(less(absolute(x), 1e-10), x, result)


def log(x: Expr) -> Expr:
    """Natural logarithm; error <= 1e-7 of the result or 1e-7 (2 ulp). -inf at 0, NaN below.

    x = 2**e m with m in [sqrt(1/2), sqrt(2)); log(m) = f - f**2 / 2 + f**3 Q(f) for f = m - 1. Q is
    a minimax polynomial of degree 7.
    """
    return _float32("log", x, _log)


def _log(x: Expr) -> Expr:
    exponent, f = _split(x)
    return _log_limits(x, _log_of_parts(exponent, f, None))


def _split(x: Expr) -> tuple[Expr, Expr]:
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
    tail = fma(exponent, _LN2_LOW, tail)
    if correction is not None:
        tail = tail + correction
    return fma(exponent, _LN2_HIGH, fma(square, -0.5, tail) + f)


def _log_limits(x: Expr, result: Expr) -> Expr:
    """The result for 0 < x < inf; -inf at 0; NaN below; x itself (inf, NaN) otherwise."""
    nan = select(less(x, 0.0), constant(float("nan"), x.dtype), x)
    edge = select(equal(x, 0.0), constant(-_HUGE, x.dtype), nan)
    inside = op(Operation.AND, less(0.0, x), less(x, _HUGE))
    return select(inside, result, edge)


def log1p(x: Expr) -> Expr:
    """log(1 + x); relative error <= 3e-7 (3 ulp), near 0 too. -inf at -1, NaN below."""
    return _float32("log1p", x, _log1p)


def _log1p(x: Expr) -> Expr:
    u = x + 1.0
    exponent, f = _split(u)
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
    return _float32("tanh", x, _tanh)


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
    return _float32("erf", x, _erf)


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
    return _float32("sigmoid", x, lambda v: constant(1.0, v.dtype) / (_exp(-v) + 1.0))


def silu(x: Expr) -> Expr:
    """x sigmoid(x); relative error <= 4e-7."""
    return _float32("silu", x, lambda v: v / (_exp(-v) + 1.0))


def gelu(x: Expr) -> Expr:
    """x/2 (1 + erf(x / sqrt(2))); absolute error <= 3e-7 max(1, |x|)."""
    return _float32("gelu", x, _gelu)


def _gelu(x: Expr) -> Expr:
    half = x * 0.5
    return fma(half, _erf(x * 0.7071067811865476), half)


def gelu_tanh(x: Expr) -> Expr:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))); absolute error <= 5e-7 max(1, |x|).

    Written as x sigmoid(2 u), which needs no tanh.
    """
    return _float32("gelu_tanh", x, _gelu_tanh)


def _gelu_tanh(x: Expr) -> Expr:
    u = x * fma(x * x, 0.044715, 1.0)
    return x / (_exp(u * -1.5957691216057308) + 1.0)


def softplus(x: Expr) -> Expr:
    """log(1 + e**x) = max(x, 0) + log1p(e**-|x|); relative error <= 4e-7."""
    return _float32("softplus", x, _softplus)


def _softplus(x: Expr) -> Expr:
    return maximum(x, 0.0) + _log1p(_exp(-absolute(x)))


def sqrt(x: Expr) -> Expr:
    """Square root, correctly rounded."""
    return op(Operation.SQRT, x)


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x); relative error <= 1.2e-7 (1 ulp)."""
    return constant(1.0, x.dtype) / op(Operation.SQRT, x)


def sin(x: Expr) -> Expr:
    """Sine; absolute error <= 1.2e-7 for |x| <= 8192; none is promised beyond. NaN at infinity."""
    return _float32("sin", x, lambda v: _sine(v, 0))


def cos(x: Expr) -> Expr:
    """Cosine; bounds as `sin`."""
    return _float32("cos", x, lambda v: _sine(v, 1))


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


def pow(x: Expr, y: Expr) -> Expr:
    """x**y as C's pow; relative error <= 2e-6 where the result is normal.

    A constant exponent that is a small integer or a half becomes multiplications and square
    roots. Otherwise 2**(y log2(|x|)) with the logarithm and the product in two parts each.
    """
    if isinstance(y, Const) and (simple := _simple_power(x, y.value)) is not None:
        return simple
    if x.dtype in _NARROW:
        wide = _pow(Cast(x, DType.FLOAT32), Cast(y, DType.FLOAT32))
        return Cast(wide, x.dtype)
    _float32("pow", y, lambda v: v)
    return _float32("pow", x, lambda v: _pow(v, y))


def _simple_power(x: Expr, exponent: float) -> Expr | None:
    """x**exponent by multiplication and square root, or None."""
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
    high, low = _log2_parts(magnitude)
    product = y * high
    # exact error of the product, where the target fuses; at 0 and inf the limits below decide
    rest = fma(y, low, fma(y, high, -product))
    product = maximum(minimum(product, 192.0), -192.0)
    rest = select(less(absolute(product), 192.0), rest, constant(0.0, x.dtype))
    n = op(Operation.RINT, product)
    r = ((product - n) + rest) * _LN2
    value = op(Operation.SCALE, fma(_exp_tail(r), r * r, r) + 1.0, n)
    return _pow_limits(x, y, magnitude, value)


def _log2_parts(x: Expr) -> tuple[Expr, Expr]:
    """log2 of a positive number as a large and a small part.

    With s = f / (2 + f): log2(1 + f) = (2 s + 2/3 s**3 + ...) / ln 2. s, the constant 2 / ln 2 and
    the sums carry their rounding errors along.
    """
    exponent, f = _split(x)
    divisor = f + 2.0
    s = f / divisor
    # (f - s (2 + f)) / (2 + f), with the part of f that the divisor lost
    lost = f - (divisor - 2.0)
    s_low = (fma(-s, divisor, f) - s * lost) / divisor
    square = s * s
    # 2/ln(2) (1/3 + s**2/5 + ...), on |s| <= 0.1716
    tail = s * square * polynomial(square, (0.9617966939, 0.5770780164, 0.4121985831, 0.3205988980))
    scale_high, scale_low = 2.885390043258667, 3.851925e-8
    product = s * scale_high
    error = fma(s, scale_high, -product)
    small = fma(s_low, scale_high, fma(s, scale_low, error)) + tail
    total = exponent + product
    # |exponent| >= |product| unless it is 0, where the sum is exact
    remainder = product - (total - exponent)
    small = small + remainder
    high = total + small
    return high, small - (high - total)


def _pow_limits(x: Expr, y: Expr, magnitude: Expr, value: Expr) -> Expr:
    """Zeros, infinities, NaN and negative bases, as C's pow defines them."""
    one = constant(1.0, x.dtype)
    zero = constant(0.0, x.dtype)
    infinite = constant(_HUGE, x.dtype)
    grows = op(Operation.NE, less(1.0, magnitude), less(y, 0.0))
    # an infinite exponent, or a base that is 0 or infinite: 0 or inf by its direction
    edge = op(
        Operation.OR,
        equal(absolute(y), _HUGE),
        op(Operation.OR, equal(magnitude, 0.0), equal(magnitude, _HUGE)),
    )
    value = select(edge, select(grows, infinite, zero), value)
    value = select(op(Operation.AND, equal(magnitude, 1.0), equal(absolute(y), _HUGE)), one, value)
    half = y * 0.5
    integral = equal(op(Operation.FLOOR, y), y)
    odd = op(Operation.AND, integral, op(Operation.NE, op(Operation.FLOOR, half), half))
    # the sign of -0 counts as well: 1 / -0 is -inf
    negative = op(Operation.OR, less(x, 0.0), less(one / x, 0.0))
    value = select(op(Operation.AND, negative, odd), -value, value)
    invalid = op(
        Operation.AND,
        op(Operation.AND, less(x, 0.0), less(-_HUGE, x)),
        op(Operation.AND, less(absolute(y), _HUGE), op(Operation.NE, integral, _true())),
    )
    nan = constant(float("nan"), x.dtype)
    is_nan = op(Operation.OR, op(Operation.NE, x, x), op(Operation.NE, y, y))
    value = select(op(Operation.OR, invalid, is_nan), nan, value)
    return select(op(Operation.OR, equal(y, 0.0), equal(x, 1.0)), one, value)


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


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule; coefficients from the constant term up."""
    result = constant(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


_NARROW = (DType.FLOAT16, DType.BFLOAT16)


def _true() -> Expr:
    return Const(1, DType.BOOL)


def _float32(name: str, x: Expr, function: Callable[[Expr], Expr]) -> Expr:
    """Apply a float32 function, through casts for the narrower types.

    Raises:
        CompilerError: for float64 and for integers.
    """
    if x.dtype in _NARROW:
        return Cast(function(Cast(x, DType.FLOAT32)), x.dtype)
    if x.dtype is not DType.FLOAT32:
        raise CompilerError(f"{name}: no {x.dtype} implementation, only float32 and narrower")
    return function(x)
