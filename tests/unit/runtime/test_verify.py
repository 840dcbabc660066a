"""When an output counts as right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.verify import compare, tolerance_for

F32 = np.float32


@pytest.mark.parametrize(
    ("output", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, -4.0], 6.5 / 4),
        ([0.0, 3.0], [0.0, 0.0], 3.0),
        ([1.0], [1.0, 2.0], math.inf),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.nan, 1.0], [1.0, 1.0], math.inf),
        ([1.0, 1.0], [np.nan, 1.0], math.inf),
        ([np.inf, 1.0], [np.inf, 2.0], 0.5),
        ([-np.inf, 1.0], [np.inf, 1.0], math.inf),
        ([np.inf], [3e38], math.inf),
        ([np.nan], [np.nan], 0.0),
        ([], [], 0.0),
    ],
)
def test_the_error_is_relative_to_the_largest(
    output: list[float], expected: list[float], error: float
) -> None:
    assert compare(np.array(output, F32), np.array(expected, F32)) == pytest.approx(error)


def test_integers_and_booleans() -> None:
    numbers = np.array([2**60, -3])
    assert compare(numbers, numbers) == 0.0
    # a difference that float64 does not see is a difference
    assert compare(numbers + np.array([1, 0]), numbers) > 0.0
    assert compare(np.array([True, False]), np.array([True, True])) == 1.0


def test_integer_tolerance_is_none() -> None:
    for dtype in DType:
        assert (tolerance_for(dtype) > 0) == dtype.is_float


def test_the_default_is_a_ten_thousandth() -> None:
    assert tolerance_for(DType.FLOAT32) == 1e-4


@pytest.mark.parametrize("length", [1, 9, 1152, 4608])
def test_rounding_passes_and_a_missing_term_does_not(length: int) -> None:
    rng = np.random.default_rng(length)
    a = rng.standard_normal((128, length)).astype(F32)
    b = rng.standard_normal(length).astype(F32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    in_order = np.add.accumulate(a * b, axis=1, dtype=F32)[:, -1]
    tolerance = tolerance_for(DType.FLOAT32)
    assert compare(in_order, exact) < tolerance / 2
    short = a[:, : length - 1].astype(np.float64) @ b[: length - 1].astype(np.float64)
    assert compare(short, exact) > 5 * tolerance
