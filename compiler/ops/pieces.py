"""Concat and Pad, whose outputs are assembled from rectangular boxes (`Piece`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Expr
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.attributes import axis_of, dimension, ints, number, word
from tilewright.compiler.ops.computed import counting, table
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Piece, Source
from tilewright.compiler.ops.shapes import Shape, operand_count, same_dtype, show
from tilewright.compiler.sizes import at, dimensions, is_dynamic, larger, same_extents


def _no_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Raise ValueError: the operator has no single expression for all elements.

    How an element is computed depends on its box (`Operator.pieces`).
    """
    raise ValueError("an operator in pieces has no single expression")


def _infer_concat(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    if not types:
        raise InvalidModelError("it has no operands")
    dtype = same_dtype(types)
    first = types[0].shape
    axis = axis_of(attrs, len(first))
    for kind in types[1:]:
        rest = kind.shape[:axis] + kind.shape[axis + 1 :]
        if not same_extents(rest, first[:axis] + first[axis + 1 :]):
            raise InvalidModelError(
                f"the operands {show(first)} and {show(kind.shape)} differ in a dimension other "
                f"than axis {axis}"
            )
    total = sum(kind.shape[axis] for kind in types)
    return TensorType(dtype, (*first[:axis], total, *first[axis + 1 :]))


def _concat_pieces(types: Sequence[TensorType], attrs: Attrs) -> tuple[Piece, ...]:
    axis = axis_of(attrs, len(types[0].shape))
    pieces, start = [], 0
    for position, kind in enumerate(types):
        offset = tuple(start if dim == axis else 0 for dim in range(len(kind.shape)))
        if kind.shape[axis] != 0:
            pieces.append(Piece(position, offset, kind.shape))
        start += kind.shape[axis]
    return tuple(pieces)


def _onnx_concat(node: OnnxNode) -> str:
    values = [node.input(i) for i in range(len(node.inputs))]
    if not values:
        raise node.invalid("it has no inputs")
    rank = len(node.shape(values[0]))
    axis = node.integer("axis")
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    # Shape arithmetic often concatenates empty constants. Other operands without elements still
    # count along the axis.
    full = [v for v in values if len(node.shape(v)) != rank or node.shape(v)[axis] != 0]
    values = full or values[:1]
    return values[0] if len(values) == 1 else node.emit("concat", values, axis=axis % rank)


def _pads(attrs: Attrs, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pads = ints(attrs, "pads")
    if len(pads) != 2 * rank or any(pad < 0 for pad in pads):
        raise InvalidModelError(f"pads are {show(pads)}, expected {2 * rank} numbers of at least 0")
    return pads[:rank], pads[rank:]


def _infer_pad(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    shape = types[0].shape
    before, after = _pads(attrs, len(shape))
    number(attrs, "value", 0.0)
    return TensorType(
        types[0].dtype, tuple(b + e + a for b, e, a in zip(before, shape, after, strict=True))
    )


def _pad_pieces(types: Sequence[TensorType], attrs: Attrs) -> tuple[Piece, ...]:
    """Return the padding as boxes that do not overlap, followed by the box of the operand."""
    shape = types[0].shape
    before, after = _pads(attrs, len(shape))
    full = _infer_pad(types, attrs).shape
    pieces = []
    low, extents = [0] * len(shape), list(full)
    for dim, (b, a) in enumerate(zip(before, after, strict=True)):
        for start, size in ((0, b), (full[dim] - a, a)):
            if size != 0:
                offset, box = list(low), list(extents)
                offset[dim], box[dim] = start, size
                pieces.append(Piece(None, tuple(offset), tuple(box)))
        low[dim], extents[dim] = b, shape[dim]
    return (*pieces, Piece(0, before, shape))


def _pad_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    before, after = _pads(attrs, x.ndim)
    value = np.asarray(number(attrs, "value", 0.0)).astype(x.dtype)
    return np.pad(x, list(zip(before, after, strict=True)), constant_values=value)


def _onnx_pad(node: OnnxNode) -> str:
    x = node.input(0)
    shape = node.shape(x)
    pads = _onnx_pads(node, len(shape))
    rank = len(shape)
    before, after = pads[:rank], pads[rank:]
    starts = tuple(larger(-b, 0) for b in before)
    sizes = tuple(
        extent - start - larger(-a, 0)
        for extent, start, a in zip(shape, starts, after, strict=True)
    )
    if any(size < (1 if is_dynamic(size) else 0) for size in sizes):
        raise node.invalid(
            f"pads {show(pads)} remove more elements than the input {show(shape)} has"
        )
    before, after = (tuple(larger(p, 0) for p in part) for part in (before, after))
    mode = node.word("mode", "constant")
    fill = _fill(node) if mode == "constant" else 0.0
    if any(size == 0 for size in sizes):
        _check_source(node, mode, shape, sizes, (*before, *after))
        full = tuple(b + size + a for b, size, a in zip(before, sizes, after, strict=True))
        return node.emit("expand", [node.scalar(fill, node.type(x).dtype)], shape=full)
    if sizes != shape:
        x = node.emit("slice", [x], starts=starts, steps=(1,) * rank, sizes=sizes)
    if all(pad == 0 for pad in (*before, *after)):
        return x
    if mode not in (*AROUND, "constant"):
        raise node.unknown("mode", mode, ("constant", *AROUND))
    if mode != "constant":
        if _boxes(sizes, (*before, *after), mode):
            return node.emit("extend", [x], pads=(*before, *after), mode=mode)
        return _gathered(node, x, mode, before, after)
    return node.emit("pad", [x], pads=(*before, *after), value=fill)


def _fill(node: OnnxNode) -> float:
    """Return the constant with which the node pads: input 2, the attribute `value`, or 0."""
    value = node.static(2, "constant_value")
    return node.number("value", 0.0) if value is None or value.size == 0 else float(value.item())


def _check_source(node: OnnxNode, mode: str, shape: Shape, sizes: Shape, pads: Shape) -> None:
    """Check that each padded dimension has an element to copy, unless the padding is a constant.

    Args:
        node: the node that pads.
        mode: the padding mode; "constant" copies no elements.
        shape: the shape of the operand, for the error.
        sizes: the extents that remain after negative padding.
        pads: the padding before each dimension, then the padding after each.

    Raises:
        InvalidModelError: if a padded dimension has no element to copy.
    """
    padded = (low != 0 or high != 0 for low, high in zip(pads, pads[len(sizes) :], strict=False))
    if mode != "constant" and any(p and size == 0 for p, size in zip(padded, sizes, strict=True)):
        raise node.invalid(
            f"mode '{mode}' repeats elements, and the pads leave none of {show(shape)}"
        )


def _onnx_pads(node: OnnxNode, rank: int) -> tuple[int, ...]:
    """Return the node's padding: the padding before each dimension, then the padding after each.

    Raises:
        InvalidModelError: if the padding is missing or does not fit the axes.
    """
    pads = node.ints("pads") or node.static_ints(1, "pads")
    axes = node.static_ints(3, "axes")
    axes = tuple(range(rank)) if axes is None else axes
    if pads is None or len(pads) != 2 * len(axes):
        given = "missing" if pads is None else show(pads)
        raise node.invalid(
            f"pads are {given}, expected {2 * len(axes)} numbers for {len(axes)} axes"
        )
    full = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        dim = dimension(axis, rank)
        full[dim], full[rank + dim] = pads[position], pads[len(axes) + position]
    return tuple(full)


AROUND = ("reflect", "edge", "wrap")
"""Padding modes that fill the border with elements of the operand."""

_MOST_BOXES = 32
"""Maximum number of boxes from which a padded tensor is assembled. Padding all edges of three
dimensions takes 27."""


def _places(places: Any, extent: int, mode: str) -> Any:
    """Map positions in a padded dimension to positions of the elements to copy.

    For example, position -1 becomes 1 with the mode "reflect", 0 with "edge", and the last position
    with "wrap". `places` is an array or a `Computed`; `extent` is the extent without padding.
    """
    match mode:
        case "edge":
            return np.clip(places, 0, extent - 1)
        case "reflect":  # reflect at the first element, then at the last
            if not is_dynamic(extent):  # repeat if the padding is longer than the operand
                places = np.mod(places, max(2 * (extent - 1), 1))
            return extent - 1 - abs(extent - 1 - abs(places))
        case _:
            return np.mod(places, extent)


class _Run(NamedTuple):
    """A range of output elements whose sources in the operand are evenly spaced.

    Along one dimension, output element `offset + i` is operand element `start + i * step`, for i
    from 0 to `size - 1`.
    """

    offset: int
    size: int
    start: int
    step: int


def _runs(extent: int, before: int, after: int, mode: str) -> list[_Run]:
    """Divide a padded dimension into ranges whose sources in the operand are evenly spaced.

    `extent` is the extent without padding; `before` and `after` are the numbers of added elements.
    The result is empty if the number of ranges may depend on dynamic sizes.
    """
    middle = _Run(before, extent, 0, 1)
    if before == 0 and after == 0:
        return [middle]
    if not any(map(is_dynamic, (extent, before, after))):
        sides = [(0, before), (before + extent, after)]
        first, last = (
            _split(offset, _places(np.arange(offset, offset + size) - before, extent, mode))
            for offset, size in sides
        )
        return [*first, middle, *last]
    end = before + extent
    match mode:
        case "edge":
            sides_ = _Run(0, before, 0, 0), _Run(end, after, extent - 1, 0)
        case "reflect" if larger(before, after) < extent:
            sides_ = _Run(0, before, before, -1), _Run(end, after, extent - 2, -1)
        case _:
            return []
    return [run for run in (sides_[0], middle, sides_[1]) if run.size != 0]


def _split(offset: int, places: np.ndarray) -> list[_Run]:
    """Divide operand positions, one per output element, into ranges of evenly spaced positions.

    The first range starts at output element `offset`. If there are more ranges than the limit for
    boxes, only one range beyond the limit is returned.
    """
    found: list[_Run] = []
    first, steps = 0, np.diff(places)
    turns = np.flatnonzero(np.diff(steps)) + 2  # positions at which the step changes
    while first < len(places) and len(found) <= _MOST_BOXES:
        # the step before a run's first position does not belong to the run
        end = int(next(iter(turns[np.searchsorted(turns, first + 2) :]), len(places)))
        step = int(steps[first]) if end > first + 1 else 0
        found.append(_Run(offset + first, end - first, int(places[first]), step))
        first = end
    return found


def _boxes(shape: Shape, pads: Shape, mode: str) -> tuple[Piece, ...]:
    """Divide a padded tensor into boxes, each copied from evenly spaced elements of the operand.

    Each dimension is divided into ranges, for example the padding before the operand, the operand,
    and the padding after it. A box is a combination of one range per dimension. The result is empty
    if the ranges of a dimension are unknown, or if there are more than `_MOST_BOXES` boxes.

    Args:
        shape: the shape without padding.
        pads: the padding before each dimension, then the padding after each.
        mode: the padding mode, such as "reflect".
    """
    rank = len(shape)
    sides = zip(shape, pads[:rank], pads[rank:], strict=True)
    runs = [_runs(extent, before, after, mode) for extent, before, after in sides]
    if not 0 < prod(map(len, runs)) <= _MOST_BOXES:
        return ()
    return tuple(
        Piece(0, *(tuple(part) for part in zip(*chosen, strict=True))) for chosen in product(*runs)
    )


def _extend_pieces(types: Sequence[TensorType], attrs: Attrs) -> tuple[Piece, ...]:
    return _boxes(types[0].shape, ints(attrs, "pads"), word(attrs, "mode"))


def _extend_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    for dim, (b, a) in enumerate(zip(*_pads(attrs, x.ndim), strict=True)):
        extent = x.shape[dim]
        places = _places(np.arange(extent + b + a) - b, extent, word(attrs, "mode"))
        x = np.take(x, places, axis=dim)
    return x


def _infer_extend(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    found = _infer_pad(types, attrs)
    if not _extend_pieces(types, attrs):
        raise InvalidModelError(
            f"pads {show(ints(attrs, 'pads'))} exceed the elements of {show(types[0].shape)}"
        )
    return found


def _gathered(
    node: OnnxNode, x: str, mode: str, before: tuple[int, ...], after: tuple[int, ...]
) -> str:
    """Emit padding with elements of the operand as one gather along each padded axis."""
    for dim, (b, a) in enumerate(zip(before, after, strict=True)):
        if b == 0 and a == 0:
            continue
        extent = node.shape(x)[dim]
        if mode == "reflect" and is_dynamic(extent) and larger(b, a) >= extent:
            raise node.invalid(_too_few(larger(b, a), extent))
        places = _places(counting(node, extent + b + a) - b, extent, mode)
        x = node.emit("gather", [x, table(node, places, DType.INT64)], axis=dim)
    return x


def _too_few(padding: int, extent: int) -> str:
    """Return the error message for reflection padding that is at least as long as a dynamic extent.

    If the extent depends on one dimension, the message suggests a size for the command-line option
    `--dim`.
    """
    said = f"padding of {padding} reflects {extent} elements"
    if is_dynamic(padding) or len(named := dimensions(extent)) != 1:
        return said
    (dimension,) = named
    for power in range(40):
        size = dimension.multiple << power
        if at(extent, {dimension.name: size}) > padding:
            return f"{said}: give it more, such as --dim '{dimension.name}={size}'"
    return said


OPERATORS = (
    Operator(
        "concat",
        OpKind.PIECES,
        _infer_concat,
        lambda arrays, attrs: np.concatenate(arrays, axis_of(attrs, arrays[0].ndim)),
        _no_expression,
        (OnnxRule("Concat", _onnx_concat),),
        _concat_pieces,
    ),
    Operator(
        "pad",
        OpKind.PIECES,
        _infer_pad,
        _pad_reference,
        _no_expression,
        (OnnxRule("Pad", _onnx_pad),),
        _pad_pieces,
    ),
    Operator(
        "extend",
        OpKind.PIECES,
        _infer_extend,
        _extend_reference,
        _no_expression,
        pieces=_extend_pieces,
    ),
)
