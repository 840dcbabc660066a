"""NonZero and Compress, which select elements; the data determine how many."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.gather import row_strides
from tilewright.compiler.ops.native import OUTPUT_ONLY, native, trimmed
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import operand_count, show


def _infer_positions(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    if types[0].dtype is not DType.BOOL or len(types[0].shape) != 1:
        raise InvalidModelError(f"{types[0]} is not a vector of booleans")
    return TensorType(DType.INT64, types[0].shape)


def _positions_reference(arrays: Sequence[np.ndarray], _attrs: Attrs) -> np.ndarray:
    """Return the positions of true elements, padded with zeros to the operand's length."""
    found = np.flatnonzero(arrays[0])
    return np.pad(found, (0, arrays[0].size - found.size))


def _positions_work(types: Sequence[TensorType], _attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    return "positions", types[0].shape


def _onnx_non_zero(node: OnnxNode) -> str:
    """Import NonZero: convert positions in the flattened operand to coordinates.

    The result is (rank, count), which is (0, count) for a scalar.
    """
    x = node.input(0)
    shape, dtype = node.shape(x), node.type(x).dtype
    count = prod(shape)
    if count == 0:
        return node.constant(np.zeros((len(shape), 0), np.int64))
    chosen = node.reshape(x, (count,))
    if dtype is not DType.BOOL:
        chosen = node.emit("equal", [chosen, node.scalar(0, dtype)])
        chosen = node.emit("logical_not", [chosen])
    if not shape:
        return trimmed(node, node.constant(np.zeros((0, 1), np.int64)), chosen, 1)
    flat = node.reshape(node.emit("positions", [chosen]), (1, count))
    if len(shape) > 1:
        column = (len(shape), 1)
        steps, extents = (
            cast_to(node, node.reshape(node.sizes(each), column), DType.FLOAT64)
            for each in (row_strides(shape), shape)
        )
        line = _quotient(node, cast_to(node, flat, DType.FLOAT64), steps)
        whole = node.emit("mul", [_quotient(node, line, extents), extents])
        flat = cast_to(node, node.emit("sub", [line, whole]), DType.INT64)
    return trimmed(node, flat, chosen, 1)


def _quotient(node: OnnxNode, number: str, divisors: str) -> str:
    """Return number / divisors, rounded down, for integers below 2**50 in float64.

    Vector instructions do not divide integers. 0.5 is added to the number before the division, so
    that no rounding error moves the quotient to another integer.
    """
    half, one = (node.scalar(each, DType.FLOAT64) for each in (0.5, 1.0))
    middle, shares = node.emit("add", [number, half]), node.emit("div", [one, divisors])
    return node.emit("floor", [node.emit("mul", [middle, shares])])


def _onnx_compress(node: OnnxNode) -> str:
    """Import Compress as a gather at the positions where the condition is true."""
    x, condition = node.input(0), node.input(1)
    axis = 0
    if "axis" in node.attrs:
        rank, axis = len(node.shape(x)), node.integer("axis")
        if not -rank <= axis < rank:
            raise node.invalid(f"axis {axis} is out of range for rank {rank}")
        axis %= rank
    else:
        x = node.reshape(x, (prod(node.shape(x)),))
    kind, shape, dtype = node.type(condition), node.shape(x), node.type(x).dtype
    if kind.dtype is not DType.BOOL or len(kind.shape) != 1 or kind.shape[0] > shape[axis]:
        raise node.invalid(
            f"condition (input 1) is {kind}, expected a vector of at most {shape[axis]} booleans "
            f"for axis {axis} of {show(shape)}"
        )
    if not prod(kind.shape) or not prod(shape):
        return node.constant(np.zeros((*shape[:axis], 0, *shape[axis + 1 :]), dtype.numpy), dtype)
    known = node.builder.known(condition)
    if known is not None:
        return node.emit("gather", [x, node.constant(np.flatnonzero(known))], axis=axis)
    values = node.emit("gather", [x, node.emit("positions", [condition])], axis=axis)
    return trimmed(node, values, condition, axis)


OPERATORS = (
    native(
        "positions",
        _infer_positions,
        _positions_reference,
        _positions_work,
        OnnxRule("NonZero", _onnx_non_zero, limits=OUTPUT_ONLY),
    ),
)
RULES = (OnnxRule("Compress", _onnx_compress, limits=OUTPUT_ONLY),)
