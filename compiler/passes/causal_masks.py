"""Recognise attention masks that a model computes by comparing the positions of keys and queries.

    %1 = reshape(iota() {start=0}) {shape=(1, <keys>)}
    %2 = reshape(iota() {start=<past>}) {shape=(<queries>, 1)}
    %3 = greater(%1, %2)
    %4 = where(%3, -3.4e38, 0)

A model with dynamic sizes computes its causal mask in this way. The pass `attention` replaces such
a mask by the attribute `causal`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Node
from tilewright.compiler.ops.attributes import axis_of, integer, ints
from tilewright.compiler.passes.rewrite import Rewriter


@dataclass(frozen=True, slots=True)
class Count:
    """Positions counted along dimension `dim`: the element at index i is `start + i`.

    `dim` is negative: -1 is the last dimension. `start` may be a dynamic size.
    """

    dim: int
    start: int


def is_causal_mask(rewriter: Rewriter, mask: str, past: int, hidden: float) -> bool:
    """Whether a mask hides exactly the keys after each query.

    Such a mask has the value 0 if j <= i + past, for key j and query i, and one value of at most
    `hidden` for all other keys. Its shape is (queries, keys), optionally with leading dimensions of
    extent 1.
    """
    node, shape = rewriter.producer(_unexpanded(rewriter, mask), "where"), rewriter.shape(mask)
    if node is None or len(shape) < 2 or any(extent != 1 for extent in shape[:-2]):
        return False
    condition, chosen, other = node.inputs
    first, second = _number(rewriter, chosen), _number(rewriter, other)
    if first is None or second is None:
        return False
    hides = _is_ahead(rewriter, condition, past, single=shape[-2] == 1)
    if hides is None:
        return False
    low, seen = (first, second) if hides else (second, first)
    return low <= hidden and seen == 0.0


def _is_ahead(rewriter: Rewriter, condition: str, past: int, *, single: bool) -> bool | None:
    """Whether a condition on query positions i and key positions j is equivalent to j > i + past.

    The result is False if the condition is equivalent to j <= i + past, and None for any other
    condition. `single` states that there is only one query. The condition may then compare with a
    single number, the position of this query.
    """
    node = rewriter.producer(_unexpanded(rewriter, condition))
    if node is None:
        return None
    if node.op == "logical_not":
        inner = _is_ahead(rewriter, node.inputs[0], past, single=single)
        return None if inner is None else not inner
    if node.op not in _COMPARED:
        return None
    swapped, strict = _COMPARED[node.op]
    small, large = reversed(node.inputs) if swapped else node.inputs
    # small < large, or <= without `strict`
    first, second = (_placed(rewriter, value, single=single) for value in (small, large))
    if first is None or second is None or {first.dim, second.dim} != {-1, -2}:
        return None
    if first.dim == -2:  # i + s < j + t: j > i + (s - t), or j > i + (s - t) - 1
        return True if first.start - second.start - (not strict) == past else None
    # j + s < i + t: j <= i + (t - s) - 1, or j <= i + (t - s)
    return False if second.start - first.start - strict == past else None


_COMPARED: Mapping[str, tuple[bool, bool]] = {
    "less": (False, True),
    "less_or_equal": (False, False),
    "greater": (True, True),
    "greater_or_equal": (True, False),
}
"""Comparison operators -> how they are written as `small < large` or `small <= large`: whether the
operands are swapped, and whether the comparison is strict."""


def _placed(rewriter: Rewriter, value: str, *, single: bool) -> Count | None:
    number = _whole(rewriter, value) if single else None
    return counted(rewriter, value) if number is None else Count(-2, number)


def counted(rewriter: Rewriter, value: str) -> Count | None:
    """Recognise a value whose elements are consecutive positions along one dimension.

    This is an iota or a slice of a constant range; casts, reshapes, and sums with a number or size
    may follow. Returns None for any other value.
    """
    node = rewriter.producer(value)
    # smaller integers wrap around, and floats round
    if node is None or rewriter.type(value).dtype not in (DType.INT32, DType.INT64):
        return None
    match node.op:
        case "iota":
            rank = len(ints(node.attrs, "shape"))
            if rank == 0 or integer(node.attrs, "step") != 1:
                return None
            return Count(axis_of(node.attrs, rank, -1) - rank, integer(node.attrs, "start"))
        case "slice":
            return _part(rewriter, node)
        case "cast":
            return counted(rewriter, node.inputs[0])
        case "expand":
            return counted(rewriter, node.inputs[0])
        case "reshape":
            return _reshaped(rewriter, node)
        case "add" | "sub":
            return _moved(rewriter, node)
    return None


def _part(rewriter: Rewriter, node: Node) -> Count | None:
    """Recognise token positions that are a slice of a constant table of consecutive integers.

    Returns the first position, and the dimension along which the positions increase (`Count`).
    Returns None if the table has other integers, or the step of the slice is not 1.
    """
    table = rewriter.array(node.inputs[0])
    if table is None or table.ndim != 1 or table.dtype.kind not in "iu" or table.size == 0:
        return None
    if ints(node.attrs, "steps") != (1,) or (np.diff(table.astype(np.int64)) != 1).any():
        return None
    return Count(-1, ints(node.attrs, "starts")[0] + int(table[0]))


def _reshaped(rewriter: Rewriter, node: Node) -> Count | None:
    """Recognise a reshape of consecutive token positions, such as (n,) to (1, n).

    The reshape may only add or remove dimensions of extent 1. Returns the first position, and the
    dimension along which the positions increase (`Count`). Returns None for other values.
    """
    inner = counted(rewriter, node.inputs[0])
    shapes = rewriter.shape(node.inputs[0]), rewriter.shape(node.outputs[0])
    if inner is None or any(sum(extent != 1 for extent in shape) != 1 for shape in shapes):
        return None
    (dim,) = (d for d, extent in enumerate(shapes[1]) if extent != 1)
    return Count(dim - len(shapes[1]), inner.start)


def _moved(rewriter: Rewriter, node: Node) -> Count | None:
    """Recognise consecutive token positions to which a constant or a dynamic size is added.

    The node may also subtract the number. Returns the first position after the addition, and the
    dimension along which the positions increase (`Count`). Returns None for other nodes.
    """
    left, right = node.inputs
    pairs = ((left, right), (right, left)) if node.op == "add" else ((left, right),)
    for value, other in pairs:
        count, amount = counted(rewriter, value), _whole(rewriter, other)
        if count is not None and amount is not None:
            sign = 1 if node.op == "add" else -1
            return Count(count.dim, count.start + sign * amount)
    return None


def _whole(rewriter: Rewriter, value: str) -> int | None:
    """The only element of an int32 or int64 value, if it is a constant or a dynamic size.

    Returns None for any other value.
    """
    if any(extent != 1 for extent in rewriter.shape(value)):
        return None
    array = rewriter.array(value)
    if array is not None:
        return int(array.reshape(-1)[0]) if array.dtype.kind in "iu" else None
    node = rewriter.producer(value)
    if node is not None and node.op == "reshape":
        return _whole(rewriter, node.inputs[0])
    return integer(node.attrs, "start") if node is not None and node.op == "iota" else None


def _number(rewriter: Rewriter, value: str) -> float | None:
    return rewriter.scalar(_unexpanded(rewriter, value))


def _unexpanded(rewriter: Rewriter, value: str) -> str:
    """The value before operators that only add leading dimensions of extent 1 or repeat elements.

    If no such operator computes the value, it is returned unchanged.
    """
    while (node := rewriter.producer(value)) is not None:
        inner, shape = rewriter.shape(node.inputs[0]) if node.inputs else (), rewriter.shape(value)
        leads = node.op == "reshape" and (1,) * (len(shape) - len(inner)) + inner == shape
        if not leads and node.op != "expand":
            break
        value = node.inputs[0]
    return value
