"""Translation rules to ONNX for ATen's gather and scatter operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.rules.creation import counted
from tilewright.compiler.bindings.torch.rules.shapes import END, sliced
from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError, Size, expression
from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten


def _embedding(t: Translator, node: fx.Node, table: fx.Node, rows: fx.Node, *_: Any) -> str:
    t.looked_up(rows, t.shape(table)[0])
    return t.op("Gather", t.value(table), t.value(rows), axis=0)


def _index_select(t: Translator, node: fx.Node, x: fx.Node, dim: int, index: fx.Node) -> str:
    if not t.shape(x):
        raise NotTranslatedError("of a single number")
    t.looked_up(index, t.shape(x)[dim])
    value = t.value(index)
    if not t.shape(index):
        value = t.op("Reshape", value, t.constant([1]))
    return t.op("Gather", t.value(x), value, axis=dim)


def _gather(t: Translator, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, **_: Any) -> str:
    shape, where = t.shape(x), t.shape(index)
    if len(shape) != len(where) or not shape:
        raise NotTranslatedError("of a single number")
    t.looked_up(index, shape[dim])
    return t.op("GatherElements", t.value(x), t.value(index), axis=dim)


def _index(t: Translator, node: fx.Node, x: fx.Node, indices: Sequence[fx.Node | None]) -> str:
    """Translate indexing by tensors, `x[:, rows, columns]`, with NumPy's semantics.

    `indices` has one item per leading dimension; None stands for `:`.
    """
    where = [dim for dim, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(t.dtype(index) in (torch.bool, torch.uint8) for index in given):
        raise NotTranslatedError("with a mask: the number of elements depends on the data")
    for dim, index in zip(where, given, strict=True):
        t.looked_up(index, t.shape(x)[dim], from_end=True)
    rank = len(t.shape(x))
    if len(where) == 1:
        return t.op("Gather", t.value(x), t.value(given[0], torch.int64), axis=where[0])
    # The gathered dimensions come first. In the result they belong at the first indexed dimension,
    # or at the front if the indexed dimensions are not adjacent.
    rest = [dim for dim in range(rank) if dim not in where]
    value = t.value(x)
    if where != list(range(len(where))):
        value = t.op("Transpose", value, perm=[*where, *rest])
    depth = max(len(t.shape(index)) for index in given)
    common = t.shape(node)[_place(where) : _place(where) + depth]
    parts = []
    for index in given:
        name = t.value(index, torch.int64)
        if t.shape(index) != common:
            name = t.op("Expand", name, t.numbers(common))
        parts.append(t.op("Unsqueeze", name, t.constant([-1])))
    found = t.op("GatherND", value, t.op("Concat", *parts, axis=-1))
    place = _place(where)
    if not place:
        return found
    # the gathered value is (positions, rest)
    order = [*range(depth, depth + place), *range(depth), *range(depth + place, depth + len(rest))]
    return t.op("Transpose", found, perm=order)


def _place(where: Sequence[int]) -> int:
    """Return the position in an indexing result at which the index tensors' dimensions begin.

    In `x[:, rows, columns]`, the dimensions of the index tensors replace the two indexed
    dimensions, so they begin at position 1. If the indexed dimensions are not adjacent, as in
    `x[rows, :, columns]`, the dimensions of the index tensors come first: the position is 0.

    Args:
        where: the indexed dimensions, such as [1, 2].
    """
    together = list(where) == list(range(where[0], where[0] + len(where)))
    return where[0] if together else 0


def _slice_scatter(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    source: fx.Node,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> str:
    """Translate the replacement of elements `start:end:step` of a dimension by `source`.

    The number of replaced elements is the extent of `source`, so `end` is not read.
    """
    axis = dim + len(t.shape(x)) if dim < 0 else dim
    size, length = t.shape(x)[axis], t.shape(source)[axis]
    first = expression(start or 0)
    if isinstance(first, int) and first < 0:
        first = size + first
    if isinstance(first, int) and isinstance(size, int):
        first = max(0, min(first, size))
    part = t.value(source, t.dtype(node))
    if step == 1:
        return _replaced(t, t.value(x), part, axis, first, first + length, size)
    if length == 0:
        return t.value(x)
    # each element of the dimension comes from the source, or is unchanged
    apart = t.op("Sub", counted(t, size), t.number(first))
    place = t.op("Div", apart, t.constant(step))
    behind = t.op("GreaterOrEqual", apart, t.constant(0))
    inside = t.op("And", behind, t.op("Less", place, t.number(length)))
    hit = t.op("Equal", t.op("Mul", place, t.constant(step)), apart)
    most = t.number(length - 1)
    near = t.op("Max", t.op("Min", place, most), t.constant(0))
    rank = len(t.shape(x))
    mask = t.op("And", inside, hit)
    if axis < rank - 1:
        mask = t.op("Unsqueeze", mask, t.constant(list(range(1, rank - axis))))
    return t.op("Where", mask, t.op("Gather", part, near, axis=axis), t.value(x))


def _replaced(
    t: Translator, x: str, part: str, axis: int, first: Size, last: Size, size: Size
) -> str:
    """Emit `x` with the elements `first` to `last` (exclusive) of an axis replaced by `part`.

    `size` is the extent of the axis.
    """
    parts = [part]
    if first != 0:
        parts.insert(0, sliced(t, x, axis, 0, first))
    if last != size:
        parts.append(sliced(t, x, axis, last, END))
    return parts[0] if len(parts) == 1 else t.op("Concat", *parts, axis=axis)


def _select_scatter(
    t: Translator, node: fx.Node, x: fx.Node, source: fx.Node, dim: int, index: Any
) -> str:
    axis = dim + len(t.shape(x)) if dim < 0 else dim
    size, place = t.shape(x)[axis], expression(index)
    if isinstance(place, int) and place < 0:
        place = size + place
    part = t.op("Unsqueeze", t.value(source, t.dtype(node)), t.constant([axis]))
    return _replaced(t, t.value(x), part, axis, place, place + 1, size)


def _grid_sample(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    grid: fx.Node,
    how: int,
    padding: int,
    align_corners: bool,
) -> str:
    mode = ("linear", "nearest", "cubic")[how]
    around = ("zeros", "border", "reflection")[padding]
    operands = t.value(x), t.value(grid)
    return t.op(
        "GridSample", *operands, mode=mode, padding_mode=around, align_corners=int(align_corners)
    )


def _scatter(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    dim: int,
    index: fx.Node,
    source: Any,
    how: str | None = None,
    *,
    reduce: str | None = None,
    include_self: bool = True,
) -> str:
    """Translate a scatter: write elements of `source` at the positions `index` along a dimension.

    With a reduction (`how` or `reduce`), the elements are combined with the existing ones.
    """
    reduction = _REDUCTIONS.get(how or reduce)
    if t.dtype(node) is torch.bool:
        reduction = _OF_TRUTHS.get(reduction or "", reduction)
    if reduction is None or not include_self:
        raise NotTranslatedError(f"by {how or reduce}, or without include_self")
    shape, places = t.shape(x), t.shape(index)
    if not shape or len(shape) != len(places):
        raise NotTranslatedError("of a single number")
    if not isinstance(source, fx.Node):
        values = t.op("Expand", t.constant(source, t.dtype(node)), t.numbers(places))
    else:
        values = t.value(source, t.dtype(node))
        for axis, (there, taken) in enumerate(zip(t.shape(source), places, strict=True)):
            if there != taken:  # the leading elements of each dimension
                values = sliced(t, values, axis, 0, taken)
    t.looked_up(index, shape[dim])
    operands = t.value(x), t.value(index), values
    return t.op("ScatterElements", *operands, axis=dim, reduction=reduction)


_REDUCTIONS = {
    None: "none",
    "add": "add",
    "sum": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}
_OF_TRUTHS = {"add": "max", "mul": "min"}
"""Reductions that replace sums and products of booleans in a scatter. In PyTorch, True + True is
True."""


def _scatter_add(
    t: Translator, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, source: fx.Node
) -> str:
    return _scatter(t, node, x, dim, index, source, "sum")


def _index_put(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    indices: Sequence[fx.Node | None],
    values: fx.Node,
    accumulate: bool = False,
) -> str:
    """Translate the assignment `x[:, rows, columns] = values`, which broadcasts the values.

    `indices` has one item per leading dimension; None stands for `:`. With `accumulate`, the values
    are added to the existing elements.
    """
    where = [dim for dim, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(t.dtype(index) in (torch.bool, torch.uint8) for index in given):
        leading = where == list(range(len(where)))
        if leading and len(given) == 1 and not t.shape(values) and not accumulate:
            return _filled(t, node, x, given[0], values)
        raise NotTranslatedError("with a mask: the number of elements depends on the data")
    for dim, index in zip(where, given, strict=True):
        t.looked_up(index, t.shape(x)[dim], from_end=True)
    shapes = [index.meta["val"].shape for index in given]
    common = [_size(each) for each in torch.broadcast_shapes(*shapes)]
    parts = []
    for index in given:
        name = t.value(index, torch.int64)
        if list(t.shape(index)) != common:
            name = t.op("Expand", name, t.numbers(common))
        parts.append(t.op("Unsqueeze", name, t.constant([-1])))
    # ScatterND needs the indexed dimensions first, and therefore the broadcast index dimensions
    # first in the values
    shape, depth, place = t.shape(x), len(common), _place(where)
    rest = [dim for dim in range(len(shape)) if dim not in where]
    there = [*(shape[dim] for dim in rest[:place]), *common, *(shape[dim] for dim in rest[place:])]
    updates = t.value(values, t.dtype(node))
    if list(t.shape(values)) != there:
        updates = t.op("Expand", updates, t.numbers(there))
    order = [*range(place, place + depth), *range(place), *range(place + depth, len(there))]
    updates = _turned(t, updates, order)
    places = t.op("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
    how = "add" if accumulate else "none"
    if t.dtype(node) is torch.bool:
        how = _OF_TRUTHS.get(how, how)
    found = t.op(
        "ScatterND", _turned(t, t.value(x), [*where, *rest]), places, updates, reduction=how
    )
    back = [[*where, *rest].index(dim) for dim in range(len(shape))]
    return _turned(t, found, back)


def _turned(t: Translator, value: str, order: Sequence[int]) -> str:
    if list(order) == sorted(order):
        return value
    return t.op("Transpose", value, perm=list(order))


def _filled(t: Translator, node: fx.Node, x: fx.Node, mask: fx.Node, value: fx.Node) -> str:
    shape, wanted = t.shape(mask), t.shape(x)
    seen = t.reshaped(t.value(mask), shape, (*shape, *[1] * (len(wanted) - len(shape))))
    return t.op("Where", seen, t.value(value, t.dtype(node)), t.value(x))


def _size(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


RULES: dict[Any, Rule] = {
    aten.embedding.default: _embedding,
    aten.index_select.default: _index_select,
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.grid_sampler_2d.default: _grid_sample,
    aten.grid_sampler_3d.default: _grid_sample,
    aten.scatter.src: _scatter,
    aten.scatter.value: _scatter,
    aten.scatter.reduce: _scatter,
    aten.scatter.value_reduce: _scatter,
    aten.scatter_add.default: _scatter_add,
    aten.scatter_reduce.two: _scatter,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
}
