"""Conversion of logical arrays to physical buffers and back.

Each physical axis of a layout is a part of only one logical axis. Therefore, the memory position of
an element is a sum with one term per logical axis, and packing is one scatter whose positions are
computed by broadcasting. Nearly all layouts split each axis evenly. For them, packing is a reshape
and a transpose, which is faster.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import Factor, Layout, physical_extents, strides
from tilewright.compiler.runtime.kernel import ALIGNMENT, BufferSpec, Halo

Array = NDArray[np.generic]
Bytes = NDArray[np.uint8]


def aligned_empty(size: int) -> Bytes:
    """Allocate `size` uninitialised bytes, aligned to 64 bytes."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def aligned_zeros(size: int) -> Bytes:
    """Allocate `size` zero bytes, aligned to 64 bytes.

    The operating system provides the memory pages on first access, so that unused pages are free.
    """
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def pack(
    array: Array,
    shape: tuple[int, ...],
    layout: Layout,
    halo: Halo = (),
    dtype: DType = DType.FLOAT32,
    out: Bytes | None = None,
) -> Array:
    """Copy a logical array to a physical buffer, and return the buffer.

    The buffer is 1-D, has elements of type `dtype`, and is aligned to 64 bytes.

    Args:
        array: the logical array.
        shape: the required shape of the array.
        layout, halo: the layout and the halo of the buffer. Elements in the halo and in the padding
            of the layout's last blocks are zero.
        dtype: the element type.
        out: memory for the buffer, filled with zeros; None allocates it.

    Raises:
        ValueError: if the array does not have this shape, or `out` does not have the buffer's size.
    """
    if array.shape != shape:
        raise ValueError(f"expected an array of shape {shape}, got {array.shape}")
    size = strides(shape, layout, halo)[1] * dtype.bytes
    if out is not None and out.nbytes != size:
        raise ValueError(f"the form takes {size} bytes, not {out.nbytes}")
    flat: Array = (aligned_zeros(size) if out is None else out).view(dtype.numpy)
    even = _even_split(shape, layout, halo)
    if even is None:
        flat[_positions(shape, layout, halo).reshape(-1)] = array.reshape(-1)
        return flat
    padded_shape, split_shape, _ = even
    if padded_shape != shape:
        padded = np.zeros(padded_shape, dtype.numpy)
        padded[_interior(shape, halo)] = array
        array = padded
    _in_logical_order(flat, even)[...] = array.reshape(split_shape)
    return flat


def unpack(
    buffer: Array,
    shape: tuple[int, ...],
    layout: Layout,
    halo: Halo = (),
    dtype: DType = DType.FLOAT32,
) -> Array:
    """Copy a physical buffer to a new, C-contiguous logical array.

    Args:
        buffer: the buffer, 1-D, of type `dtype` or uint8.
        shape: the logical shape.
        layout, halo: the layout and the halo of the buffer.
        dtype: the element type.

    Raises:
        ValueError: if the buffer is too small.
    """
    flat: Array = buffer.reshape(-1).view(dtype.numpy)
    count = strides(shape, layout, halo)[1]
    if flat.size < count:
        raise ValueError(f"expected {count} elements for shape {shape}, got {flat.size}")
    even = _even_split(shape, layout, halo)
    if even is None:
        return flat[_positions(shape, layout, halo)]
    logical = _in_logical_order(flat[:count], even).reshape(even[0])
    return np.array(logical[_interior(shape, halo)], order="C")


def packed_bytes(spec: BufferSpec) -> int:
    """Return the size in bytes of a buffer, computed from its shape, layout and halo."""
    count = strides(spec.shape, spec.parsed_layout(), spec.halo)[1]
    return count * spec.dtype.bytes


def make_weight(spec: BufferSpec, source: Array, out: Bytes | None = None) -> Array:
    """Pack a constant into a weight buffer, and return the buffer.

    The constant is divided into blocks (`spec.parts`), transformed in float64 (`spec.einsum`), and
    stored in the buffer's layout. Unsigned integers that are transformed are interpreted as raw
    bits of bfloat16.

    Args:
        spec: the buffer's description.
        source: the constant: the workload input with the index `spec.source`.
        out: memory for the buffer, filled with zeros; None allocates it.

    Raises:
        ValueError: if the transformed constant and the buffer differ in their number of elements,
            or a dimension is not divisible by its number in `spec.parts`.
    """
    sums = _sums_of_parts(spec, source, out)
    if sums is not None:
        return sums
    value = cut(source, spec.parts) if spec.parts else source
    if spec.einsum:
        matrices = [np.array(matrix, np.float64) for matrix in spec.matrices]
        value = from_bfloat16(value) if value.dtype.kind == "u" else value
        operands = [*matrices[:1], value.astype(np.float64), *matrices[1:]]
        # Several matrices are multiplied first, which leaves one matrix product over the whole
        # weight. A single matrix has few columns, so that plain sums are faster than a product.
        joined = ["einsum_path", (0, 2), (0, 1)] if len(operands) == 3 else False
        value = np.einsum(spec.einsum, *operands, optimize=joined)
    if spec.dtype is DType.BFLOAT16 and value.dtype.kind == "f":
        value = to_bfloat16(value)
    if value.shape != spec.shape and value.size == math.prod(spec.shape):
        value = value.reshape(spec.shape)
    return pack(value, spec.shape, spec.parsed_layout(), spec.halo, spec.dtype, out)


def _sums_of_parts(spec: BufferSpec, source: Array, out: Bytes | None) -> Array | None:
    """Pack weights of Strassen's algorithm faster than `make_weight`; return None for others.

    Along the first axis of these weights, each element is one block of the source, or the sum or
    difference of two blocks. Sums are written directly to the output, without a temporary array of
    the full size.

    The float32 sums equal float64 sums rounded to float32: rounding twice equals rounding once if
    the wider type has at least twice the digits plus two (Figueroa, "When is double rounding
    innocuous?", 1995). An element -0.0 of a copied block stays -0.0.
    """
    if not spec.parts or len(spec.matrices) != 1 or spec.halo:
        return None
    (matrix,) = spec.matrices
    terms = [[(c > 0, n) for n, c in enumerate(row) if c] for row in matrix]
    simple = all(c in (-1.0, 0.0, 1.0) for row in matrix for c in row)
    simple &= all(1 <= len(row) <= 2 and any(plus for plus, _ in row) for row in terms)
    floats = source.dtype == np.float32 and spec.dtype is DType.FLOAT32
    summed, _, rest = spec.einsum.partition(",")
    whole, _, result = rest.partition("->")
    if not (simple and floats and (summed[1:], summed[:1]) == (whole[:1], result[:1])):
        return None
    split = _in_parts(source, spec.parts)
    parts = [split[position] for position in np.ndindex(*spec.parts)]
    if whole[1:] != result[1:] or spec.shape != (len(terms), *parts[0].shape):
        return None
    even = _even_split(spec.shape, spec.parsed_layout(), ())
    if even is None or even[0] != spec.shape or even[1][0] != len(terms):
        made = np.empty(spec.shape, np.float32)
        _add_up(terms, parts, made)
        return pack(made, spec.shape, spec.parsed_layout(), (), spec.dtype, out)
    flat: Array = (aligned_zeros(packed_bytes(spec)) if out is None else out).view(np.float32)
    _add_up(terms, parts, _in_logical_order(flat, even))
    return flat


def _add_up(terms: list[list[tuple[bool, int]]], parts: list[Array], out: Array) -> None:
    """Write the sum of one or two signed blocks into each `out[i]`.

    `terms[i]` has a pair (is positive, index in `parts`) for each of these blocks. At least one
    block is positive.
    """
    for row, slot in zip(terms, out, strict=True):
        (_, first), *others = sorted(row, reverse=True)  # a positive part first
        left = parts[first].reshape(slot.shape)
        if not others:
            slot[...] = left
            continue
        ((plus, second),) = others
        add = np.add if plus else np.subtract
        add(left, parts[second].reshape(slot.shape), out=slot)


def cut(array: Array, parts: tuple[int, ...]) -> Array:
    """Divide an array into equal blocks, and return them along a new first axis.

    `parts` has the number of blocks along each dimension. For example, an array of shape (4, 6)
    with parts (2, 2) becomes an array of shape (4, 2, 3).

    Raises:
        ValueError: if a dimension is not divisible by its number of blocks.
    """
    split = _in_parts(array, parts)
    return split.reshape(-1, *split.shape[array.ndim :])


def _in_parts(array: Array, parts: tuple[int, ...]) -> Array:
    """Return a view indexed by block and by position in the block.

    For example, an array of shape (4, 6) with parts (2, 2) becomes a view of shape (2, 2, 2, 3).
    """
    if len(parts) != array.ndim or any(
        part < 1 or size % part for size, part in zip(array.shape, parts, strict=True)
    ):
        raise ValueError(f"an array of shape {array.shape} does not divide into parts {parts}")
    sizes = [size // part for size, part in zip(array.shape, parts, strict=True)]
    split = array.reshape([n for pair in zip(parts, sizes, strict=True) for n in pair])
    return split.transpose((*range(0, 2 * array.ndim, 2), *range(1, 2 * array.ndim, 2)))


def to_bfloat16(array: Array) -> NDArray[np.uint16]:
    """Round floats to the nearest bfloat16, ties to even, and return their raw bits.

    NaNs stay NaNs.
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = bits + (0x7FFF + ((bits >> 16) & 1))
    rounded = np.where(np.isnan(array), bits | 0x0040_0000, rounded)
    return (rounded >> 16).astype(np.uint16).reshape(array.shape)


def from_bfloat16(bits: Array) -> NDArray[np.float32]:
    """Convert raw bits of bfloat16 to float32, by appending 16 zero bits to each number."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@cache
def bfloat16_type() -> np.dtype | None:
    """Return NumPy's bfloat16 type from ml_dtypes; None if ml_dtypes is not installed."""
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return None
    found: np.dtype = np.dtype(bfloat16)
    return found


def _in_logical_order(
    flat: Array, even: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
) -> Array:
    """Return a view of a physical buffer, with its elements in logical order.

    The view has one axis for each part into which the layout splits a logical axis. `even`
    describes the layout: the padded logical shape, the shape of the result, and the order of the
    result's axes in memory.
    """
    _, split_shape, order = even
    physical = flat.reshape([split_shape[axis] for axis in order])
    return physical.transpose(np.argsort(order))


def _interior(shape: tuple[int, ...], halo: Halo) -> tuple[slice, ...]:
    lows = [low for low, _ in halo] or [0] * len(shape)
    return tuple(slice(low, low + size) for low, size in zip(lows, shape, strict=True))


@lru_cache(maxsize=512)
def _even_split(
    shape: tuple[int, ...], layout: Layout, halo: Halo
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Describe a layout as padding, reshape and transpose, if it splits each axis evenly.

    Returns:
        The padded logical shape; the split shape, in which each logical axis is replaced by its
        parts; and the order of the parts in memory. None if the parts of an axis do not enumerate
        its indices exactly once, as in ring buffers and layouts with unused elements.
    """
    factors = layout.resolved(len(shape))
    if any(factor.pad for factor in factors):
        return None
    extents = physical_extents(shape, layout, halo)
    by_dim: list[list[int]] = [[] for _ in shape]
    for position in sorted(range(len(factors)), key=lambda p: -factors[p].div):
        by_dim[factors[position].dim].append(position)
    padded: list[int] = []
    split: list[int] = []
    order_of: dict[int, int] = {}
    for positions in by_dim:
        if not positions or not _tiles_axis([factors[p] for p in positions]):
            return None
        padded.append(math.prod(extents[p] for p in positions))
        for position in positions:
            order_of[position] = len(split)
            split.append(extents[position])
    return tuple(padded), tuple(split), tuple(order_of[p] for p in range(len(factors)))


def _tiles_axis(factors: list[Factor]) -> bool:
    """Whether the parts into which a layout splits an axis enumerate its indices exactly once.

    This is the case if the parts are mixed-radix digits of the index. `factors` are the parts, from
    the most to the least significant digit.
    """
    if factors[0].mod is not None or factors[-1].div != 1:
        return False
    return all(fine.mod and fine.div * fine.mod == coarse.div for coarse, fine in pairwise(factors))


@lru_cache(maxsize=64)
def _positions(shape: tuple[int, ...], layout: Layout, halo: Halo) -> NDArray[np.int64]:
    """Return the position in the buffer of every element of a logical array.

    Positions are counted in elements. The result has shape `shape`.
    """
    steps, _ = strides(shape, layout, halo)
    total = np.zeros((1,) * len(shape), np.int64)
    factors = layout.resolved(len(shape))
    for dim, size in enumerate(shape):
        index = np.arange(size, dtype=np.int64) + (halo[dim][0] if halo else 0)
        table = np.zeros(size, np.int64)
        for factor, step in zip(factors, steps, strict=True):
            if factor.dim == dim:
                digit = index // factor.div
                table += step * (digit % factor.mod if factor.mod is not None else digit)
        total = total + table.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return total
