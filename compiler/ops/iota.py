"""The operator `iota`: arithmetic sequences, and tensors computed from dynamic sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Cast, Expr, IndexValue
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.loops.semantics import compute_type
from tilewright.compiler.ops.attributes import axis_of, integer, ints, word
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import ElementCost, Fresh, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import operand_count, show


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Infer the type from the attributes `dtype` and `shape`.

    The element at position i along dimension `axis` is `start + i * step`; a scalar is `start`.
    """
    operand_count(types, 0)
    name, shape = word(attrs, "dtype"), ints(attrs, "shape")
    if name not in set(DType) or any(extent < 0 for extent in shape):
        raise InvalidModelError(f"numbers of type '{name}' in shape {show(shape)}")
    if shape:
        axis_of(attrs, len(shape), -1)
    integer(attrs, "start")
    integer(attrs, "step")
    return TensorType(DType(name), shape)


def _reference(_arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    shape = ints(attrs, "shape")
    dtype = compute_type(DType(word(attrs, "dtype")))
    if not shape:
        return np.asarray(integer(attrs, "start"), dtype)
    axis = axis_of(attrs, len(shape), -1)
    values = integer(attrs, "start") + np.arange(shape[axis]) * integer(attrs, "step")
    column = values.reshape((-1, *(1,) * (len(shape) - 1 - axis)))
    return np.broadcast_to(column, shape).astype(dtype)


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    place = Affine()
    if index:
        place = index[axis_of(attrs, len(index), -1)] * integer(attrs, "step")
    value = IndexValue(place + integer(attrs, "start"), DType.INT64)
    dtype = DType(word(attrs, "dtype"))
    return value if dtype is DType.INT64 else Cast(value, dtype)


def counted(
    node: OnnxNode, count: int, start: int = 0, step: int = 1, dtype: DType = DType.INT64
) -> str:
    """Emit the sequence of `count` integers `start`, `start + step`, ...

    `count`, `start` and `step` may be dynamic sizes.
    """
    return node.emit("iota", [], dtype=dtype.value, shape=(count,), start=start, step=step)


OPERATORS = (
    Operator("iota", OpKind.ELEMENTWISE, _infer, _reference, _expression, cost=ElementCost.CHEAP),
)
