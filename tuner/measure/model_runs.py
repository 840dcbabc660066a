"""Random inputs for runs of whole models, and comparison of the models' outputs.

This module also runs on devices, so it imports only the standard library, NumPy and modules that
need no more, such as `compiler.runtime`.
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
    """Return the distribution and the seed from which a random model input is generated.

    Floats are standard normal. Integers are uniform in the half-open range `integers`
    (`Port.integers`), limited to the range of `dtype`. If `integers` is None, they are 0 or 1, as
    are bools. The seed of the input is derived from `seed` and `name`, so that it does not depend
    on the order of the inputs.
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
    """Generate random arrays for the inputs of a program, by name.

    bfloat16 values are returned as their 16-bit patterns.

    Raises:
        OutOfMemoryError: if the arrays do not fit into memory.
    """
    ports = tuple(ports)
    needed = sum(prod(port.shape) * port.dtype.bytes for port in ports)
    check_memory(needed, "for arrays of the inputs")
    return {p.name: input_spec(p.name, p.shape, p.dtype, seed, p.integers).draw() for p in ports}


def largest_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference, divided by the largest finite expected magnitude.

    The result is infinite if the shapes differ, or if NaNs and infinities are not at the same
    positions.
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
