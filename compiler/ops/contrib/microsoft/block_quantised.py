"""Operators of com.microsoft with weights of 2, 4 or 8 bits, quantised in blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.block_matmul import BITS, Packing
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.contrib.microsoft.quantised import DOMAIN
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import equal, same_extents

_INT8 = 4
"""The value of `accuracy_level` that permits quantisation of the activations to 8 bits."""

_MOST = 127.0

_LEAST = 1e-30
"""Minimum for the largest magnitude of a chunk from which the chunk's quantisation factor is
computed. It avoids a division by zero."""


def _packing(node: OnnxNode, known: tuple[int, ...]) -> Packing:
    bits = node.integer("bits", 4)
    if bits not in known:
        raise node.unsupported(
            f"attribute 'bits' is {bits}, expected {' or '.join(map(str, known))}"
        )
    try:
        return Packing.checked(bits, node.integer("block_size", 128))
    except ValueError as error:
        raise node.invalid(str(error)) from error


def _matmul_nbits(node: OnnxNode) -> str:
    """Import MatMulNBits: A times the transpose of a packed weight B, plus a bias.

    Inputs: A (..., K), B (N, blocks, bytes), scales (N, blocks), zero points, g_idx (the
    quantisation group of each k), bias (N). The result is (..., N). With `accuracy_level` 4, A is
    quantised to int8.
    """
    packing, columns, depth = _packing(node, BITS), node.integer("N"), node.integer("K")
    x = node.input(0)
    kind = node.type(x)
    if not kind.dtype.is_float or kind.dtype is DType.FLOAT64:
        raise node.invalid(
            f"A (input 0) has element type {kind.dtype}, expected float32, float16 or bfloat16"
        )
    if not kind.shape or not equal(kind.shape[-1], depth) or min(depth, columns) < 1:
        raise node.invalid(
            f"A (input 0) is {show(kind.shape)}, expected a last dimension of K={depth}; K and "
            f"N={columns} must be at least 1"
        )
    blocks = -(-depth // packing.block)
    weight = _weights(node, packing, columns, blocks)
    rows = [_padded(node, x, depth, blocks * packing.block)]
    places = _sorted_by_group(node, depth, packing.block)
    if places is not None:
        weight = np.take(weight, np.maximum(places.elements, 0), axis=1)
        rows = [places.taken(node, rows[0], blocks * packing.block)]
    level = node.integer("accuracy_level", 0)
    if not 0 <= level <= _INT8:
        raise node.invalid(f"accuracy_level is {level}, not 0 to 4")
    if level == _INT8:
        rows = _quantised(node, rows[0], packing)
    per_block = [_per_block(node, 2, "scales", (columns, blocks))]
    zero = _zero_points(node, packing, columns, blocks)
    if zero is not None:
        per_block.append(zero)
    if places is not None:
        groups = node.constant(places.groups)
        per_block = [node.call("Gather", value, groups, axis=1) for value in per_block]
    operands = [*rows, node.constant(packing.packed(weight)), *per_block]
    result = node.emit("block_matmul", operands, bits=packing.bits, block=packing.block)
    result = node.reshape(result, (*kind.shape[:-1], columns))
    bias = node.optional(5)
    if bias is not None:
        if not same_extents(node.shape(bias), (columns,)):
            raise node.invalid(
                f"bias (input 5) is {show(node.shape(bias))}, expected (N), ({columns})"
            )
        result = node.call("Add", result, cast_to(node, bias, DType.FLOAT32))
    return cast_to(node, result, kind.dtype)


def _weights(node: OnnxNode, packing: Packing, columns: int, blocks: int) -> np.ndarray:
    """Unpack the constant weight B to uint8 elements (N, K); K is padded to whole blocks."""
    stored = node.static(1, "B")
    if stored is None:
        raise node.invalid("B (input 1) is missing")
    size = packing.block * packing.bits // 8
    if stored.dtype != np.uint8 or stored.size != columns * blocks * size:
        wanted = show((columns, blocks, size))
        raise node.invalid(f"B is {stored.dtype} of {show(stored.shape)}, not uint8 of {wanted}")
    return packing.elements(stored.reshape(columns, blocks * size))


def _padded(node: OnnxNode, x: str, depth: int, whole: int) -> str:
    """Emit x as a float32 matrix, its rows padded with zeros from `depth` to `whole` columns."""
    matrix = node.reshape(x, (node.type(x).elements // depth, depth))
    rows = cast_to(node, matrix, DType.FLOAT32)
    if depth == whole:
        return rows
    return node.emit("pad", [rows], pads=(0, 0, 0, whole - depth), value=0.0)


def _quantised(node: OnnxNode, rows: str, packing: Packing) -> list[str]:
    """Quantise rows of floats to int8; the largest magnitude in a chunk becomes 127 or -127.

    A chunk has `packing.chunk` elements. Returns three values: the int8 elements, packed by fours
    into int32 words; the scale of each chunk; the sum of each chunk's dequantised elements.
    """
    count, depth = node.shape(rows)
    shape = (count, depth // packing.chunk)

    def number(value: float) -> str:
        return node.scalar(value, DType.FLOAT32)

    split = node.reshape(rows, (*shape, packing.chunk))
    peak = node.emit("reduce_max", [node.emit("abs", [split])], axes=(2,), keepdims=1)
    factor = node.emit("div", [number(_MOST), node.emit("max", [peak, number(_LEAST)])])
    whole = node.emit("round", [node.emit("mul", [split, factor])])
    bytes_ = node.reshape(cast_to(node, whole, DType.INT8), (count, depth))
    words = node.emit("bitcast", [bytes_], to=DType.INT32.value)
    scale = node.reshape(node.emit("mul", [peak, number(1 / _MOST)]), shape)
    total = node.emit("reduce_sum", [whole], axes=(2,), keepdims=0)
    return [words, scale, node.emit("mul", [total, scale])]


def _per_block(node: OnnxNode, position: int, what: str, shape: tuple[int, ...]) -> str:
    """Return the operand at `position`, which has one float per block, as float32 of this shape.

    `what` names the operand in errors.
    """
    value = node.input(position)
    kind = node.type(value)
    if not equal(kind.elements, shape[0] * shape[1]) or not kind.dtype.is_float:
        raise node.invalid(f"{what} are {kind}, not floats of {show(shape)}")
    return cast_to(node, node.reshape(value, shape), DType.FLOAT32)


def _zero_points(node: OnnxNode, packing: Packing, columns: int, blocks: int) -> str | None:
    """Return the zero points (columns, blocks), as uint8 or float32.

    The result is None if the operand is omitted or has only the default value, `packing.middle`.
    """
    value = node.optional(3)
    if value is None:
        return None
    if node.type(value).dtype.is_float:
        return _per_block(node, 3, "zero points", (columns, blocks))
    stored = node.static(3, "zero_points")
    row = -(-blocks * packing.bits // 8)
    if stored is None or stored.dtype != np.uint8 or stored.size != columns * row:
        raise node.invalid(f"zero points are {node.type(value)}, not uint8 of {(columns, row)}")
    zeros = packing.elements(stored.reshape(columns, row))[:, :blocks]
    if (zeros == packing.middle).all():
        return None
    return node.constant(np.ascontiguousarray(zeros))


@dataclass(frozen=True, slots=True)
class _Places:
    """An order of the positions along K in which each block belongs to one quantisation group.

    K is the summed dimension of a product with block-quantised weights. `elements` has the
    positions in the new order; -1 stands for padding at the end of a group. `groups` has the
    quantisation group of each block.
    """

    elements: np.ndarray
    groups: np.ndarray

    def taken(self, node: OnnxNode, rows: str, width: int) -> str:
        """Emit the columns of `rows` in the permuted order, with zeros for padding.

        `width` is the number of columns of `rows`.
        """
        elements = self.elements
        if (elements < 0).any():
            rows = node.emit("pad", [rows], pads=(0, 0, 0, 1), value=0.0)
            elements = np.where(elements < 0, width, elements)
        return node.call("Gather", rows, node.constant(elements), axis=1)


def _sorted_by_group(node: OnnxNode, depth: int, block: int) -> _Places | None:
    """Sort the positions along K by their quantisation groups, which g_idx states (act-order GPTQ).

    The sort is stable. A group may have fewer elements than a block, or more; each group is padded
    to whole blocks. The result is None if the operand g_idx is omitted, or if each group is already
    one block of consecutive elements, in order.
    """
    blocks = -(-depth // block)
    groups = node.static_ints(4, "g_idx")
    if groups is None:
        return None
    if len(groups) not in (depth, blocks * block):
        raise node.invalid(f"g_idx has {len(groups)} elements for K={depth}")
    group_of = np.array(groups[:depth], np.int64)
    wrong = group_of[(group_of < 0) | (group_of >= blocks)]
    if wrong.size:
        raise node.invalid(f"g_idx has {wrong[0]}, and there are {blocks} blocks")
    if np.array_equal(group_of, np.arange(depth) // block):
        return None
    elements, owners = list[np.ndarray](), list[int]()
    for group in np.unique(group_of):
        own = np.flatnonzero(group_of == group)
        count = -(-own.size // block)
        elements.append(np.pad(own, (0, count * block - own.size), constant_values=-1))
        owners += [int(group)] * count
    return _Places(np.concatenate(elements), np.array(owners, np.int64))


def _gather_block_quantized(node: OnnxNode) -> str:
    """Import GatherBlockQuantized: gather rows of quantised data, then dequantise them.

    The data are quantised in blocks along the last dimension. Inputs: data, indices, scales, zero
    points.
    """
    data, indices, scales = node.input(0), node.input(1), node.input(2)
    packing, kind = _packing(node, (4, 8)), node.type(data)
    if kind.dtype is not DType.UINT8:
        raise node.unsupported(f"data (input 0) with element type {kind.dtype}, expected uint8")
    rank = len(kind.shape)
    if rank < 2 or _dimension(node, "gather_axis", 0, rank):
        raise node.invalid(
            f"data (input 0) is {show(kind.shape)}, expected two dimensions or more and "
            "gather_axis=0"
        )
    if _dimension(node, "quantize_axis", 1, rank) != rank - 1:
        raise node.unsupported("attribute 'quantize_axis' is not the last axis")
    size = kind.shape[-1] * 8 // packing.bits
    blocks = (*kind.shape[:-1], -(-size // packing.block))
    if not same_extents(node.shape(scales), blocks) or not node.type(scales).dtype.is_float:
        raise node.invalid(f"scales are {node.type(scales)}, not floats of {show(blocks)}")

    def gathered(value: str) -> str:
        return node.call("Gather", value, indices, axis=0)

    rows, factor = _unpacked(node, gathered(data), packing), gathered(scales)
    centre = node.scalar(packing.middle, DType.INT32)
    zeros = node.optional(3)
    if zeros is not None:
        wanted = (*blocks[:-1], -(-blocks[-1] * packing.bits // 8))
        if node.type(zeros).dtype is not DType.UINT8 or not same_extents(node.shape(zeros), wanted):
            raise node.invalid(f"zero points are {node.type(zeros)}, not uint8 of {show(wanted)}")
        found = _cut(node, _unpacked(node, gathered(zeros), packing), blocks[-1])
        centre = cast_to(node, _repeated(node, found, packing, size), DType.INT32)
    centred = node.call("Sub", cast_to(node, rows, DType.INT32), centre)
    scale = _repeated(node, cast_to(node, factor, DType.FLOAT32), packing, size)
    values = node.call("Mul", cast_to(node, centred, DType.FLOAT32), scale)
    return cast_to(node, values, node.type(scales).dtype)


def _dimension(node: OnnxNode, key: str, default: int, rank: int) -> int:
    axis = node.integer(key, default)
    if not -rank <= axis < rank:
        raise node.invalid(f"{key} {axis} is out of range for rank {rank}")
    return axis % rank


def _unpacked(node: OnnxNode, bytes_: str, packing: Packing) -> str:
    """Unpack bytes to elements, one per byte, along the last dimension.

    With 4 bits, the first element is in a byte's low half.
    """
    if packing.bits == 8:
        return bytes_
    shape = node.shape(bytes_)
    low = node.emit("bit_and", [bytes_, node.scalar(15, DType.UINT8)])
    high = node.emit("shift_right", [bytes_, node.scalar(4, DType.UINT8)])
    pairs = [node.reshape(half, (*shape, 1)) for half in (low, high)]
    both = node.call("Concat", *pairs, axis=len(shape))
    return node.reshape(both, (*shape[:-1], 2 * shape[-1]))


def _cut(node: OnnxNode, value: str, size: int) -> str:
    """Emit the first `size` elements along the last dimension; the rest is padding."""
    shape = node.shape(value)
    if shape[-1] == size:
        return value
    rank = len(shape)
    sizes = (*shape[:-1], size)
    return node.emit("slice", [value], starts=(0,) * rank, steps=(1,) * rank, sizes=sizes)


def _repeated(node: OnnxNode, value: str, packing: Packing, size: int) -> str:
    """Repeat each block's value `packing.block` times along the last dimension, cut to `size`."""
    shape = node.shape(value)
    split = node.reshape(value, (*shape, 1))
    full = node.emit("expand", [split], shape=(*shape, packing.block))
    return _cut(node, node.reshape(full, (*shape[:-1], shape[-1] * packing.block)), size)


RULES = (
    OnnxRule(
        "MatMulNBits",
        _matmul_nbits,
        DOMAIN,
        "2, 4 and 8 bits; g_idx is known at import",
        (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16),
    ),
    OnnxRule(
        "GatherBlockQuantized",
        _gather_block_quantized,
        DOMAIN,
        "uint8 data of 4 and 8 bits, in blocks along the last axis",
        (DType.UINT8,),
    ),
)
