"""Random inputs of whole models, and comparison of their outputs.

Only the standard library, NumPy and `compiler.runtime` are imported, as on a device.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.memory import check_memory
from tilewright.compiler.runtime.program import Port
from tilewright.tuner.protocol.batches import Distribution, InputSpec
from tilewright.tuner.protocol.runs import INPUT_SEED


def input_spec(
    name: str,
    shape: Sequence[int],
    dtype: DType,
    seed: int,
    integers: tuple[int, int] | None = None,
) -> InputSpec:
    """The distribution of a model's random input: standard normal for floats, from the first of
    `integers` up to before the second (`Port.integers`), or else zero and one.

    The seed is of the name, so that the order of the inputs does not matter.
    """
    own = seed << 32 | zlib.crc32(name.encode())
    if dtype.is_float:
        return InputSpec(tuple(shape), dtype.value, own, Distribution.NORMAL)
    low, high = (0, 2) if integers is None or dtype is DType.BOOL else integers
    if dtype is not DType.BOOL:
        limits = np.iinfo(dtype.numpy)
        low = min(max(low, int(limits.min)), int(limits.max))
        high = min(max(high, low + 1), int(limits.max) + 1)
    return InputSpec(tuple(shape), dtype.value, own, Distribution.INTEGERS, low=low, high=high)


def draw_inputs(ports: Iterable[Port], seed: int = INPUT_SEED) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a program, by name; bfloat16 as its raw bits.

    Raises:
        OutOfMemoryError: if the machine cannot hold them.
    """
    ports = tuple(ports)
    needed = sum(prod(port.shape) * port.dtype.bytes for port in ports)
    check_memory(needed, "for arrays of the inputs")
    return {p.name: input_spec(p.name, p.shape, p.dtype, seed, p.integers).draw() for p in ports}


def largest_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of an output, relative to the largest finite value expected.

    Infinite where the shapes differ, or NaNs and infinities are not at the same places.
    """
    if actual.shape != expected.shape:
        return math.inf
    mine, other = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(mine[~finite], other[~finite], equal_nan=True):
        return math.inf
    difference = np.abs(mine[finite] - other[finite])
    if not difference.size:
        return 0.0
    scale = float(np.abs(other[finite]).max()) or 1.0
    return float(np.nan_to_num(difference, nan=np.inf).max()) / scale
