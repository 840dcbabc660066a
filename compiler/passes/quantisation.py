"""Recognition of dequantised values: stored integers minus a zero point, with or without a scale.

%1 = cast(%0) {to=int32}                    %1 is (%0, no zero point, no scale)
%2 = sub(%1, z)                             %2 is (%0, z, no scale)
%3 = cast(%2) {to=float32}
%4 = mul(%3, s)                             %4 is (%0, z, s)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Node
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.ops.products import INT8_TYPES, INT16_TYPES
from tilewright.compiler.passes.rewrite import Rewriter

STORED = (*INT8_TYPES, *INT16_TYPES)
"""Types in which quantised models store integers that are multiplied after a zero point is
subtracted."""

MOVEMENTS = ("concat", "reshape", "transpose", "slice", "expand", "gather")
"""Operators whose result consists only of elements of their operands (for gather, of the first)."""

IntegerFactor = Callable[[DType], DType | None]
"""Maps the type in which integers are stored to the type in which the target multiplies them; None
if the target does not multiply them as integers."""


def unsigned(stored: DType) -> DType | None:
    """Return uint8 for int8 and uint8, and None for other types.

    Most CPUs multiply uint8 by int8, so stored 8-bit integers are multiplied as uint8. None means
    that integers of the type are not multiplied as integers.
    """
    return DType.UINT8 if stored in INT8_TYPES else None


@dataclass(frozen=True, slots=True)
class IntegerSource:
    """A value that is `(value - zero) * scale`, computed from stored 8-bit or 16-bit integers.

    Attributes:
        value: name of the stored integers.
        zero: name of the int32 zero point; None if nothing is subtracted.
        scale: a single scale, or one per channel, in the shape (channels, 1, ...); None if the
            value is an integer.
    """

    value: str
    zero: str | None
    scale: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant factor of a product, as `values * scale`.

    Attributes:
        values: the int32 values.
        scale: a scale that broadcasts with the values; None if the factor is an integer.
    """

    values: np.ndarray
    scale: np.ndarray | None


def scaled(rewriter: Rewriter, value: str) -> tuple[str, np.ndarray] | None:
    """Split `float32(integers) * scale` into the name of the integers and the constant scale.

    Return None if the value is not of this form.
    """
    node = rewriter.producer(value, "mul")
    if node is None or rewriter.type(value).dtype is not DType.FLOAT32:
        return None
    for wide, factor in (node.inputs, node.inputs[::-1]):
        cast, scale = rewriter.producer(wide, "cast"), rewriter.array(factor)
        if cast is not None and scale is not None:
            return cast.inputs[0], scale
    return None


def shifted(rewriter: Rewriter, value: str) -> tuple[str, str | None] | None:
    """Split `int32(stored) - zero` into the names of the stored integers and of the zero point.

    The zero point is None if nothing is subtracted. The result is None if the value is not of this
    form.
    """
    sub = rewriter.producer(value, "sub")
    wide, zero = (value, None) if sub is None else sub.inputs
    cast = rewriter.producer(wide, "cast")
    if cast is None or rewriter.type(wide).dtype is not DType.INT32:
        return None
    return cast.inputs[0], zero


def source_of(rewriter: Rewriter, value: str) -> IntegerSource | None:
    """Recognise a value that is dequantised from 8-bit or 16-bit integers.

    Data movements or max pools may follow the dequantisation. Returns None for any other value.
    """
    node = rewriter.producer(value)
    if node is not None and node.op in (*MOVEMENTS, "max_pool"):
        return _moved_source(rewriter, node)
    factors = scaled(rewriter, value)
    if factors is not None:
        integers, scale = factors
        inner, shape = source_of(rewriter, integers), rewriter.shape(value)
        if inner is None or inner.scale is not None or number_of(rewriter, inner.zero) is None:
            return None
        if scale.size == 1 and scale.ndim <= 1:
            return replace(inner, scale=scale.reshape(()))
        of_channels = scale.shape == (*shape[1:2], *(1,) * (len(shape) - 2))
        return replace(inner, scale=scale) if of_channels else None
    found = shifted(rewriter, value)
    if found is None:
        return None
    stored, zero = found
    if rewriter.type(stored).dtype not in STORED or rewriter.array(stored) is not None:
        return None
    source = IntegerSource(stored, None if zero is None else _one_zero(rewriter, zero), None)
    if source.zero is not None:
        shape, number = rewriter.shape(source.zero), number_of(rewriter, source.zero)
        limits = np.iinfo(rewriter.type(stored).dtype.numpy)
        if len(shape) > len(rewriter.shape(stored)):
            return None
        if shape[-1:] not in ((), (1,)):
            return None  # one for each position along the sum
        if number is not None and not limits.min <= number <= limits.max:
            return None  # no stored value to pad with
    return source


def _moved_source(rewriter: Rewriter, node: Node) -> IntegerSource | None:
    """Recognise a data movement or max pool whose operands are dequantised values.

    Emits the same operator on the stored integers. Returns an `IntegerSource` with the output of
    this operator. Returns None unless all operands have the same constant zero point and the same
    scale.
    """
    operands = moved_operands(node)
    found = [part for value in operands if (part := source_of(rewriter, value)) is not None]
    zeros = {number_of(rewriter, part.zero) for part in found}
    if len(found) < len(operands) or None in zeros or len(zeros) > 1:
        return None
    first = found[0]
    if any(part.scale is not None and part.scale.ndim for part in found):
        return None
    if node.op == "max_pool" and first.scale is not None and not first.scale > 0:
        return None
    scales = {None if part.scale is None else float(part.scale) for part in found}
    if len(scales) > 1 or len({rewriter.type(part.value).dtype for part in found}) > 1:
        return None
    return replace(first, value=move(rewriter, node, [part.value for part in found]))


def moved_operands(node: Node) -> tuple[str, ...]:
    """Return the operands whose elements a data movement copies to its result."""
    return node.inputs if node.op == "concat" else node.inputs[:1]


def move(rewriter: Rewriter, node: Node, values: Sequence[str]) -> str:
    """Emit a copy of a data movement that moves other values, and return its output.

    `values` replace, in order, the operands whose elements the movement copies.
    """
    return rewriter.emit(node.op, [*values, *node.inputs[len(values) :]], node.attrs)


def _one_zero(rewriter: Rewriter, zero: str) -> str:
    """Return a zero point, reduced to one element if it is a constant whose elements are equal."""
    array = rewriter.array(zero)
    if array is None or array.size < 2 or (array != array.flat[0]).any():
        return zero
    return rewriter.constant(array.flat[0].reshape(()), zero)


def number_of(rewriter: Rewriter, zero: str | None) -> int | None:
    """Return the value of a constant zero point of one element; 0 without a zero point.

    The result is None if the zero point is computed or has several elements.
    """
    if zero is None:
        return 0
    array = rewriter.array(zero)
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def weight_of(rewriter: Rewriter, value: str) -> Weight | None:
    """Recognise a constant weight: int32 values, or float32 values scaled from constant integers.

    Returns None for any other value.
    """
    if rewriter.type(value).dtype is DType.INT32:
        values = _integers(rewriter, value)
        return None if values is None else Weight(values, None)
    node = rewriter.producer(value, "transpose")
    if node is not None:
        inner = weight_of(rewriter, node.inputs[0])
        return None if inner is None else transposed(inner, ints(node.attrs, "perm"))
    factors = scaled(rewriter, value)
    if factors is None or rewriter.type(factors[0]).dtype is not DType.INT32:
        return None
    values, scale = _integers(rewriter, factors[0]), factors[1]
    if values is None or rewriter.shape(value) != values.shape:
        return None
    return Weight(values, scale.reshape((1,) * (values.ndim - scale.ndim) + scale.shape))


def _integers(rewriter: Rewriter, value: str) -> np.ndarray | None:
    """The elements of an int32 value that is a constant, or computed from constants.

    Only casts and subtractions, as in `int32(w) - v`, are computed. Returns None for other values.
    """
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


def as_factor(rewriter: Rewriter, source: IntegerSource, factor: IntegerFactor) -> IntegerSource:
    """Convert the stored integers of a dequantised value to the type that the target multiplies.

    `factor` maps the stored type to this type. A wider type holds the stored integers unchanged. If
    only the signedness differs, the integers and the zero point are shifted by half the range of
    the type, such as 128 for 8 bits. The difference of integers and zero point stays the same. The
    shift of the integers wraps around in the stored type. The zero point is an int32, in which it
    does not overflow.

    Returns the converted integers with the new zero point and the same scale.
    """
    stored = rewriter.type(source.value).dtype
    wanted = factor(stored)
    assert wanted is not None
    if stored is wanted:
        return source
    if wanted.bytes > stored.bytes:
        return replace(source, value=_converted(rewriter, source.value, wanted))
    half = 1 << 8 * stored.bytes - 1
    step = -half if wanted.is_signed else half
    wide = rewriter.constant(np.array(step, np.int32), f"{source.value}.zero")
    number = number_of(rewriter, source.zero)
    if source.zero is None:
        zero = wide
    elif number is not None:
        zero = rewriter.constant(np.array(number + step, np.int32), source.zero)
    else:
        zero = rewriter.emit("add", [source.zero, wide])
    return replace(source, value=_converted(rewriter, source.value, wanted, step), zero=zero)


def _converted(rewriter: Rewriter, value: str, dtype: DType, step: int = 0) -> str:
    """Convert stored integers to `dtype`, and add `step`. The addition wraps around.

    If data movements, such as a transpose, computed the integers, the cast and the addition are
    inserted before these movements. They can then be fused with the operators there.
    """
    made = rewriter.producer(value)
    if made is not None and made.op in MOVEMENTS:
        inner = [_converted(rewriter, value, dtype, step) for value in moved_operands(made)]
        return move(rewriter, made, inner)
    bits = rewriter.emit("cast", [value], {"to": dtype.value})
    if not step:
        return bits
    distance = rewriter.constant(np.array(step, dtype.numpy), f"{value}.step")
    return rewriter.emit("add", [bits, distance])
