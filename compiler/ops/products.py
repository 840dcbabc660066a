"""The types of a sum of products: storage types of operands, and the computation type.

The operand types are the types in memory. The attribute `accumulator`, on contractions of bytes and
of 16-bit floats, is the type of products, sums and the result. Without it, all three are one type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import word
from tilewright.compiler.ops.shapes import same_dtype

BYTES = (DType.UINT8, DType.INT8)
WORDS = (DType.UINT16, DType.INT16)
HALVES = (DType.FLOAT16, DType.BFLOAT16)


def computed_type(types: Sequence[TensorType], attrs: Attrs, operands: int = 2) -> DType:
    """Return the type of the products, sums and result of a contraction.

    The first `operands` types are those of the factors. Operands that are added (a bias, a mask)
    have the returned type.

    Raises:
        InvalidModelError: if the factors differ in type, or the accumulator is wrong for them: it
            must be int32 for bytes or int16, float32 for 16-bit floats of one type.
    """
    stated = word(attrs, "accumulator", "")
    if not stated:
        return same_dtype(types)
    stored = {kind.dtype for kind in types[:operands]}
    integers = stated == DType.INT32 and (stored <= set(BYTES) or stored == {DType.INT16})
    halves = stated == DType.FLOAT32 and stored <= set(HALVES) and len(stored) == 1
    if not integers and not halves:
        names = " and ".join(kind.dtype for kind in types[:operands])
        raise InvalidModelError(f"products of {names} are not added up in '{stated}'")
    sums = DType(stated)
    if any(kind.dtype is not sums for kind in types[operands:]):
        raise InvalidModelError(f"a bias of {types[operands].dtype} for sums in {stated}")
    return sums


def exactly(arrays: Sequence[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """Convert the reference's operands to a type in which sums of products are exact, or precise.

    For integers that is float64: 2**53 holds the sum of 2**37 products of bytes, or of 2**23 of 16
    bits, and BLAS does not support integers.
    """
    match word(attrs, "accumulator", ""):
        case DType.INT32:
            return [array.astype(np.float64) for array in arrays]
        case DType.FLOAT32:
            wide = np.result_type(np.float32, *arrays)  # float64 if an operand has it
            return [array.astype(wide, copy=False) for array in arrays]
    return list(arrays)


def accumulated(sums: np.ndarray, attrs: Attrs, dtype: np.dtype) -> np.ndarray:
    """Convert sums of `exactly` to the type of the result: `dtype`, or wrapped to the
    accumulator."""
    match word(attrs, "accumulator", ""):
        case DType.INT32:
            return sums.astype(np.int64).astype(np.int32)
        case DType.FLOAT32:
            return sums
    return np.asarray(sums, dtype)
