"""Products of integers less their zero points: bytes multiplied as they are stored, sums in int32.

Before:                                             After:
    %1 = matmul(int32(%0) - z, w)                       %1 = matmul(%0, w, -z * sum(w))

    %2 = conv(int32(%0) - z, w)                         %1 = pad(%0) {value=z}
                                                        %2 = conv(%1, w, -z * sum(w))

`%0` is of uint8 or int8, `w` a constant. The products on the right have the attribute
`accumulator`. Their second factor is of int8: columns of a matrix, and filters, that leave it
(asymmetric uint8) move into it, for which the sums of the rows of `%0`, or of its windows, make up.
The first has the sign that the target
multiplies with that (`Target.factor`): an int8 `%0` moves up by 128 where it must be unsigned, a
uint8 one down by 128 where it must have a sign, as its zero point does. The zero point of a matrix
may be known at run time only; that of a convolution is what it is padded with. All of it is exact.
Also called integer-only inference (Jacob et al., "Quantization and Training of Neural Networks for
Efficient Integer-Arithmetic-Only Inference", 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from compiler.dtypes import DType
from compiler.graph.ir import AttrValue, Graph, Node
from compiler.ops.attributes import integer, ints, number
from compiler.ops.products import BYTES
from compiler.passes.quantise_first import MOVEMENTS
from compiler.passes.rewrite import Rewriter, rewrite

MOST_TERMS = (2**31 - 1) // (255 * 128)
"""So many products of bytes never leave int32."""

_FLOAT = np.finfo(np.float32)

_LEAST_CHANNELS = 4
"""Fewer do not fill a group of bytes: an image of three colours gets a fourth, times zero."""


ByteFactor = Callable[[DType], DType]
"""Stored bytes -> the bytes that they are multiplied as."""


def unsigned(stored: DType) -> DType:
    """That of the instructions that most CPUs have."""
    return DType.UINT8


def byte_products(graph: Graph, factor: ByteFactor = unsigned) -> Graph:
    """Multiply integers as bytes, not as the int32 that they are widened to."""
    return rewrite(graph, partial(of_bytes, scaled=False, factor=factor))


@dataclass(frozen=True, slots=True)
class ByteSource:
    """`(value - zero) * scale`: bytes, a zero point of int32, and a scale for all of them, or one
    for each channel, (channels, 1, ...).

    Without a scale, the product is one of integers.
    """

    value: str
    zero: str | None
    scale: np.ndarray | None


@dataclass(frozen=True, slots=True)
class _Weight:
    """`values * scale`: integers, and a scale that broadcasts with them."""

    values: np.ndarray
    scale: np.ndarray | None


def of_bytes(rewriter: Rewriter, node: Node, *, scaled: bool, factor: ByteFactor) -> str | None:
    """The value of a product of bytes, `scaled` or integers; None where a node is none such."""
    if node.op not in ("matmul", "gemm", "conv") or node.attr("accumulator") is not None:
        return None
    source, weight = source_of(rewriter, node.inputs[0]), _weight(rewriter, node.inputs[1])
    if source is None or weight is None:
        return None
    if {source.scale is not None, weight.scale is not None} != {scaled}:
        return None
    if node.op == "gemm":
        if integer(node.attrs, "trans_a", 0) or _factors(node) != (1.0, 1.0):
            return None
        if integer(node.attrs, "trans_b", 0):
            weight = _transposed(weight, (1, 0))
    scale, tail = weight.scale, tuple[int, ...]()
    if node.op == "conv":
        total = _convolved(rewriter, node, source, weight, factor)
        tail = (1,) * (weight.values.ndim - 2)
        scale = None if scale is None else scale.reshape(-1, *tail)  # of the output's channels
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
    scale: np.ndarray, node: Node, weight: _Weight, tail: tuple[int, ...]
) -> np.ndarray | None:
    """The scale of a source for each filter; None where a filter has channels of several scales."""
    if not scale.ndim:
        return scale
    filters, channels = len(weight.values), scale.shape[0]
    if node.op != "conv" or integer(node.attrs, "group", 1) != channels:
        return None
    return np.repeat(scale.reshape(-1), filters // channels).reshape(-1, *tail)


def scale_of(one: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """The product of two scales; None where both, one after the other, lose less than it does."""
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
    """A bias with the dimensions behind it that it broadcasts over."""
    if not tail:
        return value
    array, shape = rewriter.array(value), (*rewriter.shape(value), *tail)
    if array is not None:
        return rewriter.constant(array.reshape(shape), f"{value}.column")
    return rewriter.emit("reshape", [value], {"shape": shape})


# ---- what is quantised


def source_of(rewriter: Rewriter, value: str) -> ByteSource | None:
    """Bytes less a zero point, scaled or not, perhaps moved since."""
    node = rewriter.producer(value)
    if node is None:
        return None
    if node.op in MOVEMENTS or node.op == "max_pool":
        return _moved_source(rewriter, node)
    if node.op == "mul":
        for first, second in (node.inputs, node.inputs[::-1]):
            scale, cast = rewriter.array(second), rewriter.producer(first, "cast")
            if scale is None or cast is None or rewriter.type(first).dtype is not DType.FLOAT32:
                continue
            inner = source_of(rewriter, cast.inputs[0])
            if inner is None or inner.scale is not None or not is_single(rewriter, inner.zero):
                continue
            if scale.size == 1 and scale.ndim <= 1:
                return replace(inner, scale=scale.reshape(()))
            shape = rewriter.shape(value)
            if scale.shape == (*shape[1:2], *(1,) * (len(shape) - 2)):
                return replace(inner, scale=scale)  # of each channel
        return None
    zero: str | None = None
    if node.op == "sub":
        wide, zero = node.inputs[0], _one_zero(rewriter, node.inputs[1])
        node = rewriter.producer(wide, "cast")
    if node is None or node.op != "cast" or rewriter.type(node.outputs[0]).dtype is not DType.INT32:
        return None
    (stored,) = node.inputs
    if rewriter.type(stored).dtype not in BYTES or rewriter.array(stored) is not None:
        return None
    if zero is not None and len(rewriter.shape(zero)) > len(rewriter.shape(stored)):
        return None
    if zero is not None and rewriter.shape(zero)[-1:] not in ((), (1,)):
        return None  # one for each place along the sum
    if zero is not None and is_single(rewriter, zero):
        limits = np.iinfo(rewriter.type(stored).dtype.numpy)
        if not limits.min <= number_of(rewriter, zero) <= limits.max:
            return None  # no byte to pad with
    return ByteSource(stored, zero, None)


def _moved_source(rewriter: Rewriter, node: Node) -> ByteSource | None:
    """What was moved as floats, moved as the bytes; parts must be scaled alike."""
    count = len(node.inputs) if node.op == "concat" else 1
    parts = [source_of(rewriter, operand) for operand in node.inputs[:count]]
    found = [part for part in parts if part is not None and is_single(rewriter, part.zero)]
    if len(found) < len(parts):
        return None
    first = found[0]
    if any(part.scale is not None and part.scale.ndim for part in found):
        return None
    if node.op == "max_pool" and first.scale is not None and not first.scale > 0:
        return None
    alike = {
        (
            part.scale if part.scale is None else float(part.scale),
            0 if part.zero is None else number_of(rewriter, part.zero),
            rewriter.type(part.value).dtype,
        )
        for part in found
    }
    if len(alike) > 1:
        return None
    operands = [part.value for part in found] + list(node.inputs[count:])
    return replace(first, value=rewriter.emit(node.op, operands, node.attrs))


def _one_zero(rewriter: Rewriter, zero: str) -> str:
    """A zero point; one number where a constant has the same one everywhere."""
    array = rewriter.array(zero)
    if array is None or array.size < 2 or (array != array.flat[0]).any():
        return zero
    return rewriter.constant(array.flat[0].reshape(()), zero)


def is_single(rewriter: Rewriter, zero: str | None) -> bool:
    """Whether a zero point is a constant for all elements."""
    array = None if zero is None else rewriter.array(zero)
    return zero is None or (array is not None and array.size == 1)


def _weight(rewriter: Rewriter, value: str) -> _Weight | None:
    """A constant of int32, or the operations that make scaled floats of a constant of bytes."""
    if rewriter.type(value).dtype is DType.INT32:
        values = _integers(rewriter, value)
        return None if values is None else _Weight(values, None)
    node = rewriter.producer(value)
    if node is None or rewriter.type(value).dtype is not DType.FLOAT32:
        return None
    if node.op == "transpose":
        inner = _weight(rewriter, node.inputs[0])
        return None if inner is None else _transposed(inner, ints(node.attrs, "perm"))
    if node.op != "mul":
        return None
    for first, second in (node.inputs, node.inputs[::-1]):
        scale, cast = rewriter.array(second), rewriter.producer(first, "cast")
        if scale is None or cast is None or rewriter.type(cast.inputs[0]).dtype is not DType.INT32:
            continue
        values = _integers(rewriter, cast.inputs[0])
        if values is not None and rewriter.shape(value) == values.shape:
            return _Weight(values, scale.reshape((1,) * (values.ndim - scale.ndim) + scale.shape))
    return None


def _integers(rewriter: Rewriter, value: str) -> np.ndarray | None:
    """The constant `int32(w) - v`, folded already or not."""
    array = rewriter.array(value)
    if array is not None:
        return array
    node = rewriter.producer(value)
    if node is None:
        return None
    if node.op == "cast":
        stored = rewriter.array(node.inputs[0])
        return None if stored is None else stored.astype(np.int32)
    if node.op == "sub":
        left, right = (_integers(rewriter, operand) for operand in node.inputs)
        return None if left is None or right is None else left - right
    return None


def _transposed(weight: _Weight, order: tuple[int, ...]) -> _Weight:
    scale = None if weight.scale is None else weight.scale.transpose(order)
    return _Weight(np.ascontiguousarray(weight.values.transpose(order)), scale)


# ---- products of integers


def _multiplied(
    rewriter: Rewriter, name: str, source: ByteSource, weight: _Weight, factor: ByteFactor
) -> str | None:
    """sum over k of (a[m, k] - zero) * w[k, n], in int32."""
    values = weight.values.astype(np.int64)
    if values.ndim < 2 or len(rewriter.shape(source.value)) < 2 or not values.size:
        return None
    if weight.scale is not None and (
        values.shape[-2] > MOST_TERMS
        or 255 * np.abs(values).sum(axis=-2).max() >= 2**31  # a zero point may be at either end
        or weight.scale.shape[-2] > 1
    ):
        return None
    moved = _moved_into_int8(values, -2)
    if moved is None:
        return None
    source = as_factor(rewriter, source, factor)
    sums = values.sum(axis=-2, keepdims=True)
    sums = sums.reshape(sums.shape[-1]) if values.ndim == 2 else sums
    operands = [source.value, rewriter.constant((values - moved).astype(np.int8), f"{name}.bytes")]
    known = is_single(rewriter, source.zero)
    if known and source.zero is not None:
        correction = _wrapped(-number_of(rewriter, source.zero) * sums)
        operands.append(rewriter.constant(correction, f"{name}.correction"))
    total = rewriter.emit("matmul", operands, {"accumulator": DType.INT32.value})
    if not known and source.zero is not None:
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
    rewriter: Rewriter, node: Node, source: ByteSource, weight: _Weight, factor: ByteFactor
) -> str | None:
    """The convolution of (x - zero) with w, in int32."""
    values, x = weight.values.astype(np.int64), source.value
    channels, group = values.shape[1], integer(node.attrs, "group", 1)
    missing = max(0, _LEAST_CHANNELS - channels) if group == 1 else 0
    if (1 < channels < _LEAST_CHANNELS and group > 1) or not is_single(rewriter, source.zero):
        return None
    inner = tuple(range(1, values.ndim))
    scale = weight.scale
    if scale is not None and (
        np.prod(values.shape[1:]) > MOST_TERMS
        or 255 * np.abs(values).sum(axis=inner).max() >= 2**31
        or scale.size != scale.shape[0]
    ):
        return None
    values = np.pad(values, [(0, 0), (0, missing), *[(0, 0)] * (values.ndim - 2)])
    moved = _moved_into_int8(values, inner)
    if moved is None or (moved.any() and group > 1):
        return None
    source = as_factor(rewriter, source, factor)
    zero = 0 if source.zero is None else number_of(rewriter, source.zero)
    attrs, x = dict(node.attrs), source.value
    spatial = values.ndim - 2
    pads = ints(node.attrs, "pads", (0,) * 2 * spatial)
    added = pads if zero else (0,) * 2 * spatial
    if missing or any(added):
        around = (0, 0, *added[:spatial], 0, missing, *added[spatial:])
        x = rewriter.emit("pad", [x], {"pads": around, "value": float(zero)})
        attrs["pads"] = tuple(all_ - own for all_, own in zip(pads, added, strict=True))
    name = node.inputs[1]
    operands = [x, rewriter.constant((values - moved).astype(np.int8), f"{name}.bytes")]
    if zero:
        sums = values.reshape(len(values), -1).sum(axis=1)
        operands.append(rewriter.constant(_wrapped(-zero * sums), f"{name}.correction"))
    total = rewriter.emit("conv", operands, attrs | {"accumulator": DType.INT32.value})
    if not moved.any():
        return total
    distance = rewriter.constant(_wrapped(moved.reshape(-1, *(1,) * spatial)), f"{name}.moved")
    windows = _window_sums(rewriter, x, values.shape[2:], attrs)
    return rewriter.emit("add", [total, rewriter.emit("mul", [windows, distance])])


def _window_sums(
    rewriter: Rewriter, x: str, window: tuple[int, ...], attrs: dict[str, AttrValue]
) -> str:
    """The sums of all channels of an image in each window of a convolution, (N, 1, ...), int32."""
    wide = rewriter.emit("cast", [x], {"to": DType.INT32.value})
    pixels = rewriter.emit("reduce_sum", [wide], {"axes": (1,), "keepdims": 1})
    ones = rewriter.constant(np.ones((1, 1, *window), np.int32), f"{x}.ones")
    return rewriter.emit("conv", [pixels, ones], attrs)


def _moved_into_int8(values: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray | None:
    """What to take off weights along these axes so that int8 holds them: 0 if it holds all as they
    are; None where some are too far apart."""
    low, high = values.min(axis=axes, keepdims=True), values.max(axis=axes, keepdims=True)
    if (high - low).max() > 255:
        return None
    inside = low.min() >= -128 and high.max() <= 127
    return np.zeros_like(low) if inside else np.asarray(low + 128)


def as_factor(rewriter: Rewriter, source: ByteSource, factor: ByteFactor) -> ByteSource:
    """The same numbers as bytes of the sign that is multiplied: bytes and zero point move by 128.

    Moved bytes wrap around; the zero point is an int32, which does not.
    """
    stored = rewriter.type(source.value).dtype
    wanted = factor(stored)
    if stored is wanted:
        return source
    step = -128 if wanted.is_signed else 128
    wide = rewriter.constant(np.array(step, np.int32), f"{source.value}.zero")
    if source.zero is None:
        zero = wide
    elif is_single(rewriter, source.zero):
        zero = rewriter.constant(
            np.array(number_of(rewriter, source.zero) + step, np.int32), source.zero
        )
    else:
        zero = rewriter.emit("add", [source.zero, wide])
    return replace(source, value=_stepped(rewriter, source.value, wanted, step), zero=zero)


def _stepped(rewriter: Rewriter, value: str, dtype: DType, step: int) -> str:
    """Bytes in the other type, moved before they change their places: by what computes them."""
    made = rewriter.producer(value)
    if made is not None and made.op in MOVEMENTS:
        count = len(made.inputs) if made.op == "concat" else 1
        inner = [_stepped(rewriter, operand, dtype, step) for operand in made.inputs[:count]]
        return rewriter.emit(made.op, [*inner, *made.inputs[count:]], made.attrs)
    bits = rewriter.emit("cast", [value], {"to": dtype.value})
    distance = rewriter.constant(np.array(step, dtype.numpy), f"{value}.step")
    return rewriter.emit("add", [bits, distance])


def number_of(rewriter: Rewriter, value: str) -> int:
    """A zero point that `is_single`."""
    array = rewriter.array(value)
    assert array is not None
    return int(array.reshape(-1)[0])


def _wrapped(numbers: np.ndarray) -> np.ndarray:
    """Numbers as int32 arithmetic has them."""
    return numbers.astype(np.int32)
