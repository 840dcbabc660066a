"""Rotary position embedding of com.microsoft.

Pairs of elements are rotated by an angle proportional to the position (Su et al., "RoFormer",
2021). Tables hold the cosines and sines of the angles.
"""

from __future__ import annotations

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.computed import counting, table
from tilewright.compiler.ops.contrib.microsoft.heads import merge_heads, split_heads
from tilewright.compiler.ops.contrib.microsoft.quantised import DOMAIN
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import same_extents


def positions(node: OnnxNode, first: str | None, batch: int, rows: int) -> str:
    """Emit the positions of consecutive rows, as int64 (batch, rows) or (1, rows).

    `first` names the position of the first row, (1,) or (batch,). If it is None, rows start at 0.
    """
    count = table(node, counting(node, rows).reshape((1, rows)), DType.INT64)
    if first is None:
        return count
    extent = node.type(first).elements
    if extent not in (1, batch):
        raise node.invalid(
            f"there are {extent} first positions, expected 1 or the batch size {batch}"
        )
    return node.call("Add", node.reshape(first, (extent, 1)), count)


def rotated(
    node: OnnxNode, value: str, where: str, tables: tuple[str, str], *, interleaved: bool
) -> str:
    """Emit the rotary embedding of `value` (batch, heads, rows, size).

    Args:
        node: the ONNX node that is imported.
        value: queries or keys.
        where: the positions of the rows, (batch or 1, rows).
        tables: cosines and sines, each (positions, half). They rotate the first `2 * half` elements
            of a head; the other elements are unchanged.
        interleaved: whether adjacent elements form a pair; otherwise, elements i and `half + i` do.
    """
    batch, heads, rows, size = node.shape(value)
    shape = node.shape(tables[0])
    fits = len(shape) == 2 and same_extents(node.shape(tables[1]), shape)
    if not fits or not 0 < 2 * shape[1] <= size:
        raise node.invalid(
            f"the cosines are {show(shape)} and the sines {show(node.shape(tables[1]))}, expected "
            f"(positions, at most {size // 2}) for heads of {size} elements"
        )
    half = shape[1]
    angles = (node.shape(where)[0], 1, rows, half)
    cosine, sine = (
        node.reshape(node.emit("gather", [table, where], axis=0), angles) for table in tables
    )
    turned = part(node, value, 3, 0, 2 * half)
    axis, step = (4, 1) if interleaved else (3, half)
    if interleaved:
        turned = node.reshape(turned, (batch, heads, rows, half, 2))
    first, second = (
        node.reshape(part(node, turned, axis, at, step), (batch, heads, rows, half))
        for at in (0, step)
    )
    ends: tuple[str, ...] = (
        node.call("Sub", node.call("Mul", first, cosine), node.call("Mul", second, sine)),
        node.call("Add", node.call("Mul", second, cosine), node.call("Mul", first, sine)),
    )
    if interleaved:
        pairs = [node.reshape(end, (batch, heads, rows, half, 1)) for end in ends]
        joined = node.emit("concat", pairs, axis=4)
        ends = (node.reshape(joined, (batch, heads, rows, 2 * half)),)
    rest = [part(node, value, 3, 2 * half, size - 2 * half)] if 2 * half < size else []
    parts = [*ends, *rest]
    return node.emit("concat", parts, axis=3) if len(parts) > 1 else parts[0]


def _rotary_embedding(node: OnnxNode) -> str:
    """Import RotaryEmbedding of com.microsoft.

    Inputs:
        x: (batch, rows, heads * size) or (batch, heads, rows, size)
        positions: the position of the first row, (1,), or of every row, (batch, rows)
        cosines and sines: (positions, half)
    """
    x, where = node.input(0), node.input(1)
    if node.integer("is_packed_batching", 0):
        raise node.unsupported("attribute 'is_packed_batching' is not 0")
    if node.number("scale", 1.0) != 1.0:
        raise node.unsupported(f"attribute 'scale' is {node.number('scale')}, not 1")
    tables = node.input(2), node.input(3)
    flat = len(node.shape(x)) == 3
    heads = x
    if flat:
        count, cosines = node.integer("num_heads", 0), node.shape(tables[0])
        if count == 0:  # then the tables determine the width of heads
            count = node.shape(x)[2] // max(2 * cosines[-1], 1) if cosines else 0
        heads = split_heads(node, x, count, "the input")
    elif len(node.shape(x)) != 4:
        raise node.invalid(f"the input is {show(node.shape(x))}, expected three or four dimensions")
    batch, _, rows, _ = node.shape(heads)
    if len(node.shape(where)) == 1:
        where = positions(node, where, batch, rows)
    given = node.shape(where)
    wanted = (1 if given[:1] == (1,) else batch, rows)
    if not same_extents(given, wanted) or len(node.shape(node.input(1))) > 2:
        raise node.invalid(
            f"position_ids (input 1) is {show(node.shape(node.input(1)))}, expected (1) or "
            f"{show((batch, rows))}"
        )
    interleaved = node.integer("interleaved", 0) != 0
    turned = rotated(node, heads, where, tables, interleaved=interleaved)
    return merge_heads(node, turned) if flat else turned


RULES = (
    OnnxRule(
        "RotaryEmbedding",
        _rotary_embedding,
        DOMAIN,
        "no packed batches; a scale of 1",
        (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16),
    ),
)
