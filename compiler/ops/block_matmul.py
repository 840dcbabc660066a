"""Matrix products with weights of 2, 4 or 8 bits that are quantised in blocks along K.

    y[m, n] = sum over b of scale[n, b] * sum over k in b of x[m, k] * (w[n, k] - zero[n, b])

Weights stay packed: one uint32 word holds `32 // bits` consecutive elements along k. The low bits
of its four bytes hold the first four elements, the next higher bits hold the next four, and so on.
A shift and a mask therefore extract four elements, one per byte. K is a multiple of the block size.

`x` is float32, or quantised to int8. Quantised, it is an int32 tensor with four consecutive int8
elements per int32, and a node has two more operands: for each chunk of `Packing.chunk` elements, a
scale and the sum of the dequantised elements. Products within a chunk are then computed exactly in
integers, and their sum is scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Generic, TypeVar

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Cast, Combiner, Const, Expr, Operation, Reduce, op
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.ops.attributes import integer
from tilewright.compiler.ops.registry import Fresh, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import operand_count, show
from tilewright.compiler.sizes import typical

BITS = (2, 4, 8)
LEAST_BLOCK = 16
_CHUNK = 32
_FEW_ROWS = 3
"""Maximum number of rows for which the zero point is applied after the multiplication. With more
rows, it is subtracted from each weight before, and the rows share the result."""

_EACH_BYTE = 0x01010101


@dataclass(frozen=True, slots=True)
class Packing:
    """The storage format of packed weights: `bits` per element, and `block` elements per scale."""

    bits: int
    block: int

    @classmethod
    def of(cls, attrs: Attrs) -> Packing:
        """Read the packing from the attributes `bits` and `block` of a node.

        Raises:
            InvalidModelError: if an attribute is missing, or the kernels do not support its value.
        """
        try:
            return cls.checked(integer(attrs, "bits"), integer(attrs, "block"))
        except ValueError as error:
            raise InvalidModelError(str(error)) from error

    @classmethod
    def checked(cls, bits: int, block: int) -> Packing:
        """Build a packing; raises ValueError if the kernels do not support `bits` or `block`."""
        if bits not in BITS:
            raise ValueError(f"weights of {bits} bits, not 2, 4 or 8")
        if block < LEAST_BLOCK or block & (block - 1):
            raise ValueError(f"blocks of {block}, not a power of two of 16 or more")
        return cls(bits, block)

    @property
    def word(self) -> int:
        """Number of elements in one uint32 word."""
        return 32 // self.bits

    @property
    def chunk(self) -> int:
        """Number of consecutive elements of `x` that share a scale if `x` is quantised."""
        return min(self.block, _CHUNK)

    @property
    def middle(self) -> int:
        """The zero point of weights without a zero-point operand, `2**(bits - 1)`."""
        return 1 << (self.bits - 1)

    @property
    def fields(self) -> range:
        """The bit offsets of a byte's elements, such as 0 and 4 for elements of 4 bits."""
        return range(0, 8, self.bits)

    def elements(self, rows: np.ndarray) -> np.ndarray:
        """Unpack a uint8 array: each byte becomes `8 // bits` elements along the last dimension.

        The first of these elements is in the byte's low bits.
        """
        split = [rows >> low & ((1 << self.bits) - 1) for low in self.fields]
        return np.stack(split, axis=-1).reshape(*rows.shape[:-1], -1)

    def packed(self, elements: np.ndarray) -> np.ndarray:
        """Pack uint8 elements (N, K) into uint32 words (N, K // `Packing.word`)."""
        split = elements.reshape(len(elements), -1, len(self.fields), 4)
        words = np.zeros((len(elements), split.shape[1], 4), np.uint8)
        for number, low in enumerate(self.fields):
            words |= split[:, :, number] << low
        return words.reshape(len(elements), -1).view("<u4").astype(np.uint32)

    def unpacked(self, words: np.ndarray) -> np.ndarray:
        """Unpack uint32 words (N, K // `Packing.word`) into uint8 elements (N, K)."""
        split = np.ascontiguousarray(words).astype("<u4").view(np.uint8)
        split = split.reshape(len(words), -1, 1, 4)
        low = np.array(self.fields, np.uint8).reshape(-1, 1)
        return (split >> low & ((1 << self.bits) - 1)).reshape(len(words), -1)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operands(Generic[T]):
    """The operands of a `block_matmul` node by name.

    `zero`, `x_scale` and `x_sum` are None if the node has no such operand.
    """

    x: T
    weight: T
    scale: T
    zero: T | None
    x_scale: T | None
    x_sum: T | None

    @classmethod
    def of(cls, items: Sequence[T], types: Sequence[TensorType]) -> Operands[T]:
        """Assign a node's operands to names.

        Args:
            items: one object per operand, in the node's order.
            types: the operands' types, which determine whether `x` is quantised.

        Raises:
            InvalidModelError: if the number of operands is wrong.
        """
        extra = 2 if types and types[0].dtype is DType.INT32 else 0
        operand_count(types, 3 + extra, 4 + extra)
        x_scale, x_sum = items[1:3] if extra else (None, None)
        weight, scale, *zero = items[1 + extra :]
        return cls(items[0], weight, scale, zero[0] if zero else None, x_scale, x_sum)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    packing, given = Packing.of(attrs), Operands.of(types, types)
    x, weight = given.x.shape, given.weight.shape
    if len(x) != 2 or len(weight) != 2:
        raise InvalidModelError(f"operands {show(x)} and {show(weight)} are not matrices")
    depth = weight[1] * packing.word
    if depth % packing.block:
        raise InvalidModelError(f"K is {depth}, not a multiple of the block {packing.block}")
    blocks, chunks = (weight[0], depth // packing.block), (x[0], depth // packing.chunk)
    small, wide, words = (DType.UINT8,), (DType.FLOAT32,), (DType.INT32,)
    wanted = [
        ("weight", given.weight, weight, (DType.UINT32,)),
        ("scale", given.scale, blocks, wide),
        ("zero", given.zero, blocks, small + wide),
    ]
    if given.x_scale is None:
        wanted.append(("x", given.x, (x[0], depth), wide))
    else:
        wanted.append(("x", given.x, (x[0], depth // 4), words))
        wanted.append(("x_scale", given.x_scale, chunks, wide))
        wanted.append(("x_sum", given.x_sum, chunks, wide))
    for name, kind, shape, dtypes in wanted:
        if kind is not None and (kind.shape != shape or kind.dtype not in dtypes):
            names = " or ".join(dtypes)
            raise InvalidModelError(f"{name} is {kind}, not {names} of {show(shape)}")
    return TensorType(DType.FLOAT32, (x[0], weight[0]))


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    packing = Packing.of(attrs)
    quantised = arrays[0].dtype.kind == "i"
    kinds = [TensorType(DType.INT32 if quantised else DType.FLOAT32, (1,))] * len(arrays)
    given = Operands.of(arrays, kinds)
    weight = packing.unpacked(given.weight)
    each = packing.chunk if quantised else packing.block
    x = np.ascontiguousarray(given.x).view(np.int8) if quantised else given.x
    total = np.zeros((len(x), len(weight)), given.scale.dtype)
    for start in range(0, weight.shape[1], each):
        part = slice(start, start + each)
        at, block = start // each, start // packing.block
        zero = packing.middle if given.zero is None else given.zero[:, block].astype(total.dtype)
        exact = weight[:, part].T.astype(total.dtype)
        if given.x_scale is None or given.x_sum is None:
            sums = x[:, part] @ (exact - zero)
        else:
            sums = (x[:, part].astype(total.dtype) @ exact) * given.x_scale[:, at, None]
            sums = sums - given.x_sum[:, at, None] * zero
        total += sums * given.scale[:, block]
    return total


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the expression of one result element: a sum over the blocks along K.

    Within a block, an inner sum covers the elements. With a float32 `x`, each of its steps covers
    one packed word. With a quantised `x`, each step covers a chunk (elements of `x` that share a
    scale): the products are summed in int32, and the sum is scaled.
    """
    packing, given = Packing.of(attrs), Operands.of(operands, types)
    row, column = index
    size = packing.word if given.x_scale is None else packing.chunk
    blocks = Operands.of(types, types).scale.shape[1]
    block, part = fresh("b", blocks), fresh("j", packing.block // size)
    at = affine(block) * (packing.block // size) + affine(part)
    zero: Expr = Const(float(-packing.middle), DType.FLOAT32)
    if given.zero is not None:
        stored = given.zero((column, affine(block)))
        zero = -(stored if stored.dtype is DType.FLOAT32 else Cast(stored, DType.FLOAT32))
    if given.x_scale is None or given.x_sum is None:
        word = given.weight((column, at))
        elements = [_element(packing, word, place) for place in range(packing.word)]
        factors = [given.x((row, at * packing.word + p)) for p in range(packing.word)]
        inner = _products(elements, factors, zero, many=typical(types[0].shape[0]) > _FEW_ROWS)
    else:
        words = packing.chunk // packing.word
        total: Expr = Const(0, DType.INT32)
        for number in range(words):
            word = given.weight((column, at * words + number))
            for part_of, four in enumerate(_bytes_of(packing, word)):
                place = (at * words + number) * (packing.word // 4) + part_of
                total = op(Operation.DOT, four, given.x((row, place)), total)
        product = op(Operation.MUL, zero, given.x_sum((row, at)))
        inner = op(Operation.FMA, Cast(total, DType.FLOAT32), given.x_scale((row, at)), product)
    body = op(Operation.MUL, given.scale((column, affine(block))), inner)
    return Reduce(Combiner.SUM, (block, part), body)


def _bytes_of(packing: Packing, word: Expr) -> list[Expr]:
    """Unpack a word into int32 values, each of which holds four elements as bytes.

    The number of values is `8 // packing.bits`.
    """
    if packing.bits == 8:
        return [Cast(word, DType.INT32)]
    mask = Const(_EACH_BYTE * ((1 << packing.bits) - 1), DType.UINT32)
    moved = [
        op(Operation.DIV, word, Const(1 << low, DType.UINT32)) if low else word
        for low in packing.fields
    ]
    return [Cast(op(Operation.AND, part, mask), DType.INT32) for part in moved]


def _products(elements: list[Expr], factors: list[Expr], zero: Expr, *, many: bool) -> Expr:
    """Return the sum of (element + zero) * factor over the elements of one word.

    `elements` are unpacked weights, and `factors` the elements of `x` by which they are multiplied.
    `zero` is the negated zero point of the weights. If `many` rows of `x` use the same weights,
    `zero` is added to each weight once. Otherwise, `zero` is multiplied by the sum of the factors,
    which is the same for all columns of the result.
    """
    if many:
        elements = [element + zero for element in elements]
        total: Expr = op(Operation.MUL, elements[0], factors[0])
        elements, factors = elements[1:], factors[1:]
    else:
        total = op(Operation.MUL, zero, reduce(add, factors))
    for element, factor in zip(elements, factors, strict=True):
        total = op(Operation.FMA, element, factor, total)
    return total


def _element(packing: Packing, word: Expr, place: int) -> Expr:
    """Return element number `place` of a packed word, converted to float32."""
    distance = 8 * (place % 4) + packing.bits * (place // 4)
    moved = op(Operation.DIV, word, Const(1 << distance, DType.UINT32)) if distance else word
    if distance + packing.bits < 32:
        moved = op(Operation.AND, moved, Const((1 << packing.bits) - 1, DType.UINT32))
    return Cast(Cast(moved, DType.INT32), DType.FLOAT32)


OPERATORS = (
    Operator(
        "block_matmul",
        OpKind.CONTRACTION,
        _infer,
        _reference,
        _expression,
        terms=lambda types, attrs: types[-1].shape[-1] * integer(attrs, "block"),
    ),
)
