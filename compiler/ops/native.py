"""Helpers for operators that a C runtime function computes (kind NATIVE), and the operator `trim`.

`trim` shortens a value along one dimension to an extent that is computed at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Expr
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.attributes import axis_of
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import (
    Fresh,
    Infer,
    NativeWork,
    OnnxRule,
    Operator,
    OpKind,
    Reference,
    Source,
)
from tilewright.compiler.ops.shapes import operand_count

OUTPUT_ONLY = "in an artifact, few operators can read the result"
"""The documented limit of operators whose import rule emits `trim`."""


def native(
    name: str, infer: Infer, reference: Reference, work: NativeWork, *onnx: OnnxRule
) -> Operator:
    """Declare an operator that a function of the C runtime computes.

    Args:
        name: the operator's name.
        infer: returns the type of the result.
        reference: computes the operator on NumPy arrays.
        work: returns the name of the C runtime function and its parameters.
        onnx: the rules that import ONNX nodes as this operator.
    """
    return Operator(name, OpKind.NATIVE, infer, reference, no_expression, onnx, native=work)


def no_expression(
    _operands: Sequence[Source],
    _types: Sequence[TensorType],
    _attrs: Attrs,
    _index: tuple[Affine, ...],
    _fresh: Fresh,
) -> Expr:
    raise ValueError("neither a native operator nor control flow nor a view has an expression")


def split_at(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Split a shape at an axis into three numbers.

    They are the product of the extents before the axis, the extent of the axis, and the product of
    the extents after it.
    """
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def trimmed(node: OnnxNode, value: str, chosen: str, axis: int = 0) -> str:
    """Emit the first n positions of `value` along an axis.

    n is the number of true elements of the boolean vector `chosen`. If `chosen` is known at import,
    the result is a slice. Otherwise, the operator `trim` computes the result, whose extent is known
    only at run time. Such a result may be read only by nodes that do not combine positions along
    the axis (`frontend/trimmed_operands.py`).
    """
    known = node.builder.known(chosen)
    if known is not None:
        return part(node, value, axis, 0, int(known.sum()))
    ones = cast_to(node, chosen, DType.INT64)
    count = node.emit("reduce_sum", [ones], axes=(0,), keepdims=0)
    return node.emit("trim", [value, count], axis=axis)


def _infer_trim(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Infer the type of a trimmed value: the operand's type.

    Its extent along the axis is the largest possible one; each run uses only a part of it.
    """
    operand_count(types, 2)
    axis_of(attrs, len(types[0].shape), 0)
    if types[1] != TensorType(DType.INT64, ()):
        raise InvalidModelError(f"the count is {types[1]}, not an int64 scalar")
    return types[0]


def _trim_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, count = arrays
    axis = axis_of(attrs, x.ndim, 0)
    return x[(slice(None),) * axis + (slice(0, int(count)),)]


def _trim_work(types: Sequence[TensorType], attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    shape = types[0].shape
    outer, extent, inner = split_at(shape, axis_of(attrs, len(shape), 0))
    return "trim", (outer, extent, inner * types[0].dtype.bytes)


OPERATORS = (native("trim", _infer_trim, _trim_reference, _trim_work),)
