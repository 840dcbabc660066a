"""Writing at positions known at run time, expressed as reading.

Each element of the result finds the updates that are meant for it. If the positions are known at
import, a table says so; else every element looks at every update of its row, and the work is the
product of both lengths.
"""

from __future__ import annotations

from math import prod

import numpy as np

from compiler.dtypes import DType
from compiler.ops.cast import cast_to
from compiler.ops.gather import row_strides, wrapped
from compiler.ops.moves import transposed, window
from compiler.ops.onnx_node import OnnxNode
from compiler.ops.registry import OnnxRule
from compiler.ops.shapes import show

_REDUCTIONS = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}
_JOINS = {"add": "add", "mul": "mul", "max": "max", "min": "min"}


def _scattered(node: OnnxNode, data: str, targets: str, updates: str, reduction: str) -> str:
    """data: (B, N); targets: (B or 1, U), int64 in [0, N); updates: (B, U). Returns (B, N)."""
    (rows, length), count = node.shape(data), node.shape(targets)[1]
    if reduction == "none":
        last = _last(node, targets, length)
        found = node.emit("greater_or_equal", [last, node.scalar(0, DType.INT64)])
        place = node.emit("max", [last, node.scalar(0, DType.INT64)])
        base = node.constant(np.arange(rows, dtype=np.int64)[:, None] * count)
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
    places = node.constant(np.arange(length, dtype=np.int64)[:, None])
    return node.emit("equal", [node.reshape(targets, (rows, 1, count)), places])


def _last(node: OnnxNode, targets: str, length: int) -> str:
    """(B, N): the last update for each place, or -1."""
    rows, count = node.shape(targets)
    known = node.builder.known(targets)
    if known is not None:
        node.reserve(f"{rows * length} positions", rows * length * 8)
        table = np.full((rows, length), -1, np.int64)
        for number in range(count):
            table[np.arange(rows), known[:, number]] = number
        return node.constant(table)
    numbers = node.constant(np.arange(count, dtype=np.int64))
    chosen = node.emit(
        "where", [_meant(node, targets, length), numbers, node.scalar(-1, DType.INT64)]
    )
    return node.emit("reduce_max", [chosen], axes=(2,), keepdims=0)


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
    if len(picked) != rank or node.shape(updates) != picked or not -rank <= axis < rank:
        raise node.invalid(
            f"axis {axis}, indices {show(picked)} and updates {show(node.shape(updates))} "
            f"for data {show(shape)}"
        )
    dim = axis % rank
    if any(p > e for d, (p, e) in enumerate(zip(picked, shape, strict=True)) if d != dim):
        raise node.invalid(f"indices {show(picked)} leave data {show(shape)}")
    if not prod(picked):
        return data
    region = window(node, data, {d: (0, picked[d]) for d in range(rank) if d != dim})
    order = [d for d in range(rank) if d != dim] + [dim]
    rows = prod(picked) // picked[dim]
    flat = [
        node.reshape(transposed(node, value, order), (rows, extent))
        for value, extent in (
            (region, shape[dim]),
            (wrapped(node, indices, np.array(shape[dim])), picked[dim]),
            (updates, picked[dim]),
        )
    ]
    result = _scattered(node, flat[0], flat[1], flat[2], _reduction(node))
    moved = tuple(picked[d] for d in order[:-1])
    result = node.reshape(result, (*moved, shape[dim]))
    result = transposed(node, result, [order.index(d) for d in range(rank)])
    return _put_back(node, data, result)


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
    if not 1 <= depth <= len(shape) or node.shape(updates) != (*picked[:-1], *shape[depth:]):
        raise node.invalid(
            f"indices {show(picked)} and updates {show(node.shape(updates))} for data {show(shape)}"
        )
    places, width, count = prod(shape[:depth]), prod(shape[depth:]), prod(picked[:-1])
    if not count:
        return data
    place = wrapped(node, indices, np.array(shape[:depth], np.int64))
    factors = node.constant(np.array(row_strides(shape[:depth]), np.int64))
    parts = node.emit("mul", [place, factors])
    targets = node.emit("reduce_sum", [parts], axes=(len(picked) - 1,), keepdims=0)
    columns = [
        transposed(node, node.reshape(value, (extent, width)), (1, 0))
        for value, extent in ((data, places), (updates, count))
    ]
    flat = node.reshape(targets, (1, count))
    result = _scattered(node, columns[0], flat, columns[1], _reduction(node))
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
    origin = node.constant(np.arange(planes, dtype=np.int64)[:, None] * size)
    flat = node.reshape(cast_to(node, indices, DType.INT64), (planes, inside))
    targets = node.emit("sub", [flat, origin])
    zeros = node.emit("expand", [node.scalar(0, node.type(x).dtype)], shape=(planes, size))
    values = node.reshape(x, (planes, inside))
    result = node.reshape(_scattered(node, zeros, targets, values, "none"), (*shape[:2], *pooled))
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
    order = [0, dim, *(d for d in range(1, rank) if d != dim)]
    batch, length, count = shape[0], shape[dim], given[dim]
    width = prod(shape) // (batch * length)
    starts = node.optional(2)
    places = node.constant(np.arange(length, dtype=np.int64)[None])
    if starts is not None:
        column = node.reshape(cast_to(node, starts, DType.INT64), (batch, 1))
        places = node.emit("sub", [places, column])
    else:
        places = node.emit("expand", [places], shape=(batch, length))
    if mode == "circular":
        places = node.emit("mod", [places, node.scalar(length, DType.INT64)], fmod=0)
    above = node.emit("greater_or_equal", [places, node.scalar(0, DType.INT64)])
    below = node.emit("less", [places, node.scalar(count, DType.INT64)])
    inside = node.emit("logical_and", [above, below])
    nearest = node.emit("clip", [places], min=0, max=count - 1)
    base = node.constant(np.arange(batch, dtype=np.int64)[:, None] * count)
    rows = node.reshape(transposed(node, update, order), (batch * count, width))
    picked = node.emit("gather", [rows, node.emit("add", [nearest, base])], axis=0)
    cache = node.reshape(transposed(node, past, order), (batch, length, width))
    column = node.reshape(inside, (batch, length, 1))
    result = node.emit("where", [column, picked, cache])
    result = node.reshape(result, tuple(shape[d] for d in order))
    return transposed(node, result, [order.index(d) for d in range(rank)])


RULES = (
    OnnxRule(
        "ScatterElements",
        _onnx_scatter_elements,
        limits="work grows with data times updates unless the indices are constant",
    ),
    OnnxRule("Scatter", _onnx_scatter_elements),
    OnnxRule(
        "ScatterND",
        _onnx_scatter_nd,
        limits="work grows with data times updates unless the indices are constant",
    ),
    OnnxRule("MaxUnpool", _onnx_max_unpool, limits="work grows with the square of an image"),
    OnnxRule("TensorScatter", _onnx_tensor_scatter),
)
