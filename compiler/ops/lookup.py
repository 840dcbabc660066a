"""The operator `lookup`: a function of one 8-bit element, as a table of its 256 values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Cast, Expr
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.ops.registry import Fresh, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import operand_count

ENTRIES = 256


def _infer(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
    operand_count(types, 2)
    x, table = types
    if x.dtype not in INT8_TYPES or table.dtype not in INT8_TYPES or table.shape != (ENTRIES,):
        raise InvalidModelError(f"{x} looked up in {table}, not bytes in {ENTRIES} bytes")
    return TensorType(table.dtype, x.shape)


def _reference(arrays: Sequence[np.ndarray], _attrs: Attrs) -> np.ndarray:
    x, table = arrays
    return np.asarray(table[x.astype(np.int16) & 0xFF])


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    _attrs: Attrs,
    index: tuple[Affine, ...],
    _fresh: Fresh,
) -> Expr:
    """Return the expression table[x[...]]; an int8 element is reinterpreted as uint8."""
    x = operands[0](index)
    position = x if types[0].dtype is DType.UINT8 else Cast(x, DType.UINT8)
    return operands[1]((Affine(),), ((0, position),))


OPERATORS = (Operator("lookup", OpKind.ELEMENTWISE, _infer, _reference, _expression),)
