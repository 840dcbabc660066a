"""Translation rules to ONNX for ATen operators that only move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError, Size, expression
from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten
END = (1 << 63) - 1
"""The end of a slice that extends to the last element."""

MOST_PLACES = 1 << 20
"""Maximum number of elements of a strided view that is translated to a gather, with one index per
element."""


def _axis(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def _viewed(t: Translator, node: fx.Node, x: fx.Node, *_: Any, **__: Any) -> str:
    """Translate an operator that only changes the shape, such as `view`, to a reshape."""
    value = t.value(x)
    if x in t.lifted:
        return value
    return t.reshaped(value, t.shape(x), t.shape(node))


def _transposed(t: Translator, x: fx.Node, order: Sequence[int]) -> str:
    value = t.value(x)
    if list(order) == sorted(order):
        return value
    return t.op("Transpose", value, perm=list(order))


def _permute(t: Translator, node: fx.Node, x: fx.Node, dims: Sequence[int]) -> str:
    return _transposed(t, x, [_axis(dim, len(dims)) for dim in dims])


def _swap(t: Translator, node: fx.Node, x: fx.Node, first: int, second: int) -> str:
    rank = len(t.shape(x))
    order = list(range(rank))
    one, other = _axis(first, rank), _axis(second, rank)
    if rank:
        order[one], order[other] = other, one
    return _transposed(t, x, order)


def _turned(t: Translator, node: fx.Node, x: fx.Node) -> str:
    return _transposed(t, x, list(range(len(t.shape(x))))[::-1])


def _expand(t: Translator, node: fx.Node, x: fx.Node, *_: Any, **__: Any) -> str:
    if t.shape(x) == t.shape(node):
        return t.value(x)
    return t.op("Expand", t.value(x), t.numbers(t.shape(node)))


def _repeat(t: Translator, node: fx.Node, x: fx.Node, repeats: Sequence[Any]) -> str:
    shape = t.shape(x)
    whole = (*[1] * (len(repeats) - len(shape)), *shape)
    value = t.reshaped(t.value(x), shape, whole)
    return t.op("Tile", value, t.numbers(repeats))


def sliced(t: Translator, value: str, axis: int, start: Any, end: Any, step: int = 1) -> str:
    """Emit the elements `start:end:step` of a value along an axis, and return the result's name."""
    bounds = [t.numbers([each]) for each in (start, end, axis, step)]
    return t.op("Slice", value, *bounds)


def _slice(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> str:
    if t.shape(x) == t.shape(node):
        return t.value(x)
    first = 0 if start is None else expression(start)
    last: Size = END if end is None else expression(end)
    return sliced(t, t.value(x), _axis(dim, len(t.shape(x))), first, last, step)


def _select(t: Translator, node: fx.Node, x: fx.Node, dim: int, index: Any) -> str:
    axis = _axis(dim, len(t.shape(x)))
    if x.target is aten.view_as_real.default and axis == len(t.shape(x)) - 1:
        with t.taking(index % 2):
            return t.value(x.args[0])
    return t.op("Gather", t.value(x), t.number(index), axis=axis)


def _split_sizes(
    t: Translator, node: fx.Node, x: fx.Node, sizes: Sequence[Any], dim: int = 0
) -> Any:
    axis = _axis(dim, len(t.shape(x)))
    if len(sizes) == 1:
        return (t.value(x),)
    return t.several("Split", t.value(x), t.numbers(sizes), axis=axis, count=len(sizes))


def _split(t: Translator, node: fx.Node, x: fx.Node, size: Any, dim: int = 0) -> Any:
    axis = _axis(dim, len(t.shape(x)))
    sizes = [expression(part.shape[axis]) for part in node.meta["val"]]
    return _split_sizes(t, node, x, sizes, dim)


def _unbind(t: Translator, node: fx.Node, x: fx.Node, dim: int = 0) -> Any:
    axis, count = _axis(dim, len(t.shape(x))), len(node.meta["val"])
    where = t.constant([axis])
    if count == 1:
        return (t.op("Squeeze", t.value(x), where),)
    parts = t.several("Split", t.value(x), t.constant([1] * count), axis=axis, count=count)
    return tuple(t.op("Squeeze", part, where) for part in parts)


def _cat(t: Translator, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    # PyTorch allows an empty vector as an operand of any rank
    real = [part for part in parts if t.shape(part) != (0,) or len(t.shape(node)) == 1]
    values = [t.value(part, t.dtype(node)) for part in real]
    if len(values) == 1:
        return values[0]
    return t.op("Concat", *values, axis=_axis(dim, len(t.shape(node))))


def _stack(t: Translator, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    axis = _axis(dim, len(t.shape(node)))
    where = t.constant([axis])
    values = [t.op("Unsqueeze", t.value(part, t.dtype(node)), where) for part in parts]
    return t.op("Concat", *values, axis=axis)


def _flip(t: Translator, node: fx.Node, x: fx.Node, dims: Sequence[int]) -> str:
    value = t.value(x)
    for dim in dims:
        value = sliced(t, value, _axis(dim, len(t.shape(x))), -1, -END, -1)
    return value


def _roll(
    t: Translator, node: fx.Node, x: fx.Node, shifts: Sequence[int], dims: Sequence[int] = ()
) -> str:
    shape, value = t.shape(x), t.value(x)
    if not dims:  # over all elements in order
        shape = (math.prod(shape),)
        value, dims = t.op("Reshape", value, t.constant([-1])), (0,)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = _axis(dim, len(shape))
        size = shape[axis]
        if not isinstance(size, int):
            raise NotTranslatedError("along a dynamic dimension")
        cut = -shift % size if size else 0
        if cut:
            parts = sliced(t, value, axis, cut, END), sliced(t, value, axis, 0, cut)
            value = t.op("Concat", *parts, axis=axis)
    return value if shape == t.shape(x) else t.reshaped(value, shape, t.shape(x))


def _pad(
    t: Translator, node: fx.Node, x: fx.Node, pads: Sequence[Any], value: float | None = 0
) -> str:
    lows, highs = _pairs(pads, len(t.shape(x)))
    filling = t.constant(value or 0, t.dtype(node))
    return t.op("Pad", t.value(x), t.numbers([*lows, *highs]), filling)


def _mirrored(mode: str) -> Rule:
    def rule(t: Translator, node: fx.Node, x: fx.Node, pads: Sequence[Any]) -> str:
        lows, highs = _pairs(pads, len(t.shape(x)))
        return t.op("Pad", t.value(x), t.numbers([*lows, *highs]), mode=mode)

    return rule


def _pairs(pads: Sequence[Any], rank: int) -> tuple[list[Any], list[Any]]:
    """Convert PyTorch's list of paddings to the paddings before and after each dimension.

    PyTorch's list starts with the pair for the last dimension; dimensions without a pair get 0.
    """
    lows: list[Any] = [0] * rank
    highs: list[Any] = [0] * rank
    for number in range(len(pads) // 2):
        lows[rank - 1 - number], highs[rank - 1 - number] = pads[2 * number : 2 * number + 2]
    return lows, highs


def _triangle(upper: int) -> Rule:
    def rule(t: Translator, node: fx.Node, x: fx.Node, diagonal: int = 0) -> str:
        return t.op("Trilu", t.value(x, t.dtype(node)), t.number(diagonal), upper=upper)

    return rule


def _as_strided(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    size: Sequence[Any],
    stride: Sequence[Any],
    offset: Any = None,
) -> str:
    """Translate a strided view of a tensor's memory.

    The view becomes a reshape, or a transposition and a reshape, if these give the same elements.
    Otherwise, the elements are gathered by their positions in memory.
    """
    value = x.meta["val"]
    old, new = [expression(each) for each in value.shape], [expression(each) for each in size]
    old_steps = [expression(each) for each in value.stride()]
    new_steps = [expression(each) for each in stride]
    first = value.storage_offset() if offset is None else offset
    if first != value.storage_offset():
        return _gathered(t, x, new, new_steps, first)
    kept = [(n, s) for n, s in zip(new, new_steps, strict=True) if n != 1]
    known = {(n, s): k for k, (n, s) in enumerate(zip(old, old_steps, strict=True)) if n != 1}
    if len(known) == len(kept) and all(each in known for each in kept):
        rest = [k for k, n in enumerate(old) if n == 1]
        order = [*rest, *(known[each] for each in kept)]
        turned = _transposed(t, x, order)
        return t.reshaped(turned, [old[k] for k in order], new)
    if _is_packed(new, new_steps) and _is_packed(old, old_steps):
        return t.reshaped(t.value(x), old, new)
    return _gathered(t, x, new, new_steps, first)


def _gathered(
    t: Translator, x: fx.Node, size: Sequence[Any], stride: Sequence[Any], offset: Any
) -> str:
    """Emit a strided view as a gather of elements, with positions computed at compile time."""
    value = x.meta["val"]
    given = [*value.shape, *value.stride(), value.storage_offset(), *size, *stride, offset]
    if not all(isinstance(each, int) for each in given):
        raise NotTranslatedError("with dynamic strides")
    count, start = value.numel(), value.storage_offset()
    extent = (
        start + 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    )
    ends = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not count or not math.prod(size) or max(extent, math.prod(size)) > MOST_PLACES:
        raise NotTranslatedError("without elements, or of too many")
    if ends >= extent:
        raise NotTranslatedError("beyond the elements of a tensor")
    places = torch.full((extent,), -1)
    places.as_strided(value.shape, value.stride(), start).copy_(
        torch.arange(count).reshape(value.shape)
    )
    wanted = places.as_strided(size, stride, offset)
    if (wanted < 0).any():
        raise NotTranslatedError("beyond the elements of a tensor")
    flat = t.op("Reshape", t.value(x), t.constant([-1]))
    return t.op("Gather", flat, t.tensor(wanted), axis=0)


def _diagonal(
    t: Translator, node: fx.Node, x: fx.Node, offset: int = 0, first: int = 0, second: int = 1
) -> str:
    """Translate the diagonal of dimensions `first` and `second`; it becomes the last dimension."""
    shape = t.shape(x)
    one, other = _axis(first, len(shape)), _axis(second, len(shape))
    rest = [dim for dim in range(len(shape)) if dim not in (one, other)]
    rows, columns, size = shape[one], shape[other], t.shape(node)[-1]
    if not all(isinstance(each, int) for each in (rows, columns, size)):
        raise NotTranslatedError("with dynamic sizes")
    turned = _transposed(t, x, [*rest, one, other])
    others = [shape[dim] for dim in rest]
    flat = t.reshaped(turned, [*others, rows, columns], [*others, rows * columns])
    places = torch.arange(size) * (columns + 1) + max(offset, 0) + max(-offset, 0) * columns
    return t.op("Gather", flat, t.tensor(places), axis=len(rest))


def _windows(t: Translator, node: fx.Node, x: fx.Node, dim: int, size: int, step: int) -> str:
    """Translate PyTorch's `unfold`: windows of `size` elements every `step` elements along `dim`.

    The windows may overlap. Dimension `dim` counts the windows; a new last dimension has the
    elements of a window.
    """
    shape = t.shape(x)
    if not shape:
        raise NotTranslatedError("of a single number")
    axis = _axis(dim, len(shape))
    count = t.shape(node)[axis]
    if not isinstance(count, int):
        raise NotTranslatedError("along a dynamic dimension")
    starts = torch.arange(count)[:, None] * step
    found = t.op("Gather", t.value(x), t.tensor(starts + torch.arange(size)), axis=axis)
    order = [dim for dim in range(len(shape) + 1) if dim != axis + 1]
    return t.op("Transpose", found, perm=[*order, axis + 1])


def _is_packed(sizes: Sequence[Size], steps: Sequence[Size]) -> bool:
    total: Any = 1
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if size != 1 and step != total:
            return False
        total = total * size
    return True


_VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_copy.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)

RULES: dict[Any, Rule] = {
    **dict.fromkeys(_VIEWS, _viewed),
    aten.permute.default: _permute,
    aten.transpose.int: _swap,
    aten.t.default: _turned,
    aten.numpy_T.default: _turned,
    aten.expand.default: _expand,
    aten.repeat.default: _repeat,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_sizes,
    aten.chunk.default: _split,
    aten.unbind.int: _unbind,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.flip.default: _flip,
    aten.roll.default: _roll,
    aten.constant_pad_nd.default: _pad,
    aten.reflection_pad1d.default: _mirrored("reflect"),
    aten.reflection_pad2d.default: _mirrored("reflect"),
    aten.replication_pad1d.default: _mirrored("edge"),
    aten.replication_pad2d.default: _mirrored("edge"),
    aten.tril.default: _triangle(0),
    aten.triu.default: _triangle(1),
    aten.as_strided.default: _as_strided,
    aten.as_strided_copy.default: _as_strided,
    aten.diagonal.default: _diagonal,
    aten.unfold.default: _windows,
}
