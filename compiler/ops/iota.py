"""Numbers that follow from positions and sizes alone: counting, and a size as data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.dtypes import DType
from compiler.errors import InvalidModelError
from compiler.graph.ir import Attrs
from compiler.graph.types import TensorType
from compiler.loops.expr import Cast, Expr, IndexValue
from compiler.loops.index import Affine
from compiler.loops.semantics import compute_type
from compiler.ops.attributes import integer, ints, word
from compiler.ops.registry import Effort, Fresh, Operator, OpKind, Source
from compiler.ops.shapes import operand_count


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """`start + i * step` along the last dimension of `shape`; a scalar is `start`."""
    operand_count(types, 0)
    name, shape = word(attrs, "dtype"), ints(attrs, "shape")
    if name not in set(DType) or len(shape) > 1 or any(extent < 0 for extent in shape):
        raise InvalidModelError(f"numbers of type '{name}' in {len(shape)} dimensions")
    integer(attrs, "start")
    integer(attrs, "step")
    return TensorType(DType(name), shape)


def _reference(_arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    shape = ints(attrs, "shape")
    steps = np.arange(shape[0]) if shape else np.zeros((), np.int64)
    values = integer(attrs, "start") + steps * integer(attrs, "step")
    return np.asarray(values, compute_type(DType(word(attrs, "dtype"))))


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    place = index[-1] * integer(attrs, "step") if index else Affine()
    value = IndexValue(place + integer(attrs, "start"), DType.INT64)
    dtype = DType(word(attrs, "dtype"))
    return value if dtype is DType.INT64 else Cast(value, dtype)


OPERATORS = (
    Operator("iota", OpKind.ELEMENTWISE, _infer, _reference, _expression, effort=Effort.CHEAP),
)
