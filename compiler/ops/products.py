"""The types of a sum of products: how its operands are stored, and what it is computed in.

The types of the operands say how they lie in memory. The attribute `accumulator`, which
contractions of bytes have, names the type in which products are formed and added up, and which the
result has. Without it, all three are one type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.dtypes import DType
from compiler.errors import InvalidModelError
from compiler.graph.ir import Attrs
from compiler.graph.types import TensorType
from compiler.loops.expr import Cast, Expr
from compiler.ops.attributes import word
from compiler.ops.shapes import same_dtype

BYTES = (DType.UINT8, DType.INT8)


def computed_type(types: Sequence[TensorType], attrs: Attrs) -> DType:
    """The type of products, sums and result; a bias (the third operand) has it too.

    Raises:
        InvalidModelError: if the operands are not of one type, or, with an accumulator, no bytes.
    """
    stated = word(attrs, "accumulator", "")
    if not stated:
        return same_dtype(types)
    stored = [kind.dtype for kind in types[:2]]
    if stated != DType.INT32 or not set(stored) <= set(BYTES):
        names = " and ".join(stored)
        raise InvalidModelError(f"products of {names} are not added up in '{stated}'")
    if any(kind.dtype is not DType.INT32 for kind in types[2:]):
        raise InvalidModelError(f"a bias of {types[2].dtype} for sums in {stated}")
    return DType.INT32


def widened(factor: Expr, dtype: DType) -> Expr:
    """A factor in the type that products are formed in."""
    return factor if factor.dtype is dtype else Cast(factor, dtype)


def exactly(arrays: Sequence[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    """Operands of a reference in a type whose sums of products are exact.

    That is float64 for bytes: 2**53 holds the sum of 2**37 products, and BLAS has no integers.
    """
    if not word(attrs, "accumulator", ""):
        return list(arrays)
    return [array.astype(np.float64) for array in arrays]


def accumulated(sums: np.ndarray, attrs: Attrs, dtype: np.dtype) -> np.ndarray:
    """What `exactly` led to, in the type of the result: `dtype`, or wrapped to the accumulator."""
    if not word(attrs, "accumulator", ""):
        return np.asarray(sums, dtype)
    return sums.astype(np.int64).astype(np.int32)
