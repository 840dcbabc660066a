"""Operators that sort elements: TopK and Unique."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import axis_of, integer
from tilewright.compiler.ops.computed import filled
from tilewright.compiler.ops.gather import elements_along
from tilewright.compiler.ops.moves import part, transposed
from tilewright.compiler.ops.native import OUTPUT_ONLY, native, split_at, trimmed
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import operand_count, show


def _infer_top_k(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    shape, k = types[0].shape, integer(attrs, "k")
    if not shape:
        raise InvalidModelError("a scalar has no axis")
    axis = axis_of(attrs, len(shape), -1)
    if not 0 <= k <= shape[axis]:
        raise InvalidModelError(
            f"k is {k}, expected 0 to the {shape[axis]} elements of axis {axis}"
        )
    return TensorType(DType.INT64, (*shape[:axis], k, *shape[axis + 1 :]))


def _top_k_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Compute the positions of the k largest or smallest elements along an axis.

    Equal elements keep their order. NaN counts as larger than every number.
    """
    x = arrays[0]
    axis, k = axis_of(attrs, x.ndim, -1), integer(attrs, "k")
    if integer(attrs, "largest", 1):
        backwards = np.argsort(np.flip(x, axis), axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - backwards, axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    return np.take(order, range(k), axis)


def _top_k_work(types: Sequence[TensorType], attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    (x,) = types
    outer, extent, inner = split_at(x.shape, axis_of(attrs, len(x.shape), -1))
    order = integer(attrs, "k"), int(bool(integer(attrs, "largest", 1)))
    return "top_k", (x.dtype.kind, x.dtype.bytes, outer, extent, inner, *order)


def _onnx_top_k(node: OnnxNode) -> list[str]:
    """Import TopK; returns the elements and their positions, sorted even if `sorted` is 0.

    If k is known only at run time, all elements along the axis are sorted, and the first k are
    kept.
    """
    x = node.input(0)
    rank, axis = len(node.shape(x)), node.integer("axis", -1)
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    axis %= rank
    count = None
    if "k" in node.attrs:
        k = node.integer("k")
    else:
        given = node.input(1)
        if node.type(given).elements != 1 or node.type(given).dtype is not DType.INT64:
            raise node.invalid(f"k (input 1) is {node.type(given)}, expected one int64")
        known = node.builder.known(given)
        k = node.shape(x)[axis] if known is None else int(known.reshape(-1)[0])
        if known is None:
            count = node.reshape(given, ())
    largest = int(node.integer("largest", 1) != 0)
    if node.shape(x)[axis] == 1 and k == 1:  # a single element needs no order
        found = [x, filled(node, 0, node.shape(x), DType.INT64)]
    else:
        if k == 1 and (largest or not node.type(x).dtype.is_float):
            # `arg_min` does not apply to floats: it ranks NaN before any number, TopK after it.
            name = "arg_max" if largest else "arg_min"
            indices = node.emit(name, [x], axis=axis, keepdims=1, last=0)
        else:
            indices = node.emit("top_k", [x], axis=axis, k=k, largest=largest)
        found = [elements_along(node, x, indices, axis), indices]
    if count is None:
        return found
    return [node.emit("trim", [value, count], axis=axis) for value in found]


def _infer_unique(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    shape = types[0].shape
    if len(shape) != 2:
        raise InvalidModelError(f"rows are asked for, not shape {show(shape)}")
    return TensorType(DType.INT64, (3, shape[0]))


def _unique_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Group equal rows of a matrix; return an int64 array (3, rows).

    Row 0 of the result has the index of each group's first row, row 1 the group of each row, and
    row 2 the size of each group. Rows 0 and 2 are padded with zeros. Groups are in lexicographic
    order, or, without `sorted`, in the order of their first rows. NaN equals NaN.
    """
    x = arrays[0]
    count = len(x)
    order = np.lexsort(x.T[::-1])
    before, after = x[order[:-1]], x[order[1:]]
    differs = (before != after) & ~((before != before) & (after != after))
    groups = np.concatenate([[0], np.cumsum(differs.any(axis=1))])
    found = np.zeros((3, count), np.int64)
    found[1, order] = groups
    first = np.full(groups[-1] + 1, count)
    np.minimum.at(first, found[1], np.arange(count))
    if not integer(attrs, "sorted", 1):
        by_first = np.argsort(first)
        found[1] = np.argsort(by_first)[found[1]]
        first = first[by_first]
    found[0, : len(first)] = first
    found[2, : len(first)] = np.bincount(found[1])
    return found


def _unique_work(types: Sequence[TensorType], attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    (x,) = types
    ordered = int(bool(integer(attrs, "sorted", 1)))
    return "unique", (x.dtype.kind, x.dtype.bytes, *x.shape, ordered)


def _onnx_unique(node: OnnxNode) -> list[str]:
    """Import Unique, along an axis or on the flattened operand.

    Equal slices along the axis form a group. Returns the first slice of each group, that slice's
    position, the group of each slice, and the sizes of the groups.
    """
    x = node.input(0)
    rank, axis = len(node.shape(x)), 0
    if "axis" in node.attrs:
        axis = node.integer("axis")
        if not -rank <= axis < rank:
            raise node.invalid(f"axis {axis} is out of range for rank {rank}")
        axis %= rank
    else:
        x = node.reshape(x, (prod(node.shape(x)),))
    shape = node.shape(x)
    if not prod(shape):
        raise node.unsupported(f"the input {show(shape)} has no elements")
    others = [dim for dim in range(len(shape)) if dim != axis]
    rows = transposed(node, x, (axis, *others))
    rows = node.reshape(rows, (shape[axis], prod(shape) // shape[axis]))
    groups = node.emit("unique", [rows], sorted=int(node.integer("sorted", 1) != 0))

    def row(number: int) -> str:
        return node.reshape(part(node, groups, 0, number, 1), (shape[axis],))

    first, inverse, counts = row(0), row(1), row(2)
    chosen = node.emit("greater", [counts, node.scalar(0, DType.INT64)])
    values = node.emit("gather", [x, first], axis=axis)
    return [
        trimmed(node, values, chosen, axis),
        trimmed(node, first, chosen),
        inverse,
        trimmed(node, counts, chosen),
    ]


OPERATORS = (
    native(
        "top_k",
        _infer_top_k,
        _top_k_reference,
        _top_k_work,
        OnnxRule("TopK", _onnx_top_k, limits=f"with k at run time, {OUTPUT_ONLY}"),
    ),
    native(
        "unique",
        _infer_unique,
        _unique_reference,
        _unique_work,
        OnnxRule("Unique", _onnx_unique, limits=OUTPUT_ONLY),
    ),
)
