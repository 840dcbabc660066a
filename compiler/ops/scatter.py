"""Scatter operators: updates of elements or rows at given positions.

The operator `scatter` overwrites data with updates, or combines them. It works in place if no other
node needs the data; the cost of updating a cache is then proportional to the number of new rows.
Updates at consecutive positions known at import become a concatenation instead, which fuses with
the nodes that compute the updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tilewright.compiler.dtypes import Combination, DType
from tilewright.compiler.errors import InvalidModelError, unknown_choice
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import integer, word
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import counting, filled, grid, table
from tilewright.compiler.ops.gather import row_strides, wrapped
from tilewright.compiler.ops.moves import part, window
from tilewright.compiler.ops.native import native
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import operand_count, show
from tilewright.compiler.sizes import is_dynamic, same_extents

_COMBINED = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_REDUCTIONS = ("none", *_COMBINED)
_OF_TRUTHS = {"add": "max", "mul": "min"}


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Infer the type of `scatter`, which is the type of the data.

    The operands are the data, the indices of rows, int64 (updates,), and one new row per index.
    Rows are counted along the first `depth` dimensions of the data, flattened to one; `depth` is an
    attribute. Updates at invalid indices are ignored. If an index occurs several times, the last
    update counts.
    """
    operand_count(types, 3)
    data, places, updates = types
    depth = integer(attrs, "depth")
    if not 1 <= depth <= len(data.shape):
        raise InvalidModelError(
            f"rows of {depth} dimensions do not exist in data {show(data.shape)}"
        )
    if places.dtype is not DType.INT64 or len(places.shape) != 1:
        raise InvalidModelError(f"places are {places}, not a vector of int64")
    if updates.dtype is not data.dtype:
        raise InvalidModelError(
            f"the updates have element type {updates.dtype} and the data {data.dtype}, expected "
            "the same"
        )
    if updates.elements != places.elements * prod(data.shape[depth:]):
        raise InvalidModelError(
            f"the updates are {show(updates.shape)}, expected {places.elements} rows of "
            f"{show(data.shape[depth:])}"
        )
    reduction = word(attrs, "reduction", "none")
    if reduction not in _REDUCTIONS:
        raise InvalidModelError(unknown_choice("the reduction", reduction, _REDUCTIONS))
    if reduction != "none" and data.dtype.is_float and data.dtype.bytes == 2:
        raise InvalidModelError(
            f"the reduction '{reduction}' of {data.dtype} must be computed in float32"
        )
    return data


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    data, places, updates = arrays
    depth = integer(attrs, "depth")
    width = prod(data.shape[depth:])
    rows = data.reshape(prod(data.shape[:depth]), width).copy()
    inside = (places >= 0) & (places < len(rows))
    given, reduction = updates.reshape(len(places), width)[inside], word(attrs, "reduction", "none")
    if reduction == "none":
        rows[places[inside]] = given
    else:
        _COMBINED[reduction].at(rows, places[inside], given)
    return rows.reshape(data.shape)


def _work(types: Sequence[TensorType], attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    data, places, _ = types
    depth, reduction = integer(attrs, "depth"), word(attrs, "reduction", "none")
    rows, within = prod(data.shape[:depth]), prod(data.shape[depth:])
    size, count = data.dtype.bytes, places.elements
    if reduction == "none":
        return "scatter", (rows, within * size, count)
    how = Combination[reduction.upper()]
    return "combine", (data.dtype.kind, size, how, rows, within, count)


def rows_replaced(
    node: OnnxNode,
    cache: str,
    starts: str,
    update: str,
    axis: int,
    *,
    circular: bool = False,
) -> str:
    """Emit the cache with rows along `axis` replaced by those of `update`, from `starts` on.

    cache: (batch, ..., length, ...); starts: (batch,), int64; update: (batch, ..., count, ...).
    Rows outside the cache are dropped; in a circular cache, they continue at its other end.
    """
    shape, count = node.shape(cache), node.shape(update)[axis]
    batch, length, between = shape[0], shape[axis], prod(shape[1:axis])
    column = node.reshape(starts, (batch, 1, 1))
    steps = table(node, counting(node, count).reshape((1, 1, count)), DType.INT64)
    place = node.emit("add", [column, steps])
    if circular:
        place = node.emit("mod", [place, node.scalar(length, DType.INT64)], fmod=0)
    blocks = counting(node, batch * between, length).reshape((batch, between, 1))
    row = node.emit("add", [place, table(node, blocks, DType.INT64)])
    if not circular:
        row = _within(node, row, place, length)
    row = node.reshape(row, (batch * between * count,))
    return node.emit("scatter", [cache, row, update], depth=axis + 1)


def _within(node: OnnxNode, value: str, place: str, length: int) -> str:
    """Emit `value` where 0 <= place < length, and -1 elsewhere."""
    zero, end = (node.scalar(each, DType.INT64) for each in (0, length))
    above = node.emit("greater_or_equal", [place, zero])
    inside = node.emit("logical_and", [above, node.emit("less", [place, end])])
    return node.emit("where", [inside, value, node.scalar(-1, DType.INT64)])


def _written(
    node: OnnxNode, data: str, places: str, updates: str, depth: int, reduction: str
) -> str:
    """Emit the data with rows replaced by updates, or combined with them by `reduction`.

    Rows are counted along the first `depth` dimensions of the data, flattened to one; `places` are
    indices of rows, int64 (updates,). 16-bit elements are combined in float32 and rounded once.
    """
    dtype = node.type(data).dtype
    if reduction == "none":
        known = node.builder.known(places)
        pieces = None if known is None else _pieces(node, data, known, updates, depth)
        return pieces or node.emit("scatter", [data, places, updates], depth=depth)
    if dtype is DType.BOOL:
        reduction = _OF_TRUTHS.get(reduction, reduction)
    if dtype.is_float and dtype.bytes == 2:
        data, updates = (cast_to(node, value, DType.FLOAT32) for value in (data, updates))
    result = node.emit("scatter", [data, places, updates], depth=depth, reduction=reduction)
    return cast_to(node, result, dtype)


def _pieces(node: OnnxNode, data: str, places: np.ndarray, updates: str, depth: int) -> str | None:
    """Emit the scatter as a concatenation: the data before, the updates, the data after.

    The result is None unless `places` are, in row-major order, a range of positions along one
    dimension and all positions along the other ones. A concatenation fuses with the nodes that
    compute the updates, and needs no table of places.
    """
    shape = node.shape(data)
    if any(map(is_dynamic, shape[:depth])) or places.min() < 0:
        return None
    coordinates = np.unravel_index(places, shape[:depth])
    starts = [int(each.min()) for each in coordinates]
    sizes = [int(each.max()) - first + 1 for each, first in zip(coordinates, starts, strict=True)]
    cut = [dim for dim in range(depth) if sizes[dim] < shape[dim]]
    if prod(sizes) != len(places) or len(cut) > 1:
        return None
    box = np.ix_(*(range(s, s + n) for s, n in zip(starts, sizes, strict=True)))
    if (np.ravel_multi_index(box, shape[:depth]).reshape(-1) != places).any():
        return None
    middle = node.reshape(updates, (*sizes, *shape[depth:]))
    if not cut:
        return middle
    (dim,) = cut
    start, end = starts[dim], starts[dim] + sizes[dim]
    parts = [
        *([part(node, data, dim, 0, start)] if start else []),
        middle,
        *([part(node, data, dim, end, shape[dim] - end)] if end < shape[dim] else []),
    ]
    return node.emit("concat", parts, axis=dim)


def _reduction(node: OnnxNode) -> str:
    return node.choice("reduction", _REDUCTIONS, "none")


def _onnx_scatter_elements(node: OnnxNode) -> str:
    """Import ScatterElements: write each update to its own position in the data.

    The index of an update replaces the update's coordinate along the node's axis.
    """
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    shape, picked = node.shape(data), node.shape(indices)
    rank, axis = len(shape), node.integer("axis", 0)
    fit = len(picked) == rank and same_extents(node.shape(updates), picked)
    if not fit or not -rank <= axis < rank:
        raise node.invalid(
            f"axis is {axis}, indices (input 1) are {show(picked)} and updates (input 2) "
            f"{show(node.shape(updates))}, expected an axis of the data {show(shape)}, and indices "
            "and updates of one shape with as many dimensions"
        )
    dim = axis % rank
    if any(p > e for d, (p, e) in enumerate(zip(picked, shape, strict=True)) if d != dim):
        raise node.invalid(
            f"indices (input 1) are {show(picked)}, larger than the data {show(shape)} in a "
            f"dimension other than axis {dim}"
        )
    if not prod(picked):
        return data
    strides = row_strides(shape)
    place = wrapped(node, indices, shape[dim])
    element = node.emit("mul", [place, node.scalar(strides[dim], DType.INT64)])
    for d, extent in enumerate(picked):
        if d != dim and extent != 1:
            steps = grid(node, {d: strides[d]}, picked)
            element = node.emit("add", [element, table(node, steps, DType.INT64)])
    element = node.reshape(_within(node, element, place, shape[dim]), (prod(picked),))
    return _written(node, data, element, updates, rank, _reduction(node))


def _onnx_scatter_nd(node: OnnxNode) -> str:
    """Import ScatterND, whose indices hold the coordinates of rows along their last axis."""
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    shape, picked = node.shape(data), node.shape(indices)
    depth = picked[-1] if picked else 0
    wanted = (*picked[:-1], *shape[depth:])
    if not 1 <= depth <= len(shape) or not same_extents(node.shape(updates), wanted):
        raise node.invalid(
            f"indices (input 1) are {show(picked)} and updates (input 2) "
            f"{show(node.shape(updates))}, expected 1 to {len(shape)} coordinates along the last "
            f"dimension of the indices, and an update for each row of the data {show(shape)}"
        )
    count = prod(picked[:-1])
    if not count:
        return data
    place = wrapped(node, indices, shape[:depth])
    factors = node.sizes(row_strides(shape[:depth]))
    parts = node.emit("mul", [place, factors])
    targets = node.emit("reduce_sum", [parts], axes=(len(picked) - 1,), keepdims=0)
    return _written(node, data, node.reshape(targets, (count,)), updates, depth, _reduction(node))


def _onnx_max_unpool(node: OnnxNode) -> str:
    """Import MaxUnpool: write maxima to their original positions, and zeros elsewhere.

    The positions are indices of the flattened tensor that was pooled.
    """
    x, indices = node.input(0), node.input(1)
    shape = node.shape(x)
    rank = len(shape) - 2
    kernel = node.ints("kernel_shape")
    if rank < 1 or kernel is None or len(kernel) != rank:
        raise node.invalid(
            f"attribute 'kernel_shape' is {kernel}, expected the {max(rank, 1)} spatial dimensions "
            f"of the input {show(shape)}"
        )
    if not same_extents(node.shape(indices), shape):
        raise node.invalid(
            f"indices (input 1) are {show(node.shape(indices))}, expected the shape of the input "
            f"{show(shape)}"
        )
    strides = node.ints("strides") or (1,) * rank
    pads = node.ints("pads") or (0,) * (2 * rank)
    pooled = tuple(
        (extent - 1) * s - pads[d] - pads[rank + d] + k
        for d, (extent, s, k) in enumerate(zip(shape[2:], strides, kernel, strict=True))
    )
    if min(pooled) < 1:
        raise node.invalid(
            f"kernel {show(kernel)} and pads {pads} leave no element of the input {show(shape)}"
        )
    full = node.static_ints(2, "output_shape") or (*shape[:2], *pooled)
    if len(full) != len(shape) or full[:2] != shape[:2] or min(full) < 1:
        raise node.invalid(
            f"output_shape (input 2) is {full}, expected the batch and channels of the input "
            f"{show(shape)} and {rank} positive extents"
        )
    planes, inside, size = shape[0] * shape[1], prod(shape[2:]), prod(pooled)
    places = node.reshape(cast_to(node, indices, DType.INT64), (planes * inside,))
    zeros = node.emit("expand", [node.scalar(0, node.type(x).dtype)], shape=(planes * size,))
    result = node.emit("scatter", [zeros, places, x], depth=1)
    result = node.reshape(result, (*shape[:2], *pooled))
    return window(node, result, {dim: (0, full[dim]) for dim in range(2, rank + 2)})


def _onnx_tensor_scatter(node: OnnxNode) -> str:
    """Import TensorScatter: write new rows into a cache from a start position on.

    Each batch element has its own start position. With the mode "circular", the cache is a ring
    buffer.
    """
    past, update = node.input(0), node.input(1)
    shape, given = node.shape(past), node.shape(update)
    rank, axis = len(shape), node.integer("axis", -2)
    mode = node.choice("mode", ("linear", "circular"), "linear")
    if not -rank <= axis < rank or axis % rank == 0 or len(given) != rank:
        raise node.invalid(
            f"axis is {axis} and update (input 1) {show(given)}, expected an axis other than the "
            f"batch and as many dimensions as the cache {show(shape)}"
        )
    dim = axis % rank
    if any(g != e for d, (g, e) in enumerate(zip(given, shape, strict=True)) if d != dim):
        raise node.invalid(
            f"update (input 1) is {show(given)}, expected the extents of the cache {show(shape)} "
            f"in all dimensions but axis {dim}"
        )
    starts = node.optional(2)
    if starts is None:
        starts = filled(node, 0, shape[:1], DType.INT64)
    elif node.type(starts).elements != shape[0]:
        raise node.invalid(
            f"write_indices (input 2) are {show(node.shape(starts))}, expected ({shape[0]}), one "
            f"for each batch of the cache {show(shape)}"
        )
    starts = cast_to(node, starts, DType.INT64)
    return rows_replaced(node, past, starts, update, dim, circular=mode == "circular")


def _sums(attrs: Attrs) -> bool:
    return word(attrs, "reduction", "none") == "add"


OPERATORS = (replace(native("scatter", _infer, _reference, _work), sums=_sums),)

RULES = (
    OnnxRule("ScatterElements", _onnx_scatter_elements),
    OnnxRule("Scatter", _onnx_scatter_elements),
    OnnxRule("ScatterND", _onnx_scatter_nd),
    OnnxRule("MaxUnpool", _onnx_max_unpool),
    OnnxRule("TensorScatter", _onnx_tensor_scatter),
)
