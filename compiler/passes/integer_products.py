"""Products of integers minus their zero points, as products of the stored integers with int32 sums.

Before:                                             After:
    %1 = matmul(int32(%0) - z, w)                       %1 = matmul(%0, w, -z * sum(w))

    %2 = conv(int32(%0) - z, w)                         %1 = pad(%0) {value=z}
                                                        %2 = conv(%1, w, -z * sum(w))

`%0` is uint8 or int8, `w` a constant. The products on the right have the attribute `accumulator`.
Their second factor is int8. Matrix columns, and filters, with values beyond int8 (asymmetric uint8)
are shifted into its range, and the sums of the rows of `%0`, or of its windows, compensate for the
shift. The first factor has the type that the target multiplies (`Target.factor`). If it must be
unsigned, an int8 `%0` and its zero point are shifted up by 128; if it must be signed, a uint8 `%0`
and its zero point are shifted down by 128. The zero point of a matrix may be known at run time
only. The zero point of a convolution must be constant, because it is the value of the padding. All
results are exact.

A 16-bit `%0` is multiplied as int16 by weights that are converted to int16, if no sum can exceed
int32: 512 products by any 8-bit weights fit, and some thousands with typical weights. An 8-bit `%0`
and its weights are converted to int16 as well if the target has no fast product of 8-bit integers,
but a fast one of pairs of int16 (vpmaddwd). Also called integer-only inference (Jacob et al.,
"Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
2018).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.ops.attributes import integer, ints, number
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.passes.constant_folding import GROWTH_LIMIT_BYTES
from tilewright.compiler.passes.quantisation import (
    IntegerFactor,
    IntegerSource,
    Weight,
    as_factor,
    number_of,
    source_of,
    transposed,
    unsigned,
    weight_of,
)
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

_FLOAT = np.finfo(np.float32)

_LEAST_CHANNELS = 4
"""Minimum number of input channels of a convolution without groups: four 8-bit channels fill one
32-bit operand of a dot-product instruction. An image with three channels gets a fourth, whose
weights are zero. 16-bit channels are padded to four as well, although two of them fill an
operand."""

_LEAST_GROUP = 16
"""Minimum number of channels and of filters per group for which integers are faster than float32,
if sums of windows are needed."""


def integer_products(graph: Graph, factor: IntegerFactor = unsigned) -> Graph:
    """Replace products of int32 values by products of the stored 8-bit or 16-bit integers.

    `factor` maps a stored type to the type in which the target multiplies it.
    """
    return rewrite(graph, partial(integer_product, scaled=False, factor=factor))


def integer_product(
    rewriter: Rewriter, node: Node, *, scaled: bool, factor: IntegerFactor
) -> str | None:
    """Emit a product of dequantised values and a constant weight as a product of integers.

    The integers have 8 or 16 bits. Returns the name of the result, or None if the node is not such
    a product. If `scaled`, both factors must have a scale; otherwise neither may have one. `factor`
    maps a stored type to the type in which the target multiplies it.
    """
    if node.op not in ("matmul", "gemm", "conv") or node.attr("accumulator") is not None:
        return None
    source, weight = source_of(rewriter, node.inputs[0]), weight_of(rewriter, node.inputs[1])
    if source is None or weight is None:
        return None
    if {source.scale is not None, weight.scale is not None} != {scaled}:
        return None
    if factor(rewriter.type(source.value).dtype) is None:
        return None
    if node.op == "gemm":
        if integer(node.attrs, "trans_a", 0) or _factors(node) != (1.0, 1.0):
            return None
        if integer(node.attrs, "trans_b", 0):
            weight = transposed(weight, (1, 0))
    scale, tail = weight.scale, tuple[int, ...]()
    if node.op == "conv":
        total = _convolved(rewriter, node, source, weight, factor)
        tail = (1,) * (weight.values.ndim - 2)
        scale = None if scale is None else scale.reshape(-1, *tail)  # per channel of the output
    else:
        total = _multiplied(rewriter, node.inputs[1], source, weight, factor)
    if total is None:
        return None
    if source.scale is not None and scale is not None:
        values = _of_filters(source.scale, node, weight, tail)
        both = None if values is None else scale_of(scale, values)
        if both is None:
            return None
        total = scaled_by(rewriter, total, both, node)
    if len(node.inputs) > 2:
        total = rewriter.emit("add", [total, _column(rewriter, node.inputs[2], tail)])
    return total


def _of_filters(
    scale: np.ndarray, node: Node, weight: Weight, tail: tuple[int, ...]
) -> np.ndarray | None:
    """Return the scale of a convolution's input as a factor of the convolution's result.

    `scale` is one number, or has one number per channel of the input. `tail` has a 1 for each
    spatial dimension of the result. Returns None if a filter reads channels with several scales, so
    that its sum cannot be scaled afterwards.
    """
    if not scale.ndim:
        return scale
    filters, channels = len(weight.values), scale.shape[0]
    if node.op != "conv" or integer(node.attrs, "group", 1) != channels:
        return None
    return np.repeat(scale.reshape(-1), filters // channels).reshape(-1, *tail)


def scale_of(one: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """Multiply two scales; return None if a product overflows or is subnormal in float32.

    The caller then keeps both scales, because applying them in turn loses less precision.
    """
    exact = one.astype(np.float64) * other
    size = np.abs(exact)
    inside = ((size >= _FLOAT.tiny) & (size <= _FLOAT.max)) | (one * np.ones_like(other) == 0)
    return exact.astype(np.float32) if inside.all() else None


def scaled_by(rewriter: Rewriter, total: str, factor: np.ndarray, node: Node) -> str:
    total = rewriter.emit("cast", [total], {"to": DType.FLOAT32.value})
    return rewriter.emit("mul", [total, rewriter.constant(factor, f"{node.name}.scale")])


def _factors(gemm: Node) -> tuple[float, float]:
    return number(gemm.attrs, "alpha", 1.0), number(gemm.attrs, "beta", 1.0)


def _column(rewriter: Rewriter, value: str, tail: tuple[int, ...]) -> str:
    """Reshape a bias to broadcast over trailing dimensions; `tail` has a 1 for each of them."""
    if not tail:
        return value
    array, shape = rewriter.array(value), (*rewriter.shape(value), *tail)
    if array is not None:
        return rewriter.constant(array.reshape(shape), f"{value}.column")
    return rewriter.emit("reshape", [value], {"shape": shape})


# ---- products of integers


def _multiplied(
    rewriter: Rewriter, name: str, source: IntegerSource, weight: Weight, factor: IntegerFactor
) -> str | None:
    """Emit the matrix product of stored integers, minus their zero point, and an integer weight.

    `source` describes the stored integers, and `name` is the name of the weight. Returns the name
    of the int32 result, to which the caller applies the scales. Returns None for unsupported
    operands: weights that cannot be shifted into their type; or a weight with a scale, if the sums
    may exceed int32 or the scale varies along the summed dimension.
    """
    values = weight.values.astype(np.int64)
    if values.ndim < 2 or len(rewriter.shape(source.value)) < 2 or not values.size:
        return None
    if weight.scale is not None and (
        not _stays_inside(rewriter, source, values, -2) or weight.scale.shape[-2] > 1
    ):
        return None
    stored = _weight_type(rewriter, source, factor)
    moved = _moved_into(stored, values, -2)
    if moved is None:
        return None
    source = as_factor(rewriter, source, factor)
    sums = values.sum(axis=-2, keepdims=True)
    sums = sums.reshape(sums.shape[-1]) if values.ndim == 2 else sums
    held = rewriter.constant((values - moved).astype(stored.numpy), f"{name}.bytes")
    operands = [source.value, held]
    zero = number_of(rewriter, source.zero)
    if zero is not None and source.zero is not None:
        operands.append(rewriter.constant(_wrapped(-zero * sums), f"{name}.correction"))
    total = rewriter.emit("matmul", operands, {"accumulator": DType.INT32.value})
    if zero is None and source.zero is not None:
        columns = rewriter.constant(_wrapped(sums), f"{name}.sums")
        total = rewriter.emit("sub", [total, rewriter.emit("mul", [source.zero, columns])])
    if moved.any():
        wide = rewriter.emit("cast", [source.value], {"to": DType.INT32.value})
        axis = len(rewriter.shape(wide)) - 1
        rows = rewriter.emit("reduce_sum", [wide], {"axes": (axis,), "keepdims": 1})
        distance = rewriter.constant(_wrapped(moved), f"{name}.moved")
        total = rewriter.emit("add", [total, rewriter.emit("mul", [rows, distance])])
    return total


def _convolved(
    rewriter: Rewriter, node: Node, source: IntegerSource, weight: Weight, factor: IntegerFactor
) -> str | None:
    """Emit the convolution of stored integers, minus their zero point, and an integer weight.

    `source` describes the stored integers. Returns the name of the int32 result, to which the
    caller applies the scales. Returns None if float32 is faster, and for unsupported operands:
    weights that cannot be shifted into their type; a zero point that is computed at run time; or a
    weight with a scale, if the sums may exceed int32 or the scale varies within a filter.
    """
    values, x = weight.values.astype(np.int64), source.value
    channels, group = values.shape[1], integer(node.attrs, "group", 1)
    missing = max(0, _LEAST_CHANNELS - channels) if group == 1 else 0
    if (1 < channels < _LEAST_CHANNELS and group > 1) or number_of(rewriter, source.zero) is None:
        return None
    is_byte = rewriter.type(source.value).dtype in INT8_TYPES
    pairs = _weight_type(rewriter, source, factor) is DType.INT16
    if pairs and _has_faster_floats(node, values, group):
        if weight.scale is not None or not is_byte:
            return None
        if group > 1:  # integers without a scale: float32 is no alternative, and pairs gain nothing
            factor = _unchanged
    inner = tuple(range(1, values.ndim))
    stored, scale = _weight_type(rewriter, source, factor), weight.scale
    if scale is not None and (
        not _stays_inside(rewriter, source, values, inner) or scale.size != scale.shape[0]
    ):
        return None
    values = np.pad(values, [(0, 0), (0, missing), *[(0, 0)] * (values.ndim - 2)])
    moved = _moved_into(stored, values, inner)
    if moved is None or (moved.any() and group > 1 and _are_small(values, group)):
        return None
    source = as_factor(rewriter, source, factor)
    zero = number_of(rewriter, source.zero) or 0
    attrs, x = dict(node.attrs), source.value
    spatial = values.ndim - 2
    pads = ints(node.attrs, "pads", (0,) * 2 * spatial)
    added = pads if zero else (0,) * 2 * spatial
    if missing or any(added):
        around = (0, 0, *added[:spatial], 0, missing, *added[spatial:])
        x = rewriter.emit("pad", [x], {"pads": around, "value": float(zero)})
        attrs["pads"] = tuple(all_ - own for all_, own in zip(pads, added, strict=True))
    name, attrs["accumulator"] = node.inputs[1], DType.INT32.value
    held = rewriter.constant((values - moved).astype(stored.numpy), f"{name}.bytes")
    operands = [x, held]
    if zero:
        sums = values.reshape(len(values), -1).sum(axis=1)
        operands.append(rewriter.constant(_wrapped(-zero * sums), f"{name}.correction"))
    total = rewriter.emit("conv", operands, attrs)
    if not moved.any():
        return total
    distance = rewriter.constant(_wrapped(moved.reshape(-1, *(1,) * spatial)), f"{name}.moved")
    windows = _window_sums(rewriter, x, values.shape, attrs)
    return rewriter.emit("add", [total, rewriter.emit("mul", [windows, distance])])


def _are_small(values: np.ndarray, group: int) -> bool:
    """Whether a grouped convolution has so few channels per group that float32 is faster.

    `values` are the weights, and `group` is the number of groups. With integers, the sums of the
    windows need a second convolution. float32 ran at 3 times the speed of integers for 32 groups of
    8 by 8 channels, and at 0.6 times their speed for 16 groups of 16 by 16.
    """
    return bool(min(len(values) // group, values.shape[1]) < _LEAST_GROUP)


def _has_faster_floats(conv: Node, values: np.ndarray, group: int) -> bool:
    """Whether a convolution is faster in float32 than with pairs of int16.

    float32 is faster if Winograd's algorithm applies: a 3x3 convolution with pairs ran at 0.64
    times the speed of Winograd's algorithm in float32. float32 is also faster for a grouped
    convolution with one input channel per group, which has no pairs. Other convolutions with pairs
    ran at 1.4 to 1.8 times the speed of float32. On a Zen 3, this rule made 8-bit ResNet-50 1.08 to
    1.18 times as fast.

    Pairs are faster for weights that exceed `GROWTH_LIMIT_BYTES` in float32: constant folding would
    leave them in 8 bits, and each run would convert them.
    """
    if DType.FLOAT32.bytes * values.size > GROWTH_LIMIT_BYTES:
        return False
    window = values.shape[2:]
    steps = {*ints(conv.attrs, "strides", (1,)), *ints(conv.attrs, "dilations", (1,))}
    return group > 1 == values.shape[1] or (group == 1 < min(window) and steps == {1})


def _window_sums(
    rewriter: Rewriter, x: str, filters: tuple[int, ...], attrs: dict[str, AttrValue]
) -> str:
    """Emit the int32 sum of an image in each window of a convolution.

    `filters` is the shape of the weights. The result has shape (N, 1, ...), with sums over all
    channels. In a convolution with groups, it has shape (N, filters[0], ...), with sums over the
    channels that each filter reads.
    """
    if attrs.get("group", 1) != 1:
        ones = rewriter.constant(np.ones(filters, np.int8), f"{x}.ones")
        return rewriter.emit("conv", [x, ones], attrs)
    wide = rewriter.emit("cast", [x], {"to": DType.INT32.value})
    pixels = rewriter.emit("reduce_sum", [wide], {"axes": (1,), "keepdims": 1})
    ones = rewriter.constant(np.ones((1, 1, *filters[2:]), np.int32), f"{x}.ones")
    plain = {key: value for key, value in attrs.items() if key != "accumulator"}
    return rewriter.emit("conv", [pixels, ones], plain)


def _weight_type(rewriter: Rewriter, source: IntegerSource, factor: IntegerFactor) -> DType:
    """The type in which weights are multiplied with the stored integers of `source`.

    This is int16 if the target multiplies these integers as int16, else int8.
    """
    kind = factor(rewriter.type(source.value).dtype)
    return DType.INT16 if kind is DType.INT16 else DType.INT8


def _unchanged(stored: DType) -> DType:
    """Return `stored`, for integers that are multiplied in the type in which they are stored.

    This is an `IntegerFactor`: a function that maps a stored type to the type of the factors.
    """
    return stored


def _stays_inside(
    rewriter: Rewriter, source: IntegerSource, values: np.ndarray, axes: int | tuple[int, ...]
) -> bool:
    """Whether sums of products of stored integers and weights along `axes` fit in int32.

    The sums must fit for all values of the type of the integers of `source`, minus their zero
    point. Intermediate sums may exceed int32, because they wrap around. A zero point that is
    computed at run time is assumed to be the smallest or the largest value of the type.
    """
    limits = np.iinfo(rewriter.type(source.value).dtype.numpy)
    low, high = int(limits.min), int(limits.max)
    zero = number_of(rewriter, source.zero)
    low, high = (low - high, high - low) if zero is None else (low - zero, high - zero)
    above = np.maximum(values, 0).sum(axis=axes)
    below = np.minimum(values, 0).sum(axis=axes)
    most, least = above * high + below * low, above * low + below * high
    return bool(most.max(initial=0) < 2**31 and least.min(initial=0) >= -(2**31))


def _moved_into(
    stored: DType, values: np.ndarray, axes: int | tuple[int, ...]
) -> np.ndarray | None:
    """Return the numbers to subtract from weights so that they fit in the type `stored`.

    There is one number for each index outside `axes`. All are 0 if all weights fit unchanged.
    Returns None if the weights cannot be shifted: their range is too wide, or `stored` is int16.
    """
    low, high = (np.asarray(end(axis=axes, keepdims=True)) for end in (values.min, values.max))
    limits = np.iinfo(stored.numpy)
    if low.min() >= limits.min and high.max() <= limits.max:
        return np.zeros_like(low)
    if stored is not DType.INT8 or (high - low).max() > 255:
        return None
    return low + 128


def _wrapped(numbers: np.ndarray) -> np.ndarray:
    """Wrap integers around to int32."""
    return numbers.astype(np.int32)
