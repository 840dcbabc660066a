"""Error bounds of the mathematical functions, over the whole range of float32.

The expressions run as NumPy float32, with fused multiply-adds and without, against float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.dtypes import DType
from compiler.errors import CompilerError
from compiler.loops import maths
from compiler.loops.expr import Const, Expr, Load, Tensor
from compiler.loops.semantics import evaluate_expression

Array = np.ndarray[Any, Any]

X = Tensor("x", (1,))[0]
Y = Tensor("y", (1,))[0]
SMALLEST_NORMAL = 1.1754944e-38
EDGES = np.array(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.0, -1.0, 3.4e38, -3.4e38],
    np.float32,
)


def samples() -> Array:
    """Every 20011th float of both signs, and dense stretches where functions bend."""
    bits = np.arange(0, 1 << 32, 20011, dtype=np.uint64).astype(np.uint32)
    stretches = [np.linspace(-r, r, 60_001, dtype=np.float32) for r in (110, 10, 1, 0.01)]
    return np.concatenate([bits.view(np.float32), *stretches, EDGES])


SAMPLES = samples()


def evaluate(expr: Expr, x: Array, y: Array | None = None, *, fused: bool) -> Array:
    def read(load: Load) -> Array:
        value = x if load.tensor.name == "x" else y
        assert value is not None
        return value

    result = evaluate_expression(expr, read, fused=fused)
    assert result.dtype == np.float32
    return result


def erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


def erfc(x: Array) -> Array:
    return np.vectorize(math.erfc)(x)


def sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


def relative(bound: float) -> Callable[[Array, Array, Array], Array]:
    """Relative error where the reference is normal; below, that much of the smallest normal."""
    return lambda error, reference, x: (
        error / np.maximum(np.abs(reference), SMALLEST_NORMAL) / bound
    )


def above_overflow(bound: float) -> Callable[[Array, Array, Array], Array]:
    """As `relative`, but e**-x may have overflowed: 0 instead of a number less than 3.1e-39."""
    return lambda error, reference, x: relative(bound)(np.maximum(error - 3.1e-39, 0), reference, x)


def scaled(bound: float) -> Callable[[Array, Array, Array], Array]:
    """Error in relation to max(1, |x|)."""
    return lambda error, reference, x: error / np.maximum(1, np.abs(x)) / bound


def gelu_tanh(x: Array) -> Array:
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


CASES = {
    "exp": (maths.exp, np.exp, relative(1.2e-7)),
    "expm1": (maths.expm1, np.expm1, relative(3e-7)),
    "log": (maths.log, np.log, relative(1.2e-7)),
    "log1p": (maths.log1p, np.log1p, relative(3e-7)),
    "tanh": (maths.tanh, np.tanh, relative(4e-7)),
    "erf": (maths.erf, erf, relative(5e-7)),
    "sigmoid": (maths.sigmoid, sigmoid, above_overflow(3e-7)),
    "silu": (maths.silu, lambda x: x * sigmoid(x), scaled(2e-7)),
    "gelu": (maths.gelu, lambda x: x / 2 * erfc(-x / math.sqrt(2)), scaled(3e-7)),
    "gelu_tanh": (maths.gelu_tanh, gelu_tanh, scaled(3e-7)),
    "softplus": (maths.softplus, lambda x: np.logaddexp(0, x), relative(4e-7)),
    "sqrt": (maths.sqrt, np.sqrt, relative(6e-8)),
    "rsqrt": (maths.rsqrt, lambda x: 1 / np.sqrt(x), relative(1.2e-7)),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", sorted(CASES))
def test_error_bound(name: str, fused: bool) -> None:
    function, reference, measure = CASES[name]
    got = evaluate(function(X), SAMPLES, fused=fused)
    with np.errstate(all="ignore"):
        wide = SAMPLES.astype(np.float64)
        expected = reference(wide)
        rounded = expected.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    infinite = np.isinf(got) | np.isinf(rounded)
    np.testing.assert_array_equal(got[infinite], rounded[infinite])
    finite = np.isfinite(rounded)
    error = np.abs(got[finite] - expected[finite])
    ratio = measure(error, expected[finite], wide[finite])
    worst = int(np.argmax(ratio))
    assert ratio[worst] <= 1, (wide[finite][worst], got[finite][worst], expected[finite][worst])


@pytest.mark.parametrize("name", ["tanh", "erf", "expm1", "log1p"])
def test_odd_functions_keep_the_sign_of_zero_and_subnormal_arguments(name: str) -> None:
    function, reference, _ = CASES[name]
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


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("function", "reference"), [(maths.sin, np.sin), (maths.cos, np.cos)])
def test_sine(
    function: Callable[[Expr], Expr], reference: Callable[[Array], Array], fused: bool
) -> None:
    x = SAMPLES[np.abs(SAMPLES) <= 1e5]
    error = np.abs(evaluate(function(X), x, fused=fused) - reference(x.astype(np.float64)))
    assert error[np.abs(x) <= 8192].max() <= 1.2e-7
    assert error.max() <= 1e-6
    everywhere = evaluate(function(X), SAMPLES, fused=fused)
    np.testing.assert_array_equal(np.isnan(everywhere), ~np.isfinite(SAMPLES))
    assert np.nanmax(np.abs(everywhere)) <= 1.0000001


@pytest.mark.parametrize(("fused", "bound"), [(True, 6e-7), (False, 2e-5)])
def test_pow(fused: bool, bound: float) -> None:
    rng = np.random.default_rng(7)
    count = 200_000
    logarithms = np.concatenate([rng.uniform(-87, 87, count), rng.uniform(-0.7, 0.7, count)])
    x = np.exp(logarithms).astype(np.float32)
    with np.errstate(all="ignore"):
        y = (rng.uniform(-87, 87, 2 * count) / np.log(x.astype(np.float64))).astype(np.float32)
        expected = np.power(x.astype(np.float64), y.astype(np.float64))
    inside = (expected > SMALLEST_NORMAL) & (expected < 3.4e38)
    got = evaluate(maths.pow(X, Y), x, y, fused=fused)
    assert np.max(np.abs(got[inside] / expected[inside] - 1)) <= bound
    assert np.count_nonzero(inside) > count


def test_pow_at_the_edges_is_c_pow() -> None:
    numbers = [0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 2.5, -2.5, 1e-45, 1e38, -1e38, 16777216]
    numbers += [math.inf, -math.inf, math.nan, 1e-30, -1e-30, 100, -101, 0.99, 1.01]
    x, y = (g.ravel() for g in np.meshgrid(*[np.array(numbers, np.float32)] * 2))
    got = evaluate(maths.pow(X, Y), x, y, fused=True)
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


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.INT32])
def test_other_types_are_refused(dtype: DType) -> None:
    x = Tensor("x", (1,), dtype)[0]
    with pytest.raises(CompilerError, match=f"exp: no {dtype} implementation"):
        maths.exp(x)
    with pytest.raises(CompilerError, match="pow"):
        maths.pow(x, x)
