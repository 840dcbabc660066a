"""Gather operators, which read elements at positions that a tensor of indices holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Const, Expr, Operation, constant, op
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.attributes import axis_of
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import grid, table
from tilewright.compiler.ops.index_bounds import sizes_within
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.refusals import at_most
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import operand_count, show
from tilewright.compiler.sizes import same_extents


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 2)
    data, indices = types
    if indices.dtype not in (DType.INT32, DType.INT64):
        raise InvalidModelError(f"indices are {indices.dtype}, not int32 or int64")
    axis = axis_of(attrs, len(data.shape), 0)
    return TensorType(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Compute `gather` with NumPy.

    Negative indices count from the end. An index out of range reads the nearest element.
    """
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
    """Return the expression data[..., indices[...], ...].

    Negative indices count from the end. An index out of range reads the nearest element.
    """
    data, indices = types
    axis = axis_of(attrs, len(data.shape), 0)
    rank = len(indices.shape)
    position = operands[1](index[axis : axis + rank])
    extent, zero = data.shape[axis], Const(0, indices.dtype)
    wrapped = maths.select(op(Operation.LT, position, zero), position + extent, position)
    inside = maths.minimum(maths.maximum(wrapped, zero), constant(extent - 1, indices.dtype))
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
    for count in sizes_within(node, indices, extent):
        indices = at_most(node, indices, count, extent, "elements of a table")
    if node.type(indices).dtype is not DType.INT32:
        indices = cast_to(node, indices, DType.INT64)
    return _gathered(node, data, indices, axis % rank)


def _gathered(node: OnnxNode, data: str, indices: str, axis: int) -> str:
    """Emit the elements of `data` at `indices` along an axis.

    If the axis has the extent 0, no index is valid. A valid run then has no indices, and its result
    has no elements. A tensor of zeros is emitted in place of the gather.

    Raises:
        DynamicSizeError: if a dynamic size determines whether the extent is 0.
    """
    shape = node.shape(data)
    if shape[axis] > 0:
        return node.emit("gather", [data, indices], axis=axis)
    found = (*shape[:axis], *node.shape(indices), *shape[axis + 1 :])
    zero = node.constant(np.zeros((), node.type(data).dtype.numpy), node.type(data).dtype)
    return node.call("Expand", zero, node.sizes(found))


def row_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a row-major array, in elements."""
    return [prod(shape[dim + 1 :]) for dim in range(len(shape))]


def wrapped(node: OnnxNode, indices: str, extents: Sequence[int] | int) -> str:
    """Convert indices to non-negative int64; negative ones count from the end of their dimension.

    `extents` is the extent of the indexed dimension. For index tuples along the last dimension, it
    has one extent per component.

    Raises:
        InvalidModelError: if a constant index is out of range.
        DynamicSizeError: if a constant index is out of range for some sizes of a dynamic extent
            only.
    """
    indices = cast_to(node, indices, DType.INT64)
    known = node.builder.constants.get(indices)
    listed = extents if isinstance(extents, Sequence) else (extents,)
    if known is not None and known.size:
        columns = known.reshape(-1, len(listed))
        ends = zip(columns.min(0).tolist(), columns.max(0).tolist(), listed, strict=True)
        if not all(-extent <= first and last < extent for first, last, extent in ends):
            raise node.invalid(f"an index is out of range for {show(tuple(listed))} elements")
    negative = node.emit("less", [indices, node.scalar(0, DType.INT64)])
    moved = node.emit("add", [indices, node.sizes(extents)])
    return node.emit("where", [negative, moved, indices])


def elements_along(node: OnnxNode, data: str, places: str, axis: int) -> str:
    """Emit `np.take_along_axis(data, places, axis)`.

    `places` (int64, not negative) has the rank of `data`. The result has the shape of `places`.
    """
    shape, picked = node.shape(data), node.shape(places)
    strides = row_strides(shape)
    steps = {dim: step for dim, step in enumerate(strides) if dim != axis}
    scaled = node.emit("mul", [places, node.scalar(strides[axis], DType.INT64)])
    flat = node.emit("add", [scaled, table(node, grid(node, steps, picked), DType.INT64)])
    return _gathered(node, node.reshape(data, (prod(shape),)), flat, 0)


def _onnx_gather_elements(node: OnnxNode) -> str:
    """Import GatherElements, which selects elements along one axis (`elements_along`)."""
    data, indices = node.input(0), node.input(1)
    shape, picked = node.shape(data), node.shape(indices)
    axis, rank = node.integer("axis", 0), len(shape)
    if len(picked) != rank or not -rank <= axis < rank:
        raise node.invalid(
            f"the indices are {show(picked)} and axis is {axis}, expected as many dimensions as "
            f"the data {show(shape)} and one of its axes"
        )
    axis %= rank
    if any(p > e for dim, (p, e) in enumerate(zip(picked, shape, strict=True)) if dim != axis):
        raise node.invalid(
            f"the indices {show(picked)} are larger than the data {show(shape)} in a dimension "
            f"other than axis {axis}"
        )
    return elements_along(node, data, wrapped(node, indices, shape[axis]), axis)


def _onnx_gather_nd(node: OnnxNode) -> str:
    """Import GatherND, whose indices hold coordinates along their last axis.

    The coordinates are converted to indices of flattened data, from which rows are gathered.
    """
    data, indices = node.input(0), node.input(1)
    shape, picked = node.shape(data), node.shape(indices)
    batch = node.integer("batch_dims", 0)
    if (
        not picked
        or not 0 <= batch < len(picked)
        or not same_extents(shape[:batch], picked[:batch])
    ):
        raise node.invalid(
            f"attribute 'batch_dims' is {batch}, expected equal leading dimensions of the indices "
            f"{show(picked)} and the data {show(shape)}"
        )
    depth = picked[-1]
    if not 1 <= depth <= len(shape) - batch:
        raise node.invalid(
            f"the indices {show(picked)} hold {depth} coordinates, expected 1 to "
            f"{len(shape) - batch} for data {show(shape)}"
        )
    row = shape[: batch + depth]
    strides = row_strides(row)
    place = wrapped(node, indices, row[batch:])
    factors = node.sizes(strides[batch:])
    parts = node.emit("mul", [place, factors])
    flat = node.emit("reduce_sum", [parts], axes=(len(picked) - 1,), keepdims=0)
    if batch:
        base = grid(node, dict(enumerate(strides[:batch])), picked[:-1])
        flat = node.emit("add", [flat, table(node, base, DType.INT64)])
    rows = node.reshape(data, (prod(row), *shape[batch + depth :]))
    return _gathered(node, rows, flat, 0)


def _onnx_reverse_sequence(node: OnnxNode) -> str:
    """Import ReverseSequence: reverse the first `length` elements of each batch element's sequence.

    The lengths are the second operand. Elements after the first `length` ones are unchanged.
    """
    x, lengths = node.input(0), node.input(1)
    shape, rank = node.shape(x), len(node.shape(x))
    batch_axis, time_axis = node.integer("batch_axis", 1), node.integer("time_axis", 0)
    if {batch_axis, time_axis} != {0, 1} or rank < 2:
        raise node.invalid(
            f"batch_axis is {batch_axis} and time_axis {time_axis}, expected 0 and 1 in either "
            f"order; the input is {show(shape)}"
        )
    if not same_extents(node.shape(lengths), (shape[batch_axis],)):
        raise node.invalid(
            f"sequence_lens (input 1) is {show(node.shape(lengths))}, expected "
            f"({shape[batch_axis]}) for the input {show(shape)}"
        )
    batch, length = shape[batch_axis], shape[time_axis]
    flat = node.reshape(x, (prod(shape[:2]), prod(shape[2:])))
    lengths = cast_to(node, lengths, DType.INT64)
    column = node.reshape(lengths, (batch, 1) if batch_axis == 0 else (1, batch))
    times = table(node, grid(node, {time_axis: 1}, shape[:2]), DType.INT64)
    last = node.emit("sub", [column, node.scalar(1, DType.INT64)])
    mirrored = node.emit("sub", [last, times])
    place = node.emit("where", [node.emit("less", [times, column]), mirrored, times])
    if time_axis == 0:
        place = node.emit("mul", [place, node.scalar(batch, DType.INT64)])
    step = length if batch_axis == 0 else 1
    base = table(node, grid(node, {batch_axis: step}, shape[:2]), DType.INT64)
    picked = node.emit("gather", [flat, node.emit("add", [place, base])], axis=0)
    return node.reshape(picked, shape)


RULES = (
    OnnxRule("ReverseSequence", _onnx_reverse_sequence),
    OnnxRule("GatherElements", _onnx_gather_elements),
    OnnxRule("GatherND", _onnx_gather_nd),
)

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
