"""How far a kernel's output is from the reference."""

from __future__ import annotations

import numpy as np

TOLERANCES = {"float64": 1e-6, "float32": 5e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Largest error relative to the largest expected output, by output dtype, with fast numerics.

Winograd F(6x6) has 1.4e-5 and Strassen 2e-6 in float32; exact types must agree exactly."""

STRICT_FACTOR = 0.2
"""Share of the tolerance with strict numerics, where no transform is allowed."""


def tolerance(dtype: str, numerics: str) -> float:
    """The relative error below which an output of this dtype counts as correct."""
    return TOLERANCES.get(dtype, 0.0) * (STRICT_FACTOR if numerics == "strict" else 1.0)


def largest_error(actual: np.ndarray, expected: np.ndarray, dtype: str) -> tuple[float, str]:
    """Largest absolute error over the largest finite expected value, and what is wrong otherwise.

    Values that are not finite must agree one by one; if they do not, the error is infinite and the
    text says where. `actual` and `expected` are logical arrays; bfloat16 comes as its raw bits.
    """
    if actual.shape != expected.shape:
        return float("inf"), f"output shape {actual.shape}, expected {expected.shape}"
    left, right = _as_float64(actual, dtype), _as_float64(expected, str(expected.dtype))
    finite = np.isfinite(right)
    if finite.all():
        difference = np.abs(left - right)
    else:
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        if not (same | finite).all():
            return float("inf"), f"{_where(~(same | finite))} differs from a value not finite"
        difference = np.abs(left - right)[finite]
        right = right[finite]
    if difference.size == 0:
        return 0.0, ""
    largest = float(difference.max())
    if not np.isfinite(largest):
        return float("inf"), f"{_where(~np.isfinite(left) & finite)} is not finite"
    scale = float(np.abs(right).max())
    return largest / scale if scale else largest, ""


def _as_float64(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def _where(wrong: np.ndarray) -> str:
    first = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else ()
    return f"output element {first}"
