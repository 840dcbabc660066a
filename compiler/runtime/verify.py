"""Comparison of an output with its expected value, and tolerances per element type.

Errors are relative to the largest expected value. They are not relative to each element, because an
element that is a sum of nearly cancelling products is small, but has the rounding errors of its
large terms.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.packing import Array

Doubles = NDArray[np.float64]

_TOLERANCES = {
    DType.FLOAT64: 1e-10,
    DType.FLOAT32: 1e-4,
    DType.FLOAT16: 1e-2,
    DType.BFLOAT16: 5e-2,
}


def compare(output: Array, expected: Array) -> float:
    """Return the largest |output - expected|, divided by the largest finite |expected|.

    If all expected values are zero, the result is the absolute error. It is infinite if the shapes
    differ, or if NaNs or infinities are at different positions. The caller must convert arrays of
    bfloat16 to float32 first.
    """
    if output.shape != expected.shape:
        return math.inf
    if output.size == 0:
        return 0.0
    if output.dtype.kind not in "fc" and expected.dtype.kind not in "fc":
        if np.array_equal(output, expected):
            return 0.0
        return _relative(output.astype(np.float64), expected.astype(np.float64)) or math.inf
    return _relative(output.astype(np.float64), expected.astype(np.float64))


def _relative(output: Doubles, expected: Doubles) -> float:
    finite = np.isfinite(expected)
    if not finite.all():
        special = ~finite
        if not np.array_equal(output[special], expected[special], equal_nan=True):
            return math.inf
        output, expected = output[finite], expected[finite]
        if output.size == 0:
            return 0.0
    if not np.isfinite(output).all():
        return math.inf
    largest = float(np.abs(expected).max())
    error = float(np.abs(output - expected).max())
    return error / largest if largest > 0.0 else error


def tolerance_for(dtype: DType) -> float:
    """Return the largest error (`compare`) of a correct output whose elements have this dtype.

    It is 1e-4 for float32. The rounding errors of a sum of K terms add up like a random walk, to
    about u * sqrt(K) of the largest output (u = 2**-24: 1.2e-6 was measured for K = 1152). They are
    twice as large with one level of Strassen, and twelve times as large with Winograd's F(6x6)
    (14e-6). Therefore, 1e-4 is far above rounding errors. It is far below the error of a wrong
    kernel: if one of K terms is missing, the error is about 1 / (4 * sqrt(K)), which is 4e-3 for K
    = 4608.

    The tolerances of float16 and bfloat16 are larger, although sums are accumulated in float32,
    because the result is rounded to 16 bits. Integers and booleans must be equal.
    """
    return _TOLERANCES.get(dtype, 0.0)
