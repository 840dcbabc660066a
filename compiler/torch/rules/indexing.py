"""Elements found by their positions, and put there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from compiler.torch.rules.shapes import sliced
from compiler.torch.symbolic import NotTranslatedError
from compiler.torch.translation import Rule, Translator

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
    """`x[:, rows, columns]`, as NumPy has it."""
    where = [dim for dim, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(t.dtype(index) in (torch.bool, torch.uint8) for index in given):
        raise NotTranslatedError("with a mask: the data decide how many elements there are")
    for dim, index in zip(where, given, strict=True):
        t.looked_up(index, t.shape(x)[dim], from_end=True)
    rank = len(t.shape(x))
    if len(where) == 1:
        return t.op("Gather", t.value(x), t.value(given[0], torch.int64), axis=where[0])
    # the indexed dimensions come first; together they are where the first of them was, or in front
    # where others lie between them
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
    # what was found is (positions, rest)
    order = [*range(depth, depth + place), *range(depth), *range(depth + place, depth + len(rest))]
    return t.op("Transpose", found, perm=order)


def _place(where: Sequence[int]) -> int:
    """The dimension at which the positions stand in the result."""
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
    """What was there before the part, the part, and what was behind it."""
    axis = dim + len(t.shape(x)) if dim < 0 else dim
    size = t.shape(x)[axis]
    first, last = 0 if start is None else start, size if end is None else end
    if step != 1 or not (isinstance(first, int) and isinstance(last, int)):
        raise NotTranslatedError("in steps, or at open positions")
    if not isinstance(size, int):
        raise NotTranslatedError("along an open dimension")
    first, last = (max(0, min(k + size if k < 0 else k, size)) for k in (first, last))
    parts = [t.value(source, t.dtype(node))]
    if first:
        parts.insert(0, sliced(t, t.value(x), axis, 0, first))
    if last < size:
        parts.append(sliced(t, t.value(x), axis, last, size))
    return parts[0] if len(parts) == 1 else t.op("Concat", *parts, axis=axis)


def _select_scatter(
    t: Translator, node: fx.Node, x: fx.Node, source: fx.Node, dim: int, index: int
) -> str:
    axis = dim + len(t.shape(x)) if dim < 0 else dim
    size = t.shape(x)[axis]
    if not isinstance(size, int) or not isinstance(index, int):
        raise NotTranslatedError("at an open position")
    place = index + size if index < 0 else index
    part = t.op("Unsqueeze", t.value(source, t.dtype(node)), t.constant([axis]))
    parts = [part]
    if place:
        parts.insert(0, sliced(t, t.value(x), axis, 0, place))
    if place + 1 < size:
        parts.append(sliced(t, t.value(x), axis, place + 1, size))
    return parts[0] if len(parts) == 1 else t.op("Concat", *parts, axis=axis)


def _scatter(
    t: Translator, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, source: Any
) -> str:
    if not isinstance(source, fx.Node):
        shape = t.numbers(t.shape(index))
        values = t.op("Expand", t.constant(source, t.dtype(node)), shape)
    elif t.shape(source) != t.shape(index):
        raise NotTranslatedError("of part of the values")
    else:
        values = t.value(source, t.dtype(node))
    t.looked_up(index, t.shape(x)[dim])
    return t.op("ScatterElements", t.value(x), t.value(index), values, axis=dim)


def _index_put(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    indices: Sequence[fx.Node | None],
    values: fx.Node,
    accumulate: bool = False,
) -> str:
    """Positions in the leading dimensions, and rows that go there."""
    where = [dim for dim, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if where != list(range(len(where))):
        raise NotTranslatedError("behind a dimension that is kept")
    if any(t.dtype(index) in (torch.bool, torch.uint8) for index in given):
        if len(given) == 1 and not t.shape(values) and not accumulate:
            return _filled(t, node, x, given[0], values)
        raise NotTranslatedError("with a mask: the data decide how many elements there are")
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
    rest = t.shape(x)[len(where) :]
    updates = t.value(values, t.dtype(node))
    if list(t.shape(values)) != [*common, *rest]:
        updates = t.op("Expand", updates, t.numbers([*common, *rest]))
    places = t.op("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
    how = "add" if accumulate else "none"
    return t.op("ScatterND", t.value(x), places, updates, reduction=how)


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
    aten.scatter.src: _scatter,
    aten.scatter.value: _scatter,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
}
