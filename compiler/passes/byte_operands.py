"""What products of quantised numbers are made of: integers less a zero point, scaled or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Node
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.ops.products import BYTES, WORDS
from tilewright.compiler.passes.quantise_first import MOVEMENTS
from tilewright.compiler.passes.rewrite import Rewriter

STORED = (*BYTES, *WORDS)
"""The types of what is multiplied, less a zero point."""

ByteFactor = Callable[[DType], DType | None]
"""Stored integers -> the type that they are multiplied as; None: not as integers."""


def unsigned(stored: DType) -> DType | None:
    """That of the instructions that most CPUs have."""
    return DType.UINT8 if stored in BYTES else None


@dataclass(frozen=True, slots=True)
class ByteSource:
    """`(value - zero) * scale`: bytes or 16 bits, a zero point of int32, and a scale for all of
    them, or one for each channel, (channels, 1, ...).

    Without a scale, the product is one of integers.
    """

    value: str
    zero: str | None
    scale: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Weight:
    """`values * scale`: integers, and a scale that broadcasts with them."""

    values: np.ndarray
    scale: np.ndarray | None


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
    if rewriter.type(stored).dtype not in STORED or rewriter.array(stored) is not None:
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


def weight_of(rewriter: Rewriter, value: str) -> Weight | None:
    """A constant of int32, or the operations that make scaled floats of a constant of bytes."""
    if rewriter.type(value).dtype is DType.INT32:
        values = _integers(rewriter, value)
        return None if values is None else Weight(values, None)
    node = rewriter.producer(value)
    if node is None or rewriter.type(value).dtype is not DType.FLOAT32:
        return None
    if node.op == "transpose":
        inner = weight_of(rewriter, node.inputs[0])
        return None if inner is None else transposed(inner, ints(node.attrs, "perm"))
    if node.op != "mul":
        return None
    for first, second in (node.inputs, node.inputs[::-1]):
        scale, cast = rewriter.array(second), rewriter.producer(first, "cast")
        if scale is None or cast is None or rewriter.type(cast.inputs[0]).dtype is not DType.INT32:
            continue
        values = _integers(rewriter, cast.inputs[0])
        if values is not None and rewriter.shape(value) == values.shape:
            return Weight(values, scale.reshape((1,) * (values.ndim - scale.ndim) + scale.shape))
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


def transposed(weight: Weight, order: tuple[int, ...]) -> Weight:
    scale = None if weight.scale is None else weight.scale.transpose(order)
    return Weight(np.ascontiguousarray(weight.values.transpose(order)), scale)


def as_factor(rewriter: Rewriter, source: ByteSource, factor: ByteFactor) -> ByteSource:
    """The same numbers as bytes of the sign that is multiplied: bytes and zero point move by 128.

    Moved bytes wrap around; the zero point is an int32, which does not.
    """
    stored = rewriter.type(source.value).dtype
    wanted = factor(stored)
    assert wanted is not None
    if stored is wanted:
        return source
    half = 1 << 8 * stored.bytes - 1
    step = -half if wanted.is_signed else half
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
