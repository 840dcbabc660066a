"""Error bounds of the mathematical functions, over the whole range of float32 and float64.

The expressions run as NumPy, with fused multiply-adds and without, against float64, or against
longdouble where it is wider than float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.examples import examples
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Const, Expr, Load, Tensor
from tilewright.compiler.loops.semantics import evaluate_expression

Array = np.ndarray[Any, Any]

WIDE = {np.float32: np.float64, np.float64: np.longdouble}
PRECISIONS = [
    DType.FLOAT32,
    pytest.param(
        DType.FLOAT64,
        marks=pytest.mark.skipif(
            np.finfo(np.longdouble).nmant < 63, reason="no type is wider than float64 here"
        ),
    ),
]
X = Tensor("x", (1,))[0]
Y = Tensor("y", (1,))[0]


@cache
def samples(dtype: DType) -> Array:
    """All exponents and signs alike, dense stretches where functions bend, and the edges.

    A third of as many outside of `make fuzz`.
    """
    rng, kind = np.random.default_rng(5), dtype.numpy
    limits = np.finfo(kind)
    count, top = (1_500_000, 110) if dtype is DType.FLOAT32 else (150_000, 800)
    if examples(100) <= 100:
        count //= 3
    raw = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
    stretches = [rng.uniform(-r, r, count // 10).astype(kind) for r in (top, 10, 2, 1, 0.01)]
    edges = [0.0, math.inf, math.nan, 0.5, 1.0, 2.0, float(limits.max), float(limits.tiny)]
    edges += [float(limits.smallest_subnormal), 1 - float(limits.epsneg), 1 + float(limits.eps)]
    return np.concatenate([raw, *stretches, np.array([*edges, *(-e for e in edges)], kind)])


def evaluate(expr: Expr, x: Array, y: Array | None = None, *, fused: bool) -> Array:
    def read(load: Load) -> Array:
        value = x if load.tensor.name == "x" else y
        assert value is not None
        return value

    result = evaluate_expression(expr, read, fused=fused)
    assert result.dtype == x.dtype
    return result


def erf(x: Array) -> Array:
    """Within one unit of float64."""
    return np.vectorize(math.erf, otypes=[float])(x.astype(np.float64)).astype(x.dtype)


def erfc(x: Array) -> Array:
    return np.vectorize(math.erfc, otypes=[float])(x.astype(np.float64)).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


Measure = Callable[[Array, Array, Array, Any], Array]


def relative(error: Array, reference: Array, x: Array, kind: Any) -> Array:
    """Relative error where the reference is normal; below, that much of the smallest normal."""
    return error / np.maximum(np.abs(reference), np.finfo(kind).tiny)


def above_overflow(error: Array, reference: Array, x: Array, kind: Any) -> Array:
    """As `relative`, but e**-x may have overflowed: 0 instead of a subnormal number."""
    lost = np.finfo(kind).tiny * 0.3
    return relative(np.maximum(error - lost, 0), reference, x, kind)


def scaled(error: Array, reference: Array, x: Array, kind: Any) -> Array:
    """Error in relation to max(1, |x|)."""
    return error / np.maximum(1, np.abs(x))


def gelu_tanh(x: Array) -> Array:
    return x * sigmoid(2 * np.sqrt(2 / x.dtype.type(math.pi)) * (x + 0.044715 * x**3))


CASES: dict[str, tuple[Callable[[Array], Array], float, float, Measure]] = {
    "exp": (np.exp, 1.2e-7, 2.5e-16, relative),
    "expm1": (np.expm1, 3e-7, 5e-16, relative),
    "log": (np.log, 1.2e-7, 2.5e-16, relative),
    "log1p": (np.log1p, 3e-7, 5e-16, relative),
    "tanh": (np.tanh, 4e-7, 7e-16, relative),
    "erf": (erf, 5e-7, 7e-16, relative),
    "sin": (np.sin, 6.2e-8, 6e-16, relative),
    "cos": (np.cos, 6.2e-8, 6e-16, relative),
    "tan": (np.tan, 6.2e-8, 9e-16, relative),
    "asin": (np.arcsin, 3e-7, 5e-16, relative),
    "acos": (np.arccos, 3e-7, 5e-16, relative),
    "atan": (np.arctan, 3e-7, 5e-16, relative),
    "sinh": (np.sinh, 5e-7, 1e-15, relative),
    "cosh": (np.cosh, 5e-7, 1e-15, relative),
    "asinh": (np.arcsinh, 5e-7, 1e-15, relative),
    "acosh": (np.arccosh, 5e-7, 1e-15, relative),
    "atanh": (np.arctanh, 5e-7, 1e-15, relative),
    "sigmoid": (sigmoid, 3e-7, 6e-16, above_overflow),
    "silu": (lambda x: x * sigmoid(x), 2e-7, 4e-16, scaled),
    "gelu": (lambda x: x / 2 * erfc(-x / np.sqrt(x.dtype.type(2))), 3e-7, 5e-16, scaled),
    "gelu_tanh": (gelu_tanh, 3e-7, 1e-15, scaled),
    "softplus": (lambda x: np.logaddexp(x.dtype.type(0), x), 4e-7, 8e-16, relative),
    "sqrt": (np.sqrt, 6e-8, 1.2e-16, relative),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.2e-7, 2.3e-16, relative),
}


@cache
def expected_of(name: str, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return CASES[name][0](samples(dtype).astype(WIDE[dtype.numpy.type]))


@pytest.mark.graphs
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_error_bound(name: str, dtype: DType, fused: bool) -> None:
    _, single, double, measure = CASES[name]
    bound, kind, x = (
        (single if dtype is DType.FLOAT32 else double),
        dtype.numpy.type,
        samples(dtype),
    )
    expr = getattr(maths, name)(Tensor("x", (1,), dtype)[0])
    got, expected = evaluate(expr, x, fused=fused), expected_of(name, dtype)
    with np.errstate(all="ignore"):
        rounded = expected.astype(kind)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    infinite = np.isinf(got) | np.isinf(rounded)
    np.testing.assert_array_equal(got[infinite], rounded[infinite])
    finite = np.isfinite(rounded)
    error = np.abs(got[finite] - expected[finite])
    ratio = measure(error, expected[finite], x[finite], kind) / bound
    worst = int(np.argmax(ratio))
    assert ratio[worst] <= 1, (x[finite][worst], got[finite][worst], expected[finite][worst])


@pytest.mark.parametrize("fused", [True, False])
def test_the_exponential_of_negative_numbers(fused: bool) -> None:
    """Its argument is rounded as a power of 2, which counts little where the result is small."""
    x = samples(DType.FLOAT32)
    x = x[(x <= 0) & np.isfinite(x)]
    got = evaluate(maths.exp_of_negative(X), x, fused=fused)
    expected = np.exp(x.astype(np.float64))
    error = np.abs(got - expected)
    assert error.max() <= 1.6e-7
    tiny = np.finfo(np.float32).tiny
    assert np.max(error / (np.maximum(expected, tiny) * (1.8e-7 * (1 + np.abs(x) / 2)))) <= 1
    edges = np.array([0.0, -0.0, -np.inf, np.nan], np.float32)
    at_edges = evaluate(maths.exp_of_negative(X), edges, fused=fused)
    np.testing.assert_array_equal(at_edges, np.array([1, 1, 0, np.nan], np.float32))


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_logarithm_of_normal_numbers(dtype: DType) -> None:
    x = samples(dtype)
    x = x[(x >= np.finfo(dtype.numpy).tiny) & np.isfinite(x)]
    a = Tensor("x", (1,), dtype)[0]
    got = evaluate(maths.log_normal(a), x, fused=True)
    np.testing.assert_array_equal(got, evaluate(maths.log(a), x, fused=True))
    edges = np.array([np.inf, np.nan], x.dtype)
    assert np.isnan(evaluate(maths.log_normal(a), edges, fused=True)).all()


ODD = ["tanh", "erf", "expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh"]


@pytest.mark.parametrize("name", ODD)
def test_odd_functions_keep_the_sign_of_zero_and_subnormal_arguments(name: str) -> None:
    function, reference = getattr(maths, name), CASES[name][0]
    tiny = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39], np.float32)
    got = evaluate(function(X), tiny, fused=True)
    np.testing.assert_allclose(got, reference(tiny.astype(np.float64)), atol=1.5e-45)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(tiny))


def test_saturated_functions_are_exact() -> None:
    x = np.array([-1e30, -20.0, -9.5, 9.5, 20.0, 1e30], np.float32)
    for function in (maths.tanh, maths.erf):
        for fused in (True, False):
            np.testing.assert_array_equal(evaluate(function(X), x, fused=fused), np.sign(x))
    # 1 + erf(x) is exactly 0 there, however large x is
    np.testing.assert_array_equal(evaluate(maths.gelu(X), x, fused=True), np.maximum(x, 0))


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_arguments_next_to_multiples_of_a_quarter_turn_keep_every_bit(dtype: DType) -> None:
    """Where the reduction cancels most (Kahan's and Muller's worst cases are among them)."""
    kind = dtype.numpy.type
    near = np.arange(1, 200_000) * (math.pi / 2)
    hard = [16367173 * 2.0**72, 6381956970095103 * 2.0**797, 3.0e38, 1.0e300]
    hard = [h for h in hard if h < float(np.finfo(kind).max)]
    x = np.concatenate([near, hard]).astype(kind)
    wide = x.astype(WIDE[kind])
    for name in ("sin", "cos", "tan"):
        reference, single, double, _ = CASES[name]
        got = evaluate(getattr(maths, name)(Tensor("x", (1,), dtype)[0]), x, fused=True)
        bound = single if dtype is DType.FLOAT32 else double
        assert np.max(np.abs(got / reference(wide) - 1)) <= bound


@pytest.mark.parametrize(
    ("dtype", "fused", "bound"),
    [
        (DType.FLOAT32, True, 6.1e-8),
        (DType.FLOAT32, False, 6.1e-8),
        (DType.FLOAT64, True, 5e-16),
        (DType.FLOAT64, False, 4e-13),
    ],
)
def test_pow(dtype: DType, fused: bool, bound: float) -> None:
    rng, kind = np.random.default_rng(7), dtype.numpy.type
    wide, limits, count = WIDE[kind], np.finfo(kind), 100_000
    reach = 87 if dtype is DType.FLOAT32 else 708
    spans = [rng.uniform(-r, r, count) for r in (reach, 0.7, 1e-4)]
    x = np.exp(np.concatenate(spans)).astype(kind)
    with np.errstate(all="ignore"):
        y = (rng.uniform(-reach, reach, x.size) / np.log(x.astype(wide))).astype(kind)
        expected = np.power(x.astype(wide), y.astype(wide))
    inside = (expected > limits.tiny) & (expected < limits.max)
    a, b = (Tensor(name, (1,), dtype)[0] for name in ("x", "y"))
    got = evaluate(maths.pow(a, b), x, y, fused=fused)
    assert np.max(np.abs(got[inside] / expected[inside] - 1)) <= bound
    assert np.count_nonzero(inside) > 2 * count


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_pow_at_the_edges_is_c_pow(dtype: DType) -> None:
    numbers = [0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 2.5, -2.5, 1e-45, 1e38, -1e38, 16777216]
    numbers += [math.inf, -math.inf, math.nan, 1e-30, -1e-30, 100, -101, 0.99, 1.01]
    x, y = (g.ravel() for g in np.meshgrid(*[np.array(numbers, dtype.numpy)] * 2))
    a, b = (Tensor(name, (1,), dtype)[0] for name in ("x", "y"))
    got = evaluate(maths.pow(a, b), x, y, fused=True)
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1.5e-45)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 4.0, -1.0, -2.0])
def test_constant_exponents_need_no_logarithm(exponent: float) -> None:
    expr = maths.pow(X, Const(exponent))
    x = np.array([-3.0, -0.5, 0.25, 7.0], np.float32)
    got = np.broadcast_to(evaluate(expr, x, fused=True), x.shape)
    np.testing.assert_allclose(got, np.power(x, np.float32(exponent)), rtol=2e-7)
    assert str(expr).count("MANTISSA") == 0


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_narrow_types_are_computed_in_float32(dtype: DType) -> None:
    expr = maths.exp(Tensor("x", (1,), dtype)[0])
    assert expr.dtype is dtype
    x = np.array([-1.5, 0.25, 4.0], np.float16 if dtype is DType.FLOAT16 else np.float32)
    got = evaluate_expression(expr, lambda load: x)
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=5e-3)
    power = maths.pow(Tensor("x", (1,), dtype)[0], Const(2.5, dtype))
    assert power.dtype is dtype


def test_integers_are_refused() -> None:
    x = Tensor("x", (1,), DType.INT32)[0]
    with pytest.raises(CompilerError, match="exp: no int32 implementation"):
        maths.exp(x)
    with pytest.raises(CompilerError, match="pow"):
        maths.pow(x, x)
