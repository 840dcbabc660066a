"""Reading at positions known at run time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.dtypes import DType
from compiler.errors import InvalidModelError
from compiler.graph.ir import Attrs
from compiler.graph.types import TensorType
from compiler.loops import maths
from compiler.loops.expr import Const, Expr, Operation, op
from compiler.loops.index import Affine
from compiler.ops.attributes import axis_of
from compiler.ops.cast import cast_to
from compiler.ops.onnx_node import OnnxNode
from compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from compiler.ops.shapes import operand_count


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 2)
    data, indices = types
    if indices.dtype not in (DType.INT32, DType.INT64):
        raise InvalidModelError(f"indices are {indices.dtype}, not int32 or int64")
    axis = axis_of(attrs, len(data.shape), 0)
    return TensorType(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Negative indices count from the end; what is out of range reads the nearest element."""
    data, indices = arrays
    axis = axis_of(attrs, data.ndim, 0)
    extent = data.shape[axis]
    wrapped = np.where(indices < 0, indices + extent, indices)
    return np.take(data, np.clip(wrapped, 0, extent - 1), axis=axis)


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """data[..., indices[...], ...], wrapped and clamped as the reference does."""
    data, indices = types
    axis = axis_of(attrs, len(data.shape), 0)
    rank = len(indices.shape)
    position = operands[1](index[axis : axis + rank])
    extent, zero = data.shape[axis], Const(0, indices.dtype)
    wrapped = maths.select(op(Operation.LT, position, zero), position + extent, position)
    inside = maths.minimum(maths.maximum(wrapped, zero), Const(extent - 1, indices.dtype))
    place = (*index[:axis], Affine(), *index[axis + rank :])
    return operands[0](place, ((axis, inside),))


def _onnx(node: OnnxNode) -> str:
    data, indices = node.input(0), node.input(1)
    rank, axis = len(node.shape(data)), node.integer("axis", 0)
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    known = node.builder.constants.get(indices)
    extent = node.shape(data)[axis]
    if known is not None and known.size and not (-extent <= known.min() and known.max() < extent):
        raise node.invalid(f"an index is out of range for {extent} elements")
    if node.type(indices).dtype is not DType.INT32:
        indices = cast_to(node, indices, DType.INT64)
    return node.emit("gather", [data, indices], axis=axis % rank)


OPERATORS = (
    Operator(
        "gather",
        OpKind.GATHER,
        _infer,
        _reference,
        _expression,
        (OnnxRule("Gather", _onnx),),
    ),
)
