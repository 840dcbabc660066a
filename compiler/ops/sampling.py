"""GridSample and DeformConv: interpolation in images at coordinates known at run time.

A point has one coordinate per spatial dimension, in elements. Its value is a weighted sum of nearby
elements. A tap is the position and weight of an element along one dimension; the weight of an
element is the product of its taps' weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import grid, table
from tilewright.compiler.ops.gather import row_strides
from tilewright.compiler.ops.moves import window
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import equal, same_extents

_CUBIC = -0.75
"""The coefficient of cubic convolution, which GridSample defines."""


@dataclass(frozen=True, slots=True)
class Tap:
    """One of the elements whose weighted sum is the value of a sampled point, along one dimension.

    There are R sets of P points; by default, set r reads image r of the batch.

    Attributes:
        position: the index of the element for each point, int64 (R, P).
        weight: the factor for each point, (R, P); None stands for 1.
    """

    position: str
    weight: str | None


class Coordinates:
    """A helper that emits arithmetic on coordinates of one element type.

    Operands are values of the graph or Python numbers.
    """

    def __init__(self, node: OnnxNode, dtype: DType) -> None:
        self.node = node
        self.dtype = dtype

    def __call__(self, op: str, *operands: str | float) -> str:
        values = [x if isinstance(x, str) else self.node.scalar(x, self.dtype) for x in operands]
        attrs = {"fmod": 0} if op == "mod" else {}
        return self.node.emit(op, values, **attrs)

    def clipped(self, value: str, low: float, high: float) -> str:
        return self.node.emit("clip", [value], min=low, max=high)

    def inside(self, value: str, low: float, high: float) -> str:
        above = self("less_or_equal", low, value)
        return self.node.emit("logical_and", [above, self("less_or_equal", value, high)])

    def reflected(self, value: str, low: float, high: float) -> str:
        """Emit `value` reflected at `low` and `high` until it lies between them."""
        span = high - low
        if span <= 0:
            return self("mul", value, 0.0)
        offset = self("mod", self("abs", self("sub", value, low)), 2 * span)
        return self("sub", high, self("abs", self("sub", offset, span)))

    def whole(self, value: str, extent: int) -> str:
        """Emit `value` clipped to the indices of a dimension of `extent` elements, as int64."""
        return cast_to(self.node, self.clipped(value, 0.0, extent - 1.0), DType.INT64)


def sampled(
    node: OnnxNode, x: str, taps: Sequence[Sequence[Tap]], images: str | None = None
) -> str:
    """Emit the values of images `x` (N, C, ...) at R sets of P sampling points, (R, C, P).

    Args:
        node: the ONNX node that is imported.
        x: the images.
        taps: for each spatial dimension, the taps of all points, with positions and weights (R, P).
        images: the index of the image that each set reads, (R,); by default, set r reads image r.
    """
    batch, channels, *spatial = node.shape(x)
    strides = row_strides(spatial)
    size = prod(spatial)
    steps = {1: size} if images is not None else {0: channels * size, 1: size}
    base = table(node, grid(node, steps, (batch, channels, 1)), DType.INT64)
    if images is not None:
        starts = node.emit("mul", [images, node.scalar(channels * size, DType.INT64)])
        starts = node.reshape(starts, (node.shape(images)[0], 1, 1))
        base = node.emit("add", [starts, base])
    # The channels of one image are read at the same coordinates.
    alone = images is None and batch == 1
    flat = node.reshape(x, (channels, size) if alone else (batch * channels * size,))
    read = batch if images is None else node.shape(images)[0]
    dtype = node.type(x).dtype
    total = ""
    for corner in product(*taps):
        place, weight = "", ""
        for tap, stride in zip(corner, strides, strict=True):
            part = tap.position
            if stride != 1:
                part = node.emit("mul", [part, node.scalar(stride, DType.INT64)])
            place = node.emit("add", [place, part]) if place else part
            if tap.weight is not None:
                weight = node.emit("mul", [weight, tap.weight]) if weight else tap.weight
        count = node.shape(place)[1]
        if alone:
            picked = node.emit("gather", [flat, node.reshape(place, (count,))], axis=1)
            value = node.reshape(picked, (1, channels, count))
        else:
            index = node.emit("add", [base, node.reshape(place, (read, 1, count))])
            value = node.emit("gather", [flat, index], axis=0)
        if weight:
            factor = node.reshape(cast_to(node, weight, dtype), (read, 1, count))
            value = node.emit("mul", [value, factor])
        total = node.emit("add", [total, value]) if total else value
    return total


def _kernel(mode: str, at: Coordinates, fraction: str) -> list[tuple[int, str | float]]:
    """Return the taps of an interpolation along a dimension: pairs of an offset and a weight.

    Offsets are relative to the element at or before the coordinate, and `fraction` is the distance
    from this element. `mode` is "nearest", "linear" or "cubic".
    """
    match mode:
        case "nearest":
            return [(0, 1.0)]
        case "linear":
            return [(0, at("sub", 1.0, fraction)), (1, fraction)]
        case _:
            weights: list[tuple[int, str | float]] = []
            for offset in (-1, 0, 1, 2):
                d = at("abs", at("sub", float(offset), fraction))
                if offset in (0, 1):
                    inner = at("sub", at("mul", _CUBIC + 2, d), _CUBIC + 3)
                    value = at("add", at("mul", at("mul", inner, d), d), 1.0)
                else:
                    inner = at("sub", at("mul", _CUBIC, d), 5 * _CUBIC)
                    inner = at("add", at("mul", inner, d), 8 * _CUBIC)
                    value = at("sub", at("mul", inner, d), 4 * _CUBIC)
                weights.append((offset, value))
            return weights


def taps_along(
    at: Coordinates, place: str, extent: int, mode: str, padding: str, low: float
) -> list[Tap]:
    """Emit the taps of points along one dimension of `extent` elements.

    Args:
        at: emits the arithmetic.
        place: the coordinates of the points.
        extent: the number of elements.
        mode: "nearest", "linear" or "cubic".
        padding: "zeros", "border" or "reflection".
        low: the coordinate at which reflection padding reflects; the other one is
            `extent - 1 - low`.
    """
    high = extent - 1 - low
    if mode == "nearest":
        place = at("round", place)
    if padding == "border" and mode != "cubic":  # cubic clips each tap separately
        place = at.clipped(place, 0.0, extent - 1.0)
    elif padding == "reflection":
        place = at.reflected(place, low, high)
    base = at("round" if mode == "nearest" else "floor", place)
    taps = []
    for offset, weight in _kernel(mode, at, at("sub", place, base)):
        position = at("add", base, float(offset)) if offset else base
        if padding == "reflection":
            position = at.reflected(position, low, high)
        factor: str | None = None if isinstance(weight, float) else weight
        if padding == "zeros":
            mask = at.inside(position, 0.0, extent - 1.0)
            factor = at("where", mask, weight, 0.0)
        taps.append(Tap(at.whole(position, extent), factor))
    return taps


def _onnx_grid_sample(node: OnnxNode) -> str:
    """Import GridSample: interpolate x at the points of a grid.

    Coordinates range from -1 to 1 along every dimension. A point states its coordinate along the
    last dimension first.
    """
    x, grid = node.input(0), node.input(1)
    shape, given = node.shape(x), node.shape(grid)
    rank = len(shape) - 2
    fits = rank >= 1 and len(given) == rank + 2 and equal(given[-1], rank)
    if not fits or not equal(given[0], shape[0]):
        raise node.invalid(
            f"grid (input 1) is {show(given)}, expected (N, ..., {max(rank, 1)}) with the batch "
            f"and number of dimensions of the input {show(shape)}"
        )
    names = {"bilinear": "linear", "bicubic": "cubic"}
    stated = node.choice("mode", ("nearest", "linear", "cubic", *names), "linear")
    mode = names.get(stated, stated)
    padding = node.choice("padding_mode", ("zeros", "border", "reflection"), "zeros")
    at = Coordinates(node, node.type(grid).dtype)
    points = prod(given[1:-1])
    rows = node.reshape(grid, (given[0], points, rank))
    corners = node.integer("align_corners", 0)
    taps = []
    for dim, extent in enumerate(shape[2:]):
        column = window(node, rows, {2: (rank - 1 - dim, 1)})
        place = at("add", node.reshape(column, (given[0], points)), 1.0)
        if corners:
            place = at("mul", place, (extent - 1) / 2)
        else:
            place = at("sub", at("mul", place, extent / 2), 0.5)
        taps.append(taps_along(at, place, extent, mode, padding, 0.0 if corners else -0.5))
    return node.reshape(sampled(node, x, taps), (*shape[:2], *given[1:-1]))


def _onnx_deform_conv(node: OnnxNode) -> str:
    """Import DeformConv, a convolution in which each tap reads the image at an individual offset.

    Offsets may be fractions; the image is interpolated linearly.
    """
    x, w, offset = node.input(0), node.input(1), node.input(2)
    bias, mask = node.optional(3), node.optional(4)
    (batch, channels, *spatial), (filters, inner, *kernel) = node.shape(x), node.shape(w)
    rank, group = len(spatial), node.integer("group", 1)
    offsets = node.integer("offset_group", 1)
    strides = node.ints("strides") or (1,) * rank
    dilations = node.ints("dilations") or (1,) * rank
    pads = node.ints("pads") or (0,) * (2 * rank)
    places, taps_count = node.shape(offset)[2:], prod(kernel)
    points = prod(places)
    wanted = (batch, offsets * taps_count * rank, *places)
    if (
        channels % offsets
        or inner * group != channels
        or not same_extents(node.shape(offset), wanted)
    ):
        raise node.invalid(
            f"offset (input 2) is {show(node.shape(offset))}, expected {show(wanted)}; the input "
            f"{show(node.shape(x))} must have 'group' times {inner} channels, as the weight "
            f"{show(node.shape(w))}, and a multiple of 'offset_group', {offsets}"
        )
    at = Coordinates(node, node.type(offset).dtype)
    grid = np.indices(places).reshape(rank, 1, points)
    steps = np.indices(kernel).reshape(rank, taps_count, 1)
    moved = node.reshape(offset, (batch, offsets, taps_count, rank, points))
    columns = []
    for number in range(offsets):
        part = window(node, moved, {1: (number, 1)})
        taps = []
        for dim, extent in enumerate(spatial):
            fixed = grid[dim] * strides[dim] + steps[dim] * dilations[dim] - pads[dim]
            start = node.constant(fixed.reshape(1, -1).astype(node.type(offset).dtype.numpy))
            along = node.reshape(window(node, part, {3: (dim, 1)}), (batch, taps_count * points))
            taps.append(taps_along(at, at("add", along, start), extent, "linear", "zeros", 0.0))
        width = channels // offsets
        image = window(node, x, {1: (number * width, width)})
        read = node.reshape(sampled(node, image, taps), (batch, width, taps_count, points))
        if mask is not None:
            factors = node.reshape(mask, (batch, offsets, taps_count, points))
            read = node.emit("mul", [read, window(node, factors, {1: (number, 1)})])
        columns.append(read)
    whole = columns[0] if offsets == 1 else node.emit("concat", columns, axis=1)
    whole = node.reshape(whole, (batch, group, inner * taps_count, points))
    weight = node.reshape(w, (group, filters // group, inner * taps_count))
    result = node.reshape(node.emit("matmul", [weight, whole]), (batch, filters, *places))
    if bias is None:
        return result
    return node.emit("add", [result, node.reshape(bias, (filters, *(1,) * rank))])


RULES = (
    OnnxRule("GridSample", _onnx_grid_sample),
    OnnxRule("DeformConv", _onnx_deform_conv),
)
