"""Products with block-scaled weights, which stay in their stored 4-bit or 8-bit type.

Before:                                             After:
    %w = reshape((w - z) * s) {shape=(K, N)}            %1 = block_matmul(%0, packed, s, z) {bits=4}
    %1 = matmul(%0, %w)

`w` is an 8-bit constant of shape (K / block, block, N), or (N, K / block, block) transposed, from
DequantizeLinear with a block size. Values that all fit in four bits are packed in pairs. As floats,
weights would take four or eight times the memory, and reading them limits a product with few rows.
Also called weight-only quantisation (Frantar et al., "GPTQ", 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import integer, ints, number
from tilewright.compiler.ops.block_matmul import Packing
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.passes.quantisation import scaled, shifted
from tilewright.compiler.passes.rewrite import Rewriter, rewrite


def block_quantised_products(graph: Graph) -> Graph:
    """Replace matrix products with dequantised block-scaled weights by `block_matmul`."""
    return rewrite(graph, _product)


@dataclass(frozen=True, slots=True)
class _Weight:
    """A block-scaled weight of K rows and N columns: the transpose of `(values - zero) * scale`.

    Attributes:
        values: unsigned integers of shape (N, K).
        scale, zero: the scale and zero point of each block, of shape (N, K / block).
        packing: the number of bits and the block size.
    """

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    packing: Packing


def _product(rewriter: Rewriter, node: Node) -> str | None:
    if node.op not in ("matmul", "gemm") or node.attr("accumulator") is not None:
        return None
    turned = node.op == "gemm" and integer(node.attrs, "trans_b", 0) != 0
    plain = node.op == "matmul" or (
        not integer(node.attrs, "trans_a", 0)
        and number(node.attrs, "alpha", 1.0) == number(node.attrs, "beta", 1.0) == 1.0
    )
    x, shape = node.inputs[0], rewriter.shape(node.inputs[0])
    if not plain or len(shape) < 2 or rewriter.type(x).dtype is not DType.FLOAT32:
        return None
    weight = _weight(rewriter, node.inputs[1], along_rows=turned)
    if weight is None or rewriter.array(x) is not None:
        return None
    name, packing = node.inputs[1], weight.packing
    operands = [
        rewriter.emit("reshape", [x], {"shape": (int(np.prod(shape[:-1])), shape[-1])}),
        rewriter.constant(packing.packed(weight.values), f"{name}.words"),
        rewriter.constant(weight.scale, f"{name}.scale"),
    ]
    if (weight.zero != packing.middle).any():
        operands.append(rewriter.constant(weight.zero, f"{name}.zero"))
    attrs = {"bits": packing.bits, "block": packing.block}
    total = rewriter.emit("block_matmul", operands, attrs)
    result = rewriter.emit("reshape", [total], {"shape": (*shape[:-1], len(weight.values))})
    return rewriter.emit("add", [result, node.inputs[2]]) if len(node.inputs) > 2 else result


def _weight(rewriter: Rewriter, value: str, *, along_rows: bool) -> _Weight | None:
    """Recognise a matrix that is dequantised from a block-scaled constant; None for others.

    If `along_rows`, consecutive elements of a row share a scale; otherwise, consecutive elements of
    a column.
    """
    node = rewriter.producer(value)
    if node is not None and node.op == "transpose" and ints(node.attrs, "perm") == (1, 0):
        return _weight(rewriter, node.inputs[0], along_rows=not along_rows)
    if node is None or node.op != "reshape" or len(rewriter.shape(value)) != 2:
        return None
    factors = scaled(rewriter, node.inputs[0])
    found = None if factors is None else _integers(rewriter, factors[0])
    if factors is None or found is None:
        return None
    (stored, zero), scale = found, factors[1]
    if stored.ndim != 3 or scale.ndim != 3:
        return None
    blocked = 2 if along_rows else 1
    wanted = tuple(1 if dim == blocked else extent for dim, extent in enumerate(stored.shape))
    matrix = (stored.shape[0] * stored.shape[1], stored.shape[2])
    if along_rows:
        matrix = (stored.shape[0], stored.shape[1] * stored.shape[2])
    if scale.shape != wanted or rewriter.shape(value) != matrix:
        return None
    return _unsigned(stored, scale, np.broadcast_to(zero, wanted), along_rows=along_rows)


def _integers(rewriter: Rewriter, value: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Split `int32(stored) - zero` into constant 8-bit integers and their zero point.

    Returns None for any other value.
    """
    found = shifted(rewriter, value)
    if found is None or rewriter.type(found[0]).dtype not in INT8_TYPES:
        return None
    stored = rewriter.array(found[0])
    zero = np.zeros((1, 1, 1), np.int32) if found[1] is None else rewriter.array(found[1])
    return None if stored is None or zero is None else (stored, zero)


def _unsigned(
    stored: np.ndarray, scale: np.ndarray, zero: np.ndarray, *, along_rows: bool
) -> _Weight | None:
    """Convert a block-scaled constant to a `_Weight` of unsigned 4-bit integers.

    8-bit integers are used if a value does not fit in 4 bits. If `along_rows`, the blocks lie along
    the last dimension of `stored`; otherwise, along the one before it. Returns None if the block
    size is not supported.
    """
    signed = stored.dtype == np.int8
    low, high = (min(int(stored.min()), int(zero.min())), max(int(stored.max()), int(zero.max())))
    narrow = low >= -8 and high <= (7 if signed else 15)
    bits = 4 if narrow else 8
    block = stored.shape[2 if along_rows else 1]
    try:
        packing = Packing.checked(bits, block)
    except ValueError:
        return None
    step = packing.middle if signed else 0

    def rows(array: np.ndarray) -> np.ndarray:
        moved = (array.astype(np.int32) + step).astype(np.uint8)
        turned = moved if along_rows else moved.transpose(2, 0, 1)
        return np.ascontiguousarray(turned.reshape(turned.shape[0], -1))

    factors = scale if along_rows else scale.transpose(2, 0, 1)
    flat = np.ascontiguousarray(factors.reshape(factors.shape[0], -1))
    return _Weight(rows(stored), flat, rows(zero), packing)
