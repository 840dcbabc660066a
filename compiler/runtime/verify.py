"""Is an output right? The comparison and how much it may differ.

Errors are measured against the largest expected value: a sum of products that nearly cancel has a
small value with the rounding errors of large terms, so its own size says nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from compiler.dtypes import DType
from compiler.runtime.packing import Array

Doubles = NDArray[np.float64]

# How much larger an algorithm's rounding errors are than those of the plain sum, rounded up from
# measurements against float64 (plain 1.2e-6, one level of Strassen 2.3e-6, Winograd F(2x2) 0.6e-6,
# F(4x4) 9e-6, F(6x6) 14e-6; 3x3 convolutions of 64 to 512 channels).
_AMPLIFICATION = {"strassen": 2.0, "winograd2": 1.0, "winograd4": 8.0, "winograd6": 12.0}

# Unit roundoff of the stored type, and the least tolerance.
_ROUNDOFF = {
    DType.FLOAT64: 2.0**-53,
    DType.FLOAT32: 2.0**-24,
    DType.FLOAT16: 2.0**-11,
    DType.BFLOAT16: 2.0**-8,
}
_BASE = {
    DType.FLOAT64: 1e-10,
    DType.FLOAT32: 1e-4,
    DType.FLOAT16: 1e-2,
    DType.BFLOAT16: 5e-2,
}


def compare(output: Array, expected: Array) -> float:
    """The largest |output - expected|, divided by the largest finite |expected|.

    Infinite if the shapes differ, or if NaNs or infinities are not at the same places. Where all
    that is expected is zero the error is absolute. bfloat16 arrays are to be widened before.
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


def tolerance_for(dtype: DType, reduction_length: int = 1, algorithm: str = "direct") -> float:
    """The relative error up to which an output counts as right.

    1e-4 for float32. The roundings of a sum of K terms add up like a random walk, to about
    u * sqrt(K) of the largest output (u = 2**-24: 1.2e-6 was measured for K = 1152), so 1e-4 is
    far above what rounding does and far below a wrong kernel: one missing term of K is an error of
    about 1 / (4 * sqrt(K)), 4e-3 for K = 4608. Only for sums so long that four times the expected
    walk, times what the algorithm adds, exceeds the base, the tolerance grows with it. Integers
    and booleans must agree exactly.

    Args:
        dtype: of the output in memory.
        reduction_length: terms in the longest sum, 1 if there is none.
        algorithm: the schedule's; a name with no known amplification counts as a plain sum.
    """
    if dtype not in _ROUNDOFF:
        return 0.0
    walk = _ROUNDOFF[dtype] * math.sqrt(max(1, reduction_length))
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        # sums are accumulated in float32, only the result is rounded
        walk = _ROUNDOFF[DType.FLOAT32] * math.sqrt(max(1, reduction_length))
    return max(_BASE[dtype], 4.0 * walk * _AMPLIFICATION.get(algorithm, 1.0))
