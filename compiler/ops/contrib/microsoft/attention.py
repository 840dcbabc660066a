"""Attention, QAttention and MultiHeadAttention of com.microsoft.

ONNX Runtime's optimiser and quantiser emit these operators. Each is imported as a node of the
operator `attention`, with separate nodes for the projection, the split into heads, the caches and
the masks. ONNX Runtime's docs/ContribOperators.md defines the operands; its CPU kernels define all
details missing there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import counting, table
from tilewright.compiler.ops.contrib.microsoft.heads import (
    MaskedAttention,
    both,
    hidden,
    joined,
    kept_outputs,
    refuse,
    split_heads,
)
from tilewright.compiler.ops.contrib.microsoft.products import column_scales, integer_product
from tilewright.compiler.ops.contrib.microsoft.quantised import (
    DOMAIN,
    one_number,
    require_int8,
    zero_point,
)
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import equal, same_extents

_FILTER = -10000.0
"""Default of `mask_filter_value`, which is added to the score of a hidden key."""


def _padding(node: OnnxNode, position: int, like: MaskedAttention) -> str | None:
    """Emit the additive mask for the padding operand at `position`; None if the operand is omitted.

    `like` is the attention whose batch, queries and keys the mask must fit. The shape of the int32
    operand determines its meaning:

        (batch,): the number of visible keys of each batch row
        (2 * batch,): first the ends (exclusive), then the starts of the rows' visible keys
        (batch, keys) or (batch, queries, keys): 1 for a visible key
        (batch, 1, most, most): 1 for a visible key; most is the longest possible sequence
    """
    given = node.optional(position)
    if given is None:
        return None
    batch, _, queries, _ = node.shape(like.query)
    keys, shape = like.keys, node.shape(given)
    count = table(node, counting(node, keys), DType.INT32)
    given = cast_to(node, given, DType.INT32)
    column = (batch, 1, 1, 1)
    if shape == (batch,):
        seen = node.call("Less", count, node.reshape(given, column))
    elif shape == (2 * batch,):
        end, start = (node.reshape(part(node, given, 0, at, batch), column) for at in (0, batch))
        early = node.call("Less", count, start)
        seen = node.call("And", node.call("Less", count, end), node.call("Not", early))
    else:
        if shape == (batch, keys):
            given = node.reshape(given, (batch, 1, 1, keys))
        elif shape == (batch, queries, keys):
            given = node.reshape(given, (batch, 1, queries, keys))
        elif len(shape) == 4 and shape[:2] == (batch, 1) and min(shape[2:]) >= keys:
            given = part(node, part(node, given, 2, keys - queries, queries), 3, 0, keys)
        else:
            raise node.invalid(
                f"the mask is {show(shape)}, which fits no form for a batch of {batch}, {queries} "
                f"queries and {keys} keys, such as {show((batch, queries, keys))}"
            )
        seen = node.call("Greater", given, node.scalar(0, DType.INT32))
    score = node.number("mask_filter_value", _FILTER)
    return hidden(node, seen, node.type(like.query).dtype, score)


# ---- Attention


def _attention(node: OnnxNode) -> list[str]:
    """Import Attention; returns the result and, if requested, the extended cache.

    Inputs: x (batch, rows, width), weights (width, q + k + v), bias, padding mask, cache, bias of
    scores.
    """
    refuse(node, {6: "a shared cache"}, ("do_rotary", "past_present_share_buffer"))
    x, weights = node.input(0), node.input(1)
    shape, width = node.shape(x), node.shape(weights)
    if len(shape) != 3 or len(width) != 2 or not equal(shape[2], width[0]):
        raise node.invalid(
            f"the weights (input 1) are {show(width)}, expected a matrix with a row for each "
            f"feature of the input {show(shape)}"
        )
    sizes = node.ints("qkv_hidden_sizes") or (width[1] // 3,) * 3
    if len(sizes) != 3 or not equal(sum(sizes), width[1]) or min(sizes) < 1:
        raise node.invalid(
            f"attribute 'qkv_hidden_sizes' is {list(sizes)}, expected three positive widths that "
            f"add up to the columns of the weights {show(width)}"
        )
    projected = node.call("MatMul", x, weights)
    if (bias := node.optional(2)) is not None:
        projected = node.call("Add", projected, bias)
    return _of_projected(node, projected, sizes, Places(mask=3, past=4, bias=5))


@dataclass(frozen=True, slots=True)
class Places:
    """The positions of padding mask, cache and bias of scores among an attention node's inputs."""

    mask: int
    past: int
    bias: int


def _of_projected(
    node: OnnxNode, projected: str, sizes: tuple[int, ...], places: Places
) -> list[str]:
    """Emit attention for `projected`, which concatenates queries, keys and values.

    `sizes` has the widths of queries, keys and values along the last dimension. `places` has the
    input positions of padding mask, cache and bias of scores. Returns the node's outputs: the
    result and, if requested, the cache extended by the new keys and values.
    """
    heads = node.integer("num_heads")
    query, key, value = (
        split_heads(node, part(node, projected, 2, sum(sizes[:at]), sizes[at]), heads, name)
        for at, name in enumerate(("the query", "the key", "the value"))
    )
    past, before = node.optional(places.past), 0
    if past is not None:
        if len(node.shape(past)) != 5 or not equal(node.shape(past)[0], 2):
            raise node.invalid(
                f"past (input {places.past}) is {show(node.shape(past))}, expected "
                "(2, batch, heads, rows, head size)"
            )
        cached = (node.reshape(part(node, past, 0, at, 1), node.shape(past)[1:]) for at in range(2))
        key, value = (
            joined(node, old, new, "past") for old, new in zip(cached, (key, value), strict=True)
        )
        before = node.shape(past)[3]
    plain = MaskedAttention(node, query, key, value, past=before)
    made = _masked(node, plain, places.mask, places.bias).emit()
    if len(node.outputs) < 2:
        return [made]
    present = [node.reshape(each, (1, *node.shape(each))) for each in (key, value)]
    return kept_outputs(node, made, node.emit("concat", present, axis=0))


def _masked(node: OnnxNode, plain: MaskedAttention, padding: int, bias: int) -> MaskedAttention:
    """Return the attention with all masks of the node: padding, bias of scores, and causal mask.

    `plain` is the attention without masks. `padding` and `bias` are the input positions of the
    padding mask and of the bias that is added to the scores.

    Raises:
        UnsupportedOperatorError: if the node is causal, and the number of keys differs from the
            number of cached tokens plus the number of query rows.
    """
    causal, rows = node.integer("unidirectional", 0) != 0, node.shape(plain.query)[2]
    if causal and plain.keys != plain.past + rows:
        raise node.unsupported(
            f"attribute 'unidirectional' with {plain.keys} keys for {rows} queries: the numbers "
            "must be equal"
        )
    whole = replace(plain, causal=causal)
    return whole.masked(_padding(node, padding, plain)).masked(node.optional(bias))


def _qattention(node: OnnxNode) -> list[str]:
    """Import QAttention, whose input and weights are 8-bit integers; returns the node's outputs.

    Inputs: x, weights, bias, scale of x, scale of the weights, padding mask, zero point of x, zero
    point of the weights, cache.
    """
    refuse(node, {}, ("do_rotary", "past_present_share_buffer"))
    x, weights = require_int8(node, 0), require_int8(node, 1)
    shape, width = node.shape(x), node.shape(weights)
    if len(shape) != 3 or len(width) != 2 or not equal(shape[2], width[0]) or width[1] % 3:
        raise node.invalid(
            f"the weights (input 1) are {show(width)}, expected a matrix with a row for each "
            f"feature of the input {show(shape)} and a multiple of 3 columns"
        )
    zeros = zero_point(node, 6, x), zero_point(node, 7, weights)
    scale = column_scales(node, one_number(node, 3, "a scale"), node.input(4), weights)
    projected = integer_product(node, x, weights, zeros, scale)
    projected = node.call("Add", projected, cast_to(node, node.input(2), DType.FLOAT32))
    sizes = (width[1] // 3,) * 3
    return _of_projected(node, projected, sizes, Places(mask=5, past=8, bias=9))


# ---- MultiHeadAttention


def _multi_head_attention(node: OnnxNode) -> list[str]:
    """Import MultiHeadAttention; returns the result and, if requested, the extended caches.

    Inputs: query, key, value, bias of the projections, padding mask, bias of scores, cached keys,
    cached values.
    """
    refuse(node, {8: "a shared cache", 9: "an indirection of the cache"})
    heads = node.integer("num_heads")
    query, key, value = _projected(node, heads)
    past = both(node, 6, 7, "past key and value")
    key = joined(node, past[0], key, "past_key")
    value = joined(node, past[1], value, "past_value")
    before = 0 if past[0] is None else node.shape(past[0])[2]
    made = _masked(node, MaskedAttention(node, query, key, value, past=before), 4, 5).emit()
    return kept_outputs(node, made, key, value)


def _projected(node: OnnxNode, heads: int) -> tuple[str, str, str]:
    """Return query, key and value of MultiHeadAttention with bias, as (batch, heads, rows, size).

    The node has three operands (query, key, value), two (the second packs key and value), or one
    that packs all three. Keys and values that already have four dimensions are returned unchanged,
    without bias.
    """
    query, (key, value) = node.input(0), (node.optional(1), node.optional(2))
    if key is None:
        parts = _unpacked(node, query, heads, 3)
    elif value is None:
        parts = [query, *_unpacked(node, key, heads, 2)]
    else:
        parts = [query, key, value]
    bias = node.optional(3)
    start, made = 0, []
    for each, what in zip(parts, ("the query", "the key", "the value"), strict=True):
        if len(node.shape(each)) == 4 and each is not query:
            if not equal(node.shape(each)[1], heads):
                raise node.invalid(
                    f"{what} is {show(node.shape(each))}, expected {heads} heads in dimension 1"
                )
            made.append(each)
            continue
        if bias is not None:
            width = node.shape(each)[-1]
            if len(node.shape(bias)) != 1 or start + width > node.shape(bias)[0]:
                raise node.invalid(
                    f"the bias is {show(node.shape(bias))}, which has no {width} elements for "
                    f"{what} from position {start} on"
                )
            each = node.call("Add", each, part(node, bias, 0, start, width))
            start += width
        made.append(split_heads(node, each, heads, what))
    return made[0], made[1], made[2]


def _unpacked(node: OnnxNode, value: str, heads: int, count: int) -> list[str]:
    """Split (batch, rows, heads, count, size) into `count` values (batch, rows, heads * size)."""
    shape = node.shape(value)
    if len(shape) != 5 or not same_extents(shape[2:4], (heads, count)):
        raise node.invalid(
            f"packed operands are {show(shape)}, expected (batch, rows, {heads} heads, "
            f"{count} operands, head size)"
        )
    flat = (*shape[:2], heads * shape[4])
    return [node.reshape(part(node, value, 3, at, 1), flat) for at in range(count)]


RULES = (
    OnnxRule("Attention", _attention, DOMAIN, "no rotary embedding; no shared cache"),
    OnnxRule(
        "QAttention", _qattention, DOMAIN, "scales of float32; no rotary embedding", INT8_TYPES
    ),
    OnnxRule("MultiHeadAttention", _multi_head_attention, DOMAIN, "no shared cache, no scores"),
)
