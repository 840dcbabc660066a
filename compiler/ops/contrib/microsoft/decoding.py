"""Operators of com.microsoft for one decoder step: attention over a cache, and n-gram blocking."""

from __future__ import annotations

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import counting, table
from tilewright.compiler.ops.contrib.microsoft.heads import (
    MaskedAttention,
    both,
    hidden,
    kept_outputs,
    refuse,
    split_heads,
)
from tilewright.compiler.ops.contrib.microsoft.quantised import DOMAIN
from tilewright.compiler.ops.moves import part, window
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import equal

_FILTER = -10000.0
"""Default of `mask_filter_value`, which is added to the score of a hidden key."""


def _masked_attention(node: OnnxNode) -> list[str]:
    """Import DecoderMaskedMultiHeadAttention, in which one query attends to cached keys.

    Inputs: query, key, value, mask, bias of scores, cached keys, cached values, number of cached
    positions, beam width, beam indirection of the cache (unsupported), bias of the projections.

    The new key and value are written into the caches at the next position. Without caches, the keys
    and values are those of an encoder, which are already split by heads. Returns the result and, if
    requested, the caches.
    """
    refuse(node, {9: "an indirection of the cache"}, ("output_qk",))
    if node.static_ints(8, "beam_width") not in (None, (1,)):
        raise node.unsupported("beam_width (input 8) must be 1")
    heads = node.integer("num_heads")
    query, key, value = _projected(node, heads)
    if not equal(node.shape(query)[2], 1):
        raise node.invalid(f"the query has {node.shape(query)[2]} rows, expected one")
    cached = both(node, 5, 6, "past key and value")
    if cached[0] is None or cached[1] is None:
        if node.optional(4) is not None:
            raise node.unsupported("attention_bias (input 4) with keys of an encoder")
        plain = MaskedAttention(node, query, key, value)
        return kept_outputs(node, _with_mask(node, plain, plain.keys).emit())
    past = node.reshape(cast_to(node, node.input(7), DType.INT64), ())
    length = node.shape(cached[0])[2]
    place = table(node, counting(node, length), DType.INT64)
    own = node.reshape(node.emit("equal", [place, past]), (1, 1, length, 1))
    keys, values = (
        node.emit("where", [own, new, old]) for new, old in ((key, cached[0]), (value, cached[1]))
    )
    seen = node.emit("logical_not", [node.emit("greater", [place, past])])
    dtype = node.type(query).dtype
    attention = MaskedAttention(node, query, keys, values).masked(
        hidden(node, node.reshape(seen, (1, 1, 1, length)), dtype, -np.inf)
    )
    attention = _with_mask(node, attention, length)
    if (bias := node.optional(4)) is not None:
        if len(node.shape(bias)) != 4:
            raise node.invalid(
                f"attention_bias (input 4) is {show(node.shape(bias))}, expected four dimensions"
            )
        attention = attention.masked(window(node, bias, {3: (0, length)}))
    return kept_outputs(node, attention.emit(), keys, values)


def _with_mask(node: OnnxNode, attention: MaskedAttention, length: int) -> MaskedAttention:
    """Return the attention with the node's mask (batch, keys so far), which is 0 for a hidden key.

    Keys after the mask's last column are hidden too. `length` is the number of all keys.
    """
    given = node.optional(3)
    if given is None:
        return attention
    shape, batch = node.shape(given), node.shape(attention.query)[0]
    if len(shape) != 2 or not equal(shape[0], batch) or shape[1] > length:
        raise node.invalid(
            f"the mask (input 3) is {show(shape)}, expected ({batch}, at most {length} keys)"
        )
    whole = window(node, cast_to(node, given, DType.INT32), {1: (0, length)})
    seen = node.call("Greater", whole, node.scalar(0, DType.INT32))
    score, dtype = node.number("mask_filter_value", _FILTER), node.type(attention.query).dtype
    return attention.masked(hidden(node, node.reshape(seen, (batch, 1, 1, length)), dtype, score))


def _projected(node: OnnxNode, heads: int) -> tuple[str, str, str]:
    """Return query, key and value as (batch, heads, rows, size), with their bias.

    Operands that are already split by heads are returned unchanged, without bias.
    """
    bias, start = node.optional(10), 0
    made = []
    for position, what in enumerate(("the query", "the key", "the value")):
        each = node.input(position)
        if len(node.shape(each)) == 4:
            made.append(each)
            continue
        width = node.shape(each)[-1]
        if bias is not None:
            if len(node.shape(bias)) != 1 or start + width > node.shape(bias)[0]:
                raise node.invalid(
                    f"the bias is {show(node.shape(bias))}, which has no {width} elements for "
                    f"{what} from position {start} on"
                )
            each = node.call("Add", each, part(node, bias, 0, start, width))
            start += width
        made.append(split_heads(node, each, heads, what))
    return made[0], made[1], made[2]


def _repeated_ngrams(node: OnnxNode) -> str:
    """Import NGramRepeatBlock: exclude tokens that would repeat an n-gram of the row.

    Inputs: the tokens of each row, and the scores (batch, vocabulary) of the next token. Wherever
    the last n - 1 tokens occur earlier in the row, the token after that occurrence gets the score
    -inf.
    """
    ids, scores = node.input(0), node.input(1)
    size, shape = node.integer("ngram_size"), node.shape(ids)
    fits = len(shape) == len(node.shape(scores)) == 2
    if not fits or not equal(shape[0], node.shape(scores)[0]):
        raise node.invalid(
            f"input_ids (input 0) is {show(shape)} and scores (input 1) "
            f"{show(node.shape(scores))}, expected two dimensions and one batch"
        )
    if size < 1:
        raise node.invalid(f"attribute 'ngram_size' is {size}, expected at least 1")
    batch, length = shape
    places = length - size + 1
    if places < 1 or not batch:
        return scores
    dtype = node.type(scores).dtype
    updates = node.constant(np.full((batch, places), -np.inf, dtype.numpy), dtype)
    harmless = node.scalar(np.inf, dtype)
    for back in range(size - 1):
        last = part(node, ids, 1, length + 1 - size + back, 1)
        same = node.emit("equal", [part(node, ids, 1, back, places), last])
        updates = node.emit("where", [same, updates, harmless])
    following = part(node, ids, 1, size - 1, places)
    return node.call_at(18, "ScatterElements", scores, following, updates, axis=1, reduction="min")


RULES = (
    OnnxRule(
        "DecoderMaskedMultiHeadAttention",
        _masked_attention,
        DOMAIN,
        "no beams, no scores, three operands",
    ),
    OnnxRule("NGramRepeatBlock", _repeated_ngrams, DOMAIN, types=(DType.INT64,)),
)
