"""Element types of contractions: the types of operands in memory, and the type of the sums.

On contractions of 8- and 16-bit elements, the attribute `accumulator` is the type of products, sums
and result. Without it, operands, sums and result have one type.
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

INT8_TYPES = (DType.UINT8, DType.INT8)
INT16_TYPES = (DType.UINT16, DType.INT16)
HALVES = (DType.FLOAT16, DType.BFLOAT16)


def computed_type(types: Sequence[TensorType], attrs: Attrs, operands: int = 2) -> DType:
    """Return the type of the products, sums and result of a node that sums products (e.g. matmul).

    The first `operands` operands are multiplied. The others are added (a bias, a mask), and must
    have the returned type.

    Raises:
        InvalidModelError: if the types do not agree, or the attribute `accumulator` does not fit:
            it must be int32 for factors of int8, uint8 or int16, and float32 for factors of one
            16-bit float type.
    """
    stated = word(attrs, "accumulator", "")
    if not stated:
        return same_dtype(types)
    stored = {kind.dtype for kind in types[:operands]}
    integers = stated == DType.INT32 and (stored <= set(INT8_TYPES) or stored == {DType.INT16})
    halves = stated == DType.FLOAT32 and stored <= set(HALVES) and len(stored) == 1
    if not integers and not halves:
        names = " and ".join(kind.dtype for kind in types[:operands])
        raise InvalidModelError(f"products of {names} are not added up in '{stated}'")
    sums = DType(stated)
    if any(kind.dtype is not sums for kind in types[operands:]):
        raise InvalidModelError(
            f"the bias has element type {types[operands].dtype}, expected {stated} as the sums"
        )
    return sums


def exactly(arrays: Sequence[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """Convert the operands of a NumPy reference to a type that is wide enough for sums of products.

    Integers are converted to float64, because BLAS does not support integers. Sums in float64 are
    exact up to 2**53: for 2**37 products of 8 bits, or 2**23 of 16 bits. 16-bit floats are
    converted to float32.
    """
    match word(attrs, "accumulator", ""):
        case DType.INT32:
            return [array.astype(np.float64) for array in arrays]
        case DType.FLOAT32:
            wide = np.result_type(np.float32, *arrays)  # float64 if an operand has it
            return [array.astype(wide, copy=False) for array in arrays]
    return list(arrays)


def accumulated(sums: np.ndarray, attrs: Attrs, dtype: np.dtype) -> np.ndarray:
    """Convert sums of products to the result type of their operator, such as a matrix product.

    The type is the attribute `accumulator`, or `dtype` without this attribute. Sums in int32 wrap
    around.

    Args:
        sums: the sums, computed in a type that is wide enough for them (`exactly`).
        attrs: the attributes of the node.
        dtype: the type of a result without the attribute `accumulator`.
    """
    match word(attrs, "accumulator", ""):
        case DType.INT32:
            return sums.astype(np.int64).astype(np.int32)
        case DType.FLOAT32:
            return sums
    return np.asarray(sums, dtype)
