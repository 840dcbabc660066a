"""Writing at positions.

If the positions are known at import, each element of the result reads the update that a table
names. Else `scatter` writes the updates over the data, in place where nothing else needs the data:
then a cache costs what is new. Where updates are combined with the data, every element looks at
every update of its row, and the work is the product of both lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from compiler.dtypes import DType
from compiler.errors import InvalidModelError
from compiler.graph.ir import Attrs
from compiler.graph.types import TensorType
from compiler.ops.attributes import integer
from compiler.ops.cast import cast_to
from compiler.ops.computed import counting, filled, grid, table
from compiler.ops.gather import row_strides, wrapped
from compiler.ops.moves import transposed, window
from compiler.ops.native import native
from compiler.ops.onnx_node import OnnxNode
from compiler.ops.registry import OnnxRule
from compiler.ops.shapes import operand_count, show
from compiler.sizes import same_extents

_REDUCTIONS = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}
_JOINS = {"add": "add", "mul": "mul", "max": "max", "min": "min"}


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """The first `depth` dimensions of the data count its rows; the type of the result.

    data: any shape; places: (updates,), int64; updates: as many rows of the data's type. A place
    that is no row's number is left out. Of several updates for one place the last one stays.
    """
    operand_count(types, 3)
    data, places, updates = types
    depth = integer(attrs, "depth")
    if not 1 <= depth <= len(data.shape):
        raise InvalidModelError(f"rows of {depth} dimensions of data {show(data.shape)}")
    if places.dtype is not DType.INT64 or len(places.shape) != 1:
        raise InvalidModelError(f"places are {places}, not a vector of int64")
    if updates.dtype is not data.dtype:
        raise InvalidModelError(f"updates of {updates.dtype} for data of {data.dtype}")
    if updates.elements != places.elements * prod(data.shape[depth:]):
        raise InvalidModelError(
            f"updates {show(updates.shape)} for {places.elements} rows of "
            f"{show(data.shape[depth:])}"
        )
    return data


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    data, places, updates = arrays
    depth = integer(attrs, "depth")
    width = prod(data.shape[depth:])
    rows = data.reshape(prod(data.shape[:depth]), width).copy()
    inside = (places >= 0) & (places < len(rows))
    rows[places[inside]] = updates.reshape(len(places), width)[inside]
    return rows.reshape(data.shape)


def _work(types: Sequence[TensorType], attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    data, places, _ = types
    depth = integer(attrs, "depth")
    within = prod(data.shape[depth:]) * data.dtype.bytes
    return "scatter", (prod(data.shape[:depth]), within, places.elements)


def rows_replaced(
    node: OnnxNode,
    cache: str,
    starts: str,
    update: str,
    axis: int,
    *,
    circular: bool = False,
) -> str:
    """A cache whose rows along an axis are those of an update, from a start of each batch's own on.

    cache: (batch, ..., length, ...); starts: (batch,), int64; update: (batch, ..., count, ...).
    Rows before the cache or after it are left out; in a circular one they go on at its other end.
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
    """The value where the place is from 0 on and below the length, else -1."""
    zero, end = (node.scalar(each, DType.INT64) for each in (0, length))
    above = node.emit("greater_or_equal", [place, zero])
    inside = node.emit("logical_and", [above, node.emit("less", [place, end])])
    return node.emit("where", [inside, value, node.scalar(-1, DType.INT64)])


def _scattered(node: OnnxNode, data: str, targets: str, updates: str, reduction: str) -> str:
    """data: (B, N); targets: (B or 1, U), int64 in [0, N); updates: (B, U). Returns (B, N).

    Without a reduction the targets are known.
    """
    (rows, length), count = node.shape(data), node.shape(targets)[1]
    if reduction == "none":
        known = node.builder.known(targets)
        assert known is not None
        last = _last(node, known, length)
        found = node.emit("greater_or_equal", [last, node.scalar(0, DType.INT64)])
        place = node.emit("max", [last, node.scalar(0, DType.INT64)])
        base = table(node, counting(node, rows, count).reshape((rows, 1)), DType.INT64)
        flat = node.reshape(updates, (rows * count,))
        picked = node.emit("gather", [flat, node.emit("add", [place, base])], axis=0)
        return node.emit("where", [found, picked, data])
    meant = _meant(node, targets, length)
    given = node.reshape(updates, (rows, 1, count))
    column = node.reshape(data, (rows, length, 1))
    if reduction in ("add", "mul"):
        neutral = node.scalar(0 if reduction == "add" else 1, node.type(data).dtype)
    else:
        neutral = column
    values = node.emit("where", [meant, given, neutral])
    total = node.emit(_REDUCTIONS[reduction], [values], axes=(2,), keepdims=0)
    return node.emit(_JOINS[reduction], [data, total])


def _meant(node: OnnxNode, targets: str, length: int) -> str:
    """(B, N, U): whether an update is for a place."""
    rows, count = node.shape(targets)
    places = table(node, counting(node, length).reshape((length, 1)), DType.INT64)
    return node.emit("equal", [node.reshape(targets, (rows, 1, count)), places])


def _last(node: OnnxNode, targets: np.ndarray, length: int) -> str:
    """(B or 1, N): the last update for each place, or -1."""
    rows, count = targets.shape
    node.reserve(f"{rows * length} positions", rows * length * 8)
    table = np.full((rows, length), -1, np.int64)
    for number in range(count):
        table[np.arange(rows), targets[:, number]] = number
    return node.constant(table)


def _reduction(node: OnnxNode) -> str:
    reduction = node.word("reduction", "none")
    if reduction != "none" and reduction not in _REDUCTIONS:
        raise node.invalid(f"reduction is '{reduction}'")
    return reduction


def _onnx_scatter_elements(node: OnnxNode) -> str:
    """Each update goes along one axis from its own place."""
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    shape, picked = node.shape(data), node.shape(indices)
    rank, axis = len(shape), node.integer("axis", 0)
    fit = len(picked) == rank and same_extents(node.shape(updates), picked)
    if not fit or not -rank <= axis < rank:
        raise node.invalid(
            f"axis {axis}, indices {show(picked)} and updates {show(node.shape(updates))} "
            f"for data {show(shape)}"
        )
    dim = axis % rank
    if any(p > e for d, (p, e) in enumerate(zip(picked, shape, strict=True)) if d != dim):
        raise node.invalid(f"indices {show(picked)} leave data {show(shape)}")
    if not prod(picked):
        return data
    reduction = _reduction(node)
    if reduction == "none" and node.builder.known(indices) is None:
        return _replaced(node, data, indices, updates, dim)
    region = window(node, data, {d: (0, picked[d]) for d in range(rank) if d != dim})
    order = [d for d in range(rank) if d != dim] + [dim]
    rows = prod(picked) // picked[dim]
    flat = [
        node.reshape(transposed(node, value, order), (rows, extent))
        for value, extent in (
            (region, shape[dim]),
            (wrapped(node, indices, shape[dim]), picked[dim]),
            (updates, picked[dim]),
        )
    ]
    result = _scattered(node, flat[0], flat[1], flat[2], reduction)
    moved = tuple(picked[d] for d in order[:-1])
    result = node.reshape(result, (*moved, shape[dim]))
    result = transposed(node, result, [order.index(d) for d in range(rank)])
    return _put_back(node, data, result)


def _replaced(node: OnnxNode, data: str, indices: str, updates: str, dim: int) -> str:
    """The data with each update in the place that its index names along one dimension; along the
    others it is the update's own."""
    shape, picked = node.shape(data), node.shape(indices)
    strides = row_strides(shape)
    place = wrapped(node, indices, shape[dim])
    element = node.emit("mul", [place, node.scalar(strides[dim], DType.INT64)])
    for d, extent in enumerate(picked):
        if d != dim and extent != 1:
            steps = grid(node, {d: strides[d]}, picked)
            element = node.emit("add", [element, table(node, steps, DType.INT64)])
    element = _within(node, element, place, shape[dim])
    flat = [node.reshape(value, (prod(picked),)) for value in (element, updates)]
    return node.emit("scatter", [data, *flat], depth=len(shape))


def _put_back(node: OnnxNode, data: str, region: str) -> str:
    """The data with its first places along every dimension replaced."""
    shape = node.shape(data)
    for dim, extent in enumerate(shape):
        kept = node.shape(region)
        if kept[dim] < extent:
            later = {d: (0, kept[d]) for d in range(dim + 1, len(shape))}
            rest = window(node, data, {dim: (kept[dim], extent - kept[dim]), **later})
            region = node.emit("concat", [region, rest], axis=dim)
    return region


def _onnx_scatter_nd(node: OnnxNode) -> str:
    """The last axis of the indices holds coordinates of a row of the data."""
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    shape, picked = node.shape(data), node.shape(indices)
    depth = picked[-1] if picked else 0
    wanted = (*picked[:-1], *shape[depth:])
    if not 1 <= depth <= len(shape) or not same_extents(node.shape(updates), wanted):
        raise node.invalid(
            f"indices {show(picked)} and updates {show(node.shape(updates))} for data {show(shape)}"
        )
    places, width, count = prod(shape[:depth]), prod(shape[depth:]), prod(picked[:-1])
    if not count:
        return data
    place = wrapped(node, indices, shape[:depth])
    factors = node.sizes(row_strides(shape[:depth]))
    parts = node.emit("mul", [place, factors])
    targets = node.emit("reduce_sum", [parts], axes=(len(picked) - 1,), keepdims=0)
    reduction = _reduction(node)
    if reduction == "none" and node.builder.known(targets) is None:
        return node.emit("scatter", [data, node.reshape(targets, (count,)), updates], depth=depth)
    columns = [
        transposed(node, node.reshape(value, (extent, width)), (1, 0))
        for value, extent in ((data, places), (updates, count))
    ]
    flat = node.reshape(targets, (1, count))
    result = _scattered(node, columns[0], flat, columns[1], reduction)
    return node.reshape(transposed(node, result, (1, 0)), shape)


def _onnx_max_unpool(node: OnnxNode) -> str:
    """Maxima back at the places that they came from, counted over the tensor that was pooled."""
    x, indices = node.input(0), node.input(1)
    shape = node.shape(x)
    rank = len(shape) - 2
    kernel = node.ints("kernel_shape")
    if rank < 1 or kernel is None or len(kernel) != rank or node.shape(indices) != shape:
        raise node.invalid(f"input {show(shape)}, indices {show(node.shape(indices))}")
    strides = node.ints("strides") or (1,) * rank
    pads = node.ints("pads") or (0,) * (2 * rank)
    pooled = tuple(
        (extent - 1) * s - pads[d] - pads[rank + d] + k
        for d, (extent, s, k) in enumerate(zip(shape[2:], strides, kernel, strict=True))
    )
    if min(pooled) < 1:
        raise node.invalid(f"kernel {show(kernel)} and pads {pads} for an input of {show(shape)}")
    full = node.static_ints(2, "output_shape") or (*shape[:2], *pooled)
    if len(full) != len(shape) or full[:2] != shape[:2] or min(full) < 1:
        raise node.invalid(f"output_shape {full} for an input of {show(shape)}")
    planes, inside, size = shape[0] * shape[1], prod(shape[2:]), prod(pooled)
    places = node.reshape(cast_to(node, indices, DType.INT64), (planes * inside,))
    zeros = node.emit("expand", [node.scalar(0, node.type(x).dtype)], shape=(planes * size,))
    result = node.emit("scatter", [zeros, places, x], depth=1)
    result = node.reshape(result, (*shape[:2], *pooled))
    return window(node, result, {dim: (0, full[dim]) for dim in range(2, rank + 2)})


def _onnx_tensor_scatter(node: OnnxNode) -> str:
    """An update from a position of each batch's own on, in a ring where mode is circular."""
    past, update = node.input(0), node.input(1)
    shape, given = node.shape(past), node.shape(update)
    rank, axis = len(shape), node.integer("axis", -2)
    mode = node.word("mode", "linear")
    if not -rank <= axis < rank or axis % rank == 0 or len(given) != rank:
        raise node.invalid(f"axis {axis}, update {show(given)} for a cache of {show(shape)}")
    if mode not in ("linear", "circular"):
        raise node.invalid(f"mode is '{mode}'")
    dim = axis % rank
    if any(g != e for d, (g, e) in enumerate(zip(given, shape, strict=True)) if d != dim):
        raise node.invalid(f"axis {axis}, update {show(given)} for a cache of {show(shape)}")
    starts = node.optional(2)
    if starts is None:
        starts = filled(node, 0, shape[:1], DType.INT64)
    elif node.type(starts).elements != shape[0]:
        raise node.invalid(f"write_indices {show(node.shape(starts))} for a cache of {show(shape)}")
    starts = cast_to(node, starts, DType.INT64)
    return rows_replaced(node, past, starts, update, dim, circular=mode == "circular")


OPERATORS = (native("scatter", _infer, _reference, _work),)

RULES = (
    OnnxRule(
        "ScatterElements",
        _onnx_scatter_elements,
        limits="with a reduction, work grows with data times updates",
    ),
    OnnxRule("Scatter", _onnx_scatter_elements),
    OnnxRule(
        "ScatterND",
        _onnx_scatter_nd,
        limits="with a reduction, work grows with data times updates",
    ),
    OnnxRule("MaxUnpool", _onnx_max_unpool),
    OnnxRule("TensorScatter", _onnx_tensor_scatter),
)
