"""Cumulative sums and products along an axis, computed in one pass by a C runtime function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tilewright.compiler.dtypes import Combination, DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import axis_of, integer, word
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import filled
from tilewright.compiler.ops.native import native, split_at
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import operand_count

_RUNNING = {"add": np.add, "mul": np.multiply}


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Infer the type of a running sum or product, which is that of the operand.

    Each result combines the element and all elements before it along `axis` by the attribute
    `reduction`. With `exclusive`, the element itself is excluded. With `reverse`, the elements
    after it are combined instead.
    """
    operand_count(types, 1)
    (x,) = types
    axis_of(attrs, len(x.shape))
    if word(attrs, "reduction") not in _RUNNING:
        raise InvalidModelError(f"running '{word(attrs, 'reduction')}'")
    if x.dtype is DType.BOOL or (x.dtype.is_float and x.dtype.bytes == 2):
        raise InvalidModelError(f"sums of element type {x.dtype} are not implemented")
    return x


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    (x,) = arrays
    axis, combine = axis_of(attrs, x.ndim), _RUNNING[word(attrs, "reduction")]
    turned = np.flip(x, axis) if integer(attrs, "reverse", 0) else x
    with np.errstate(over="ignore", invalid="ignore"):
        found: np.ndarray = combine.accumulate(turned, axis, dtype=x.dtype)
    if integer(attrs, "exclusive", 0):
        found = np.moveaxis(found, axis, 0)
        first = np.full_like(found[:1], combine.identity)
        found = np.moveaxis(np.concatenate([first, found[:-1]]), 0, axis)
    return np.flip(found, axis) if integer(attrs, "reverse", 0) else found


def _work(types: Sequence[TensorType], attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    (x,) = types
    how = Combination[word(attrs, "reduction").upper()]
    extents = split_at(x.shape, axis_of(attrs, len(x.shape)))
    flags = integer(attrs, "exclusive", 0), integer(attrs, "reverse", 0)
    return "accumulate", (x.dtype.kind, x.dtype.bytes, how, *extents, *flags)


def _onnx(reduction: str) -> Callable[[OnnxNode], str]:
    def emit(node: OnnxNode) -> str:
        value = node.input(0)
        shape, dtype = node.shape(value), node.type(value).dtype
        axes = node.static_ints(1, "axis")
        if axes is None or len(axes) != 1 or not -len(shape) <= axes[0] < len(shape):
            raise node.invalid(
                f"axis (input 1) is {axes}, expected one axis of an input of rank {len(shape)}"
            )
        axis, exclusive = axes[0] % len(shape), int(node.integer("exclusive", 0) != 0)
        if prod(shape) == 0 or (shape[axis] == 1 and not exclusive):
            return value
        if shape[axis] == 1:
            return filled(node, _RUNNING[reduction].identity, shape, dtype)
        if dtype.is_float and dtype.bytes == 2:  # long sums exceed its range
            value = cast_to(node, value, DType.FLOAT32)
        result = node.emit(
            "accumulate",
            [value],
            axis=axis,
            reduction=reduction,
            exclusive=exclusive,
            reverse=int(node.integer("reverse", 0) != 0),
        )
        return cast_to(node, result, dtype)

    return emit


OPERATORS = (native("accumulate", _infer, _reference, _work),)

RULES = (
    OnnxRule("CumSum", _onnx("add")),
    OnnxRule("CumProd", _onnx("mul")),
)
