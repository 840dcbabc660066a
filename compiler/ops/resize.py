"""Import of Resize and Upsample: interpolation along one dimension after the other.

Along a dimension, each output is a weighted sum of a few inputs (taps). Their positions and weights
are constants; if an extent is dynamic, each run computes them. The operator `interpolate` handles
several dimensions at once if they have few taps. With many taps, each tap is a gather multiplied by
a row of weights. Coordinates and coefficients are those of the ONNX specification of Resize,
version 19, except where ONNX Runtime and PyTorch both differ from it:

- `align_corners` and `tf_crop_and_resize` divide by the extent of the result. The specification
  divides by the extent that the scale gives, which need not be an integer.
- The coordinate that `nearest` rounds, and the extent that a scale gives, are computed in float32.
- If the result has the operand's shape, it equals the operand, even if a scale is not exactly 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import counting, is_computed, number, table
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import Shape, show
from tilewright.compiler.sizes import DynamicSizeError, exact_quotient, is_dynamic, typical

Floats = np.ndarray

MOST_TAPS = 16
"""Maximum number of elements in one sum of the operator `interpolate`. It is enough for bicubic
interpolation of images."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The resizing of one dimension.

    Attributes:
        inputs, outputs: the extents before and after resizing.
        scale: the factor of the extent that the model states. Without such a factor, `outputs /
            inputs`, or None if an extent is known only at run time.
        start, end: the crop of the input for `tf_crop_and_resize`, as fractions of its extent.
    """

    inputs: int
    outputs: int
    scale: float | None
    start: float
    end: float


Rounded = Callable[[Floats], Floats]
"""Rounds the result of one step of a calculation to the type of the calculation, such as
float32."""


def _in_float32(value: Floats) -> Floats:
    """Round the result of one operation to float32, as float32 arithmetic would."""
    narrow: Floats = value.astype(np.float32).astype(np.float64)
    return narrow


def _in_float64(value: Floats) -> Floats:
    return value


@dataclass(frozen=True, slots=True)
class _Taps:
    """The input positions that each output reads along a dimension, and their weights.

    Attributes:
        positions: (taps, outputs).
        weights: (taps, outputs); None if each output is a copy of one input.
        outside: whether the coordinate of each output lies beyond the input.
    """

    positions: np.ndarray
    weights: Floats | None
    outside: np.ndarray

    @property
    def count(self) -> int:
        return len(self.positions)


def _coordinates(node: OnnxNode, mode: str, line: _Line, rounded: Rounded) -> Floats:
    """Return the input coordinate of each output, for a `coordinate_transformation_mode`.

    `rounded` is applied to the result of each arithmetic operation.
    """
    x = counting(node, line.outputs).astype(np.float64)
    inputs, outputs = number(node, line.inputs), number(node, line.outputs)
    scale: Floats = outputs / inputs if line.scale is None else np.asarray(line.scale)
    scale = rounded(scale)
    places: Floats
    match mode:
        case "asymmetric":
            places = rounded(x / scale)
        case "half_pixel":
            places = rounded(rounded((x + 0.5) / scale) - 0.5)
        case "pytorch_half_pixel":
            places = np.where(outputs > 1, rounded(rounded((x + 0.5) / scale) - 0.5), 0.0)
        case "half_pixel_symmetric":
            unused = rounded(1 - rounded(outputs / rounded(scale * inputs)))
            middle = rounded(inputs / 2 * unused)
            places = rounded(middle + (x + 0.5) / scale - 0.5)
        case "align_corners":  # a single output is at 0, whatever the divisor
            places = rounded(rounded(x * (inputs - 1)) / np.maximum(outputs - 1, 1))
        case "tf_half_pixel_for_nn":
            places = rounded((x + 0.5) / scale)
        case "tf_crop_and_resize":
            if is_dynamic(line.inputs) or is_dynamic(line.outputs):
                raise DynamicSizeError(
                    f"the part of the {line.inputs} elements that roi selects is known at run "
                    "time only"
                )
            last = line.inputs - 1
            if line.outputs == 1:
                return np.full(1, 0.5 * (line.start + line.end) * last)
            shown = _in_float32(x * _in_float32(np.asarray(line.end - line.start)))
            steps = _in_float32(_in_float32(shown * last) / (line.outputs - 1))
            places = _in_float32(_in_float32(np.asarray(line.start * last)) + steps)
        case _:
            raise node.unknown("coordinate_transformation_mode", mode, _COORDINATES)
    return places


_TIE = 1e-6
"""Maximum distance of a coordinate from the middle between two inputs that ONNX Runtime treats as a
tie."""


_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)


def _nearest(node: OnnxNode, places: Floats) -> np.ndarray:
    mode = node.word("nearest_mode", "round_prefer_floor")
    rounded: dict[str, Callable[[Floats], Floats]] = {
        "round_prefer_floor": lambda x: np.ceil(x - (0.5 + _TIE)),
        "round_prefer_ceil": lambda x: np.floor(x + (0.5 + _TIE)),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    if mode not in rounded:
        raise node.unknown("nearest_mode", mode, rounded)
    return rounded[mode](places).astype(np.int64)


def _earlier_nearest(places: Floats, line: _Line) -> np.ndarray:
    """Round coordinates for `nearest` before opset 11.

    ONNX did not define this rounding. As in ONNX Runtime, coordinates are rounded up if the
    dimension shrinks, else down.
    """
    assert line.scale is not None, "sizes are of opset 11"
    found: np.ndarray = np.ceil(places) if line.scale < 1 else np.floor(places)
    return found.astype(np.int64)


def _triangle(distance: Floats) -> Floats:
    weight: Floats = np.maximum(1 - np.abs(distance), 0.0)
    return weight


def _cubic(a: float) -> Callable[[Floats], Floats]:
    """Return the function that maps a distance to its weight in cubic interpolation.

    `a` is the coefficient of the formula. Source: Keys, "Cubic convolution interpolation for
    digital image processing" (1981).
    """

    def coefficient(distance: Floats) -> Floats:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return coefficient


def _taps(node: OnnxNode, mode: str, line: _Line) -> _Taps:
    default = "half_pixel" if node.op_type == "Resize" and node.opset >= 11 else "asymmetric"
    transformation = node.word("coordinate_transformation_mode", default)
    # The mode nearest rounds coordinates to integers, so that ties must be those of float32. In
    # other modes, weights change little with the coordinates.
    rounded = _in_float32 if mode == "nearest" else _in_float64
    places = _coordinates(node, transformation, line, rounded)
    outside = np.zeros(1, bool)
    if transformation == "tf_crop_and_resize":
        outside = (places < 0) | (places > line.inputs - 1)
    if mode == "nearest":
        if node.op_type == "Upsample" or node.opset < 11:
            found = _earlier_nearest(places, line)
        else:
            found = _nearest(node, places)
        inside = np.clip(found, 0, line.inputs - 1).reshape((1, -1))
        return _Taps(inside, None, outside)
    reach, kernel = (
        (1, _triangle) if mode == "linear" else (2, _cubic(node.number("cubic_coeff_a", -0.75)))
    )
    shrink = 1.0
    if node.integer("antialias", 0):
        if line.scale is None:
            raise DynamicSizeError(
                f"attribute 'antialias' needs the scale from {line.inputs} to {line.outputs} "
                "elements, which is known at run time only"
            )
        shrink = min(line.scale, 1.0)
    first = floor(-reach / shrink) + 1
    offsets = np.arange(first, 2 - first)[:, None]
    base = np.floor(places).astype(np.int64)
    # A sample exactly at the coordinate counts as its right neighbour: the ratio is in (0, 1].
    base = np.where(base == places, base - 1, base)
    weights = kernel((offsets - (places - base)) * shrink)
    found = base + offsets
    if node.integer("exclude_outside", 0):
        weights = np.where((found < 0) | (found >= line.inputs), 0.0, weights)
    if shrink < 1 or node.integer("exclude_outside", 0):
        weights = weights / weights.sum(axis=0)
    found = np.clip(found, 0, line.inputs - 1)
    if is_computed(weights):
        return _Taps(found, weights, outside)
    used = weights.any(axis=1)
    found, weights = found[used], weights[used]
    return _Taps(found, None if len(weights) == 1 and (weights == 1).all() else weights, outside)


def _applied(node: OnnxNode, x: str, lines: Mapping[int, _Taps]) -> str:
    """Emit the interpolation of x along several dimensions.

    `lines` maps the index of each interpolated dimension to its taps. Consecutive dimensions with
    few taps share one `interpolate` node. Others are interpolated one after the other.
    """
    together: list[int] = []
    for dim, taps in lines.items():
        if taps.weights is None:
            x = _picked(node, _interpolated(node, x, lines, together), dim, taps.positions)
            together = []
        elif taps.count > MOST_TAPS:
            x = _summed(node, _interpolated(node, x, lines, together), dim, taps)
            together = []
        else:
            if prod(lines[d].count for d in (*together, dim)) > MOST_TAPS:
                x, together = _interpolated(node, x, lines, together), []
            together.append(dim)
    return _interpolated(node, x, lines, together)


def _interpolated(node: OnnxNode, x: str, lines: Mapping[int, _Taps], dims: Sequence[int]) -> str:
    """Emit one `interpolate` node for the dimensions `dims` of x.

    `lines` maps the index of a dimension to its taps. Without dimensions, the result is x.
    """
    if not dims:
        return x
    dtype, operands = node.type(x).dtype, [x]
    for dim in dims:
        operands.append(table(node, lines[dim].positions, DType.INT32))
        operands.append(table(node, lines[dim].weights, dtype))
    return node.emit("interpolate", operands, axes=tuple(dims))


def _summed(node: OnnxNode, x: str, dim: int, taps: _Taps) -> str:
    """Emit the interpolation of one dimension as a weighted sum of one gather per tap.

    Raises:
        DynamicSizeError: if the weights are known only at run time.
    """
    shape, dtype = node.shape(x), node.type(x).dtype
    column = (-1, *(1,) * (len(shape) - 1 - dim))
    total = ""
    assert taps.weights is not None
    if is_computed(taps.weights):
        raise DynamicSizeError(
            f"the weights of the {taps.count} elements that each result sums are known at run "
            "time only"
        )
    for positions, each in zip(taps.positions, taps.weights, strict=True):
        value = _picked(node, x, dim, positions[None])
        value = node.emit("mul", [value, table(node, each.reshape(column), dtype)])
        total = node.emit("add", [total, value]) if total else value
    return total


def _picked(node: OnnxNode, x: str, dim: int, positions: np.ndarray) -> str:
    """Emit the elements at `positions` (1, outputs) along a dimension.

    If `positions` has every position in order, each repeated equally often, the result is a
    broadcast, else a gather.
    """
    extent, outputs = node.shape(x)[dim], positions.shape[1]
    if not is_computed(positions):
        times = outputs // extent
        if np.array_equal(positions[0], np.arange(extent)):
            return x
        if times and np.array_equal(positions[0], np.repeat(np.arange(extent), times)):
            return _repeated(node, x, dim, times)
    return node.emit("gather", [x, table(node, positions.reshape((-1,)), DType.INT64)], axis=dim)


def _repeated(node: OnnxNode, x: str, dim: int, times: int) -> str:
    """Emit x with each position along a dimension repeated `times` times."""
    shape = node.shape(x)
    column = node.reshape(x, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    wide = node.emit("expand", [column], shape=(*shape[: dim + 1], times, *shape[dim + 1 :]))
    return node.reshape(wide, (*shape[:dim], shape[dim] * times, *shape[dim + 1 :]))


_PROBE = 8
"""Extent of a sample dimension. If the coordinates do not depend on the extent, the sample shows
whether the interpolation repeats each element of a dynamic dimension."""


def _repeats(node: OnnxNode, mode: str, line: _Line) -> int | None:
    """Return how often the interpolation repeats each position of a dynamic dimension.

    The result is None if it does not repeat all positions equally often.
    """
    times = exact_quotient(line.outputs, line.inputs)
    depends = ("align_corners", "tf_crop_and_resize")
    whole = mode == "nearest" and times is not None and not is_dynamic(times)
    if not whole or node.attrs.get("coordinate_transformation_mode") in depends:
        return None
    assert times is not None
    probe = _Line(_PROBE, _PROBE * times, float(times), line.start, line.end)
    places = _taps(node, mode, probe).positions[0]
    return times if np.array_equal(places, np.repeat(np.arange(_PROBE), times)) else None


def _scaled(extent: int, scale: float) -> int:
    """Return extent * scale, computed in float32 and rounded down."""
    if not is_dynamic(extent):
        return floor(np.float32(extent) * np.float32(scale))
    # In float32, 2.3 is stored as a smaller number, but 10 * 2.3 is rounded to 23.
    exact = Fraction(scale).limit_denominator(1000)
    if np.float32(exact) != np.float32(scale):
        exact = Fraction(scale)
    return extent * exact.numerator // exact.denominator


def _rounded(extent: int, scale: float) -> int:
    """Return extent * scale, rounded to the nearest integer."""
    if not is_dynamic(extent):
        return floor(scale * extent + 0.5)
    exact = Fraction(scale)
    return (2 * extent * exact.numerator + exact.denominator) // (2 * exact.denominator)


def _ratio(size: int, extent: int) -> float | None:
    if not is_dynamic(size) and not is_dynamic(extent):
        return size / extent
    times = exact_quotient(size, extent)
    return None if times is None or is_dynamic(times) else float(times)


def _lines(node: OnnxNode, shape: Shape, scale_position: int) -> list[_Line]:
    rank = len(shape)
    axes = node.ints("axes") or tuple(range(rank))
    if any(not -rank <= axis < rank for axis in axes):
        raise node.invalid(
            f"attribute 'axes' is {axes}, expected axes of an input with {rank} dimensions"
        )
    dims = [axis % rank for axis in axes]
    scales = node.static(scale_position, "scales")
    given = node.attrs.get("scales")
    if scales is None and isinstance(given, tuple):
        scales = np.array(given, np.float64)
    sizes = node.static_ints(3, "sizes") if node.op_type == "Resize" else None
    if sizes:
        wanted = _fitted(node, tuple(shape[dim] for dim in dims), sizes)
    elif scales is not None and scales.size == len(dims) and float(scales.min()) > 0:
        wanted = [
            (_scaled(shape[dim], float(s)), float(s)) for dim, s in zip(dims, scales, strict=True)
        ]
    else:
        raise node.invalid(
            f"sizes and scales are missing or do not fit: give either {len(dims)} sizes or "
            f"{len(dims)} scales above 0"
        )
    cropped = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = node.static(1, "roi") if cropped and scale_position == 2 else None
    region = np.tile([[0.0], [1.0]], len(dims))
    if roi is not None and roi.size == 2 * len(dims):
        region = np.asarray(roi, np.float64).reshape(2, len(dims))
    lines = [_Line(extent, extent, 1.0, 0.0, 1.0) for extent in shape]
    for position, (dim, (outputs, scale)) in enumerate(zip(dims, wanted, strict=True)):
        if outputs < 1:
            raise node.invalid(
                f"dimension {dim} of the input {show(shape)} becomes {outputs}, expected at least 1"
            )
        lines[dim] = _Line(shape[dim], outputs, scale, region[0][position], region[1][position])
    return lines


def _fitted(node: OnnxNode, extents: Shape, sizes: Shape) -> list[tuple[int, float | None]]:
    """Return the extent and scale of each axis for the requested `sizes`.

    Unless `keep_aspect_ratio_policy` is "stretch", all axes have the same scale, so that extents
    may differ from `sizes`. A scale is None if dynamic extents determine it; each run then computes
    it.
    """
    if len(sizes) != len(extents):
        raise node.invalid(
            f"sizes (input 3) has {len(sizes)} numbers, expected {len(extents)}, one per axis"
        )
    ratios = [_ratio(size, extent) for size, extent in zip(sizes, extents, strict=True)]
    policy = node.word("keep_aspect_ratio_policy", "stretch")
    match policy:
        case "stretch":
            return list(zip(sizes, ratios, strict=True))
        case "not_larger" | "not_smaller":
            known = [ratio for ratio in ratios if ratio is not None]
            if len(known) < len(ratios):
                raise DynamicSizeError(
                    f"the scale that keeps the aspect ratio of {show(extents)} in {show(sizes)} "
                    "is known at run time only"
                )
            scale = min(known) if policy == "not_larger" else max(known)
            return [(_rounded(extent, scale), scale) for extent in extents]
        case _:
            policies = ("stretch", "not_larger", "not_smaller")
            raise node.unknown("keep_aspect_ratio_policy", policy, policies)


def _resized(node: OnnxNode, scale_position: int) -> str:
    x = node.input(0)
    shape, dtype = node.shape(x), node.type(x).dtype
    mode = node.choice("mode", ("nearest", "linear", "cubic"), "nearest")
    lines = _lines(node, shape, scale_position)
    full = tuple(line.outputs for line in lines)
    cropped = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if full == shape and not cropped:
        return x
    node.reserve(f"shape {show(full)}", sum(n for n in full if not is_dynamic(n)) * 8)
    value = x if dtype.is_float or mode == "nearest" else cast_to(node, x, DType.FLOAT32)
    outside = np.zeros((1,) * len(shape), bool)
    changed: dict[int, _Taps] = {}
    # Dimensions that shrink come first, which leaves less work for the others.
    for dim in sorted(
        range(len(shape)), key=lambda d: typical(lines[d].outputs) / typical(lines[d].inputs)
    ):
        line = lines[dim]
        if line == _Line(line.inputs, line.inputs, 1.0, 0.0, 1.0):
            continue
        if is_dynamic(line.inputs) and (times := _repeats(node, mode, line)) is not None:
            value = _repeated(node, value, dim, times)
            continue
        taps = changed[dim] = _taps(node, mode, line)
        outside = outside | taps.outside.reshape((-1, *(1,) * (len(shape) - 1 - dim)))
    value = cast_to(node, _applied(node, value, changed), dtype)
    if not outside.any():
        return value
    beyond = node.scalar(node.number("extrapolation_value", 0.0), dtype)
    return node.emit("where", [node.constant(outside), beyond, value])


def _onnx_resize(node: OnnxNode) -> str:
    return _resized(node, 1 if node.opset < 11 else 2)


def _onnx_upsample(node: OnnxNode) -> str:
    return _resized(node, 1)


RULES = (
    OnnxRule("Resize", _onnx_resize),
    OnnxRule("Upsample", _onnx_upsample),
)
