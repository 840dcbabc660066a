"""RoiAlign: averages, or maxima, of samples that are evenly spaced in the cells of image regions.

With `sampling_ratio` 0, the number of samples of a cell along a dimension is the cell's length in
elements, rounded up. A loop at run time then takes one sample of all cells per step, up to the
number of samples for the largest region; smaller regions ignore the surplus steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.enclosed import Enclosure
from tilewright.compiler.ops.gather import wrapped
from tilewright.compiler.ops.loops import looped
from tilewright.compiler.ops.moves import window
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.sampling import Coordinates, sampled, taps_along
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import same_extents


@dataclass(frozen=True, slots=True)
class _Regions:
    """The image regions of a RoiAlign node.

    Attributes:
        count: number of regions.
        cells: number of cells per region along each of the two dimensions.
        lows, sizes: for each dimension, the start and length of each region, (count, 1).
        images: (count,), the index of each region's image.
        is_average: whether samples are averaged; otherwise the result is their maximum.
    """

    count: int
    cells: tuple[int, int]
    lows: Sequence[str]
    sizes: Sequence[str]
    images: str
    is_average: bool


def _regions(node: OnnxNode, at: Coordinates) -> _Regions:
    x, rois, images = node.input(0), node.input(1), node.input(2)
    count = node.shape(rois)[0]
    if len(node.shape(x)) != 4 or not same_extents(node.shape(rois), (count, 4)):
        raise node.invalid(
            f"X (input 0) is {show(node.shape(x))} and rois (input 1) {show(node.shape(rois))}, "
            "expected four dimensions and (regions, 4)"
        )
    mode = node.choice("mode", ("avg", "max"), "avg")
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    shifted = node.word("coordinate_transformation_mode", default) == "half_pixel"
    scale = node.number("spatial_scale", 1.0)
    lows, sizes = [], []
    for dim in range(2):  # a region is x1, y1, x2, y2
        low, high = (
            at("sub", at("mul", window(node, rois, {1: (column, 1)}), scale), 0.5 * shifted)
            for column in (1 - dim, 3 - dim)
        )
        size = at("sub", high, low)
        lows.append(low)
        sizes.append(size if shifted else at("max", size, 1.0))
    cells = node.integer("output_height", 1), node.integer("output_width", 1)
    images = wrapped(node, images, node.shape(x)[0])
    return _Regions(count, cells, lows, sizes, images, mode == "avg")


def _read(at: Coordinates, x: str, regions: _Regions, axes: Sequence[str]) -> str:
    """Emit the values of x at a grid of sampling points per region, (count, C, rows * columns).

    `at` emits the arithmetic on coordinates. `axes` are the coordinates of the grid: (count, rows)
    and (count, columns). For averages, each value is a weighted sum of the four elements around the
    sampling point. For maxima it is the largest of the four weighted elements, as the specification
    defines it. Sampling points outside the image have the value zero.
    """
    node, count = at.node, regions.count
    rows, columns = (node.shape(axis)[1] for axis in axes)
    shapes = ((count, rows, 1), (count, 1, columns))
    taps, inside = [], ""
    for axis, shape, extent in zip(axes, shapes, node.shape(x)[2:], strict=True):
        place = node.emit("expand", [node.reshape(axis, shape)], shape=(count, rows, columns))
        flat = node.reshape(place, (count, rows * columns))
        near = at.inside(flat, -1.0, float(extent))
        inside = node.emit("logical_and", [inside, near]) if inside else near
        held = at.clipped(flat, 0.0, extent - 1.0)
        taps.append(taps_along(at, held, extent, "linear", "border", 0.0))
    mask = node.reshape(inside, (count, 1, rows * columns))
    nothing = node.scalar(0, node.type(x).dtype)
    if regions.is_average:
        return node.emit("where", [mask, sampled(node, x, taps, regions.images), nothing])
    best = ""
    for corner in product(*taps):
        read = sampled(node, x, [[tap] for tap in corner], regions.images)
        best = node.emit("max", [best, read]) if best else read
    return node.emit("where", [mask, best, nothing])


def _stated(node: OnnxNode, at: Coordinates, regions: _Regions, samples: int) -> str:
    """Emit the result of RoiAlign with `samples` samples per cell along each dimension.

    All samples are taken at once, without a loop. `at` emits the arithmetic on coordinates.
    """
    axes = []
    for cells, low, size in zip(regions.cells, regions.lows, regions.sizes, strict=True):
        steps = (np.arange(cells * samples) + 0.5) / (samples * cells)
        along = node.constant(steps[None].astype(at.dtype.numpy))
        axes.append(at("add", low, at("mul", size, along)))
    read = _read(at, node.input(0), regions, axes)
    rows, columns = regions.cells
    split = node.reshape(read, (*node.shape(read)[:2], rows, samples, columns, samples))
    reduce = "reduce_mean" if regions.is_average else "reduce_max"
    return node.emit(reduce, [split], axes=(3, 5), keepdims=0)


def _asked(node: OnnxNode, at: Coordinates, regions: _Regions) -> str:
    """Emit the result of RoiAlign with `sampling_ratio` 0: larger regions take more samples.

    A loop at run time takes one sample of all cells per step. `at` emits the arithmetic on
    coordinates.
    """
    x = node.input(0)
    dtype, channels = node.type(x).dtype, node.shape(x)[1]
    rows, columns = regions.cells
    shape = (regions.count, channels, rows * columns)
    whole = (regions.count, channels, rows, columns)
    if regions.count == 0:
        return node.emit("expand", [node.scalar(0, dtype)], shape=whole)
    lengths = [at("div", s, float(c)) for s, c in zip(regions.sizes, regions.cells, strict=True)]
    counts = [at("max", at("ceil", length), 0.0) for length in lengths]
    most = [
        cast_to(node, node.emit("reduce_max", [count], axes=(0, 1), keepdims=0), DType.INT64)
        for count in counts
    ]
    first = node.scalar(0.0 if regions.is_average else -np.inf, dtype)
    start = node.emit("expand", [first], shape=shape)

    def step(enclosure: Enclosure, number: str, states: Sequence[str]) -> list[str]:
        inner, across = enclosure.node, enclosure.capture(most[1])
        here = Coordinates(inner, at.dtype)
        parts = [inner.emit("div", [number, across]), inner.emit("mod", [number, across], fmod=0)]
        axes, present = [], ""
        for dim, part in enumerate(parts):
            low, length, count = (
                enclosure.capture(values[dim]) for values in (regions.lows, lengths, counts)
            )
            place = cast_to(inner, part, at.dtype)
            taken = here("less", place, count)
            present = inner.emit("logical_and", [present, taken]) if present else taken
            share = here("div", here("add", place, 0.5), here("max", count, 1.0))
            cells = inner.constant(np.arange(regions.cells[dim])[None].astype(at.dtype.numpy))
            axes.append(here("add", low, here("mul", here("add", cells, share), length)))
        local = _Regions(
            regions.count,
            regions.cells,
            (),
            (),
            enclosure.capture(regions.images),
            regions.is_average,
        )
        read = _read(here, enclosure.capture(x), local, axes)
        mask = inner.reshape(present, (regions.count, 1, 1))
        (before,) = states
        after = inner.emit("add" if regions.is_average else "max", [before, read])
        return [inner.constant(np.array(True)), inner.emit("where", [mask, after, before])]

    trips = node.reshape(node.emit("mul", most), ())
    begin = node.constant(np.array(True))
    (total,) = looped(node, trips, begin, [start], step).states
    number = at("max", at("mul", *counts), 1.0)
    if regions.is_average:
        share = cast_to(node, node.reshape(number, (regions.count, 1, 1)), dtype)
        return node.reshape(node.emit("div", [total, share]), whole)
    none = node.reshape(at("less", at("mul", *counts), 1.0), (regions.count, 1, 1))
    return node.reshape(node.emit("where", [none, node.scalar(0, dtype), total]), whole)


def _onnx_roi_align(node: OnnxNode) -> str:
    at = Coordinates(node, node.type(node.input(1)).dtype)
    regions, samples = _regions(node, at), node.integer("sampling_ratio", 0)
    if samples < 1:
        return _asked(node, at, regions)
    return _stated(node, at, regions, samples)


RULES = (OnnxRule("RoiAlign", _onnx_roi_align),)
