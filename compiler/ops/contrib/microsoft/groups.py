"""GroupQueryAttention of com.microsoft: heads that share keys, rotary embedding, and a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import to_memory
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
from tilewright.compiler.ops.contrib.microsoft.quantised import DOMAIN
from tilewright.compiler.ops.contrib.microsoft.rotary import positions, rotated
from tilewright.compiler.ops.moves import part, window
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.scatter import rows_replaced
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import larger, same_extents


@dataclass(frozen=True, slots=True)
class _Cache:
    """The places of new keys or values in the resulting cache of a GroupQueryAttention node.

    "Row" stands for the key or value of one token. A batch has several sequences of tokens, each
    with its own rows.

    Attributes:
        node: the imported node.
        rows: the number of new rows per sequence.
        total: the number of old and new rows. If this number is known only at run time, `total` is
            the length of the old cache.
        length: the capacity of the resulting cache in rows.
        past: the number of old rows, which precede the new ones; None if the number is known only
            at run time, or differs within the batch.
        first: the name of a value, (batch,) or (1,): for each sequence, the position of the first
            new row.
        last: the name of a value, (batch,): for each sequence, the position of the last key. None
            if the batch is 1 and `past` is known.
    """

    node: OnnxNode
    rows: int
    total: int
    length: int
    past: int | None
    first: str
    last: str | None

    def filled(self, cached: str | None, new: str, what: str) -> str:
        """Emit the resulting cache (batch, heads, length, size), with the new rows at their places.

        Args:
            cached: the old cache; None if the node has none.
            new: the new rows, (batch, heads, rows, size).
            what: the name of the old cache in errors.
        """
        node = self.node
        if self.past is None:
            return self._scattered(cached, new, what)
        if cached is None:
            return window(node, new, {2: (0, self.length)})
        before = part(node, cached, 2, 0, self.past)
        parts = [joined(node, before if self.past != 0 else None, new, what)]
        if (rest := node.shape(cached)[2] - self.total) > 0:
            parts.append(part(node, cached, 2, self.total, rest))
        return node.emit("concat", parts, axis=2) if len(parts) > 1 else parts[0]

    def _scattered(self, cached: str | None, new: str, what: str) -> str:
        node, (*heads, rows, size) = self.node, self.node.shape(new)
        if cached is None or not (old := node.shape(cached)[2]):
            raise node.invalid(
                f"{what} is missing: total_sequence_length (input 6) is {self.total}, and only "
                f"{rows} rows are new"
            )
        if not same_extents(node.shape(cached), (*heads, old, size)):
            raise node.invalid(
                f"{what} is {show(node.shape(cached))}, expected the batch, heads and head size of "
                f"the new rows {show(node.shape(new))}"
            )
        if self.length > old:
            cached = window(node, cached, {2: (0, self.length)})
        return rows_replaced(node, cached, self.first, new, 2)

    def seen(self, *, causal: bool, reach: int) -> str | None:
        """Emit the mask of the keys that queries see, a boolean (batch or 1, 1, rows or 1, keys).

        With `causal`, a query sees the last `reach` keys up to its own position, or all keys up to
        it if `reach` is negative. Without `causal`, it sees all keys of its batch row. The result
        is None if the attention needs no mask other than its attribute `causal`.
        """
        node, known = self.node, self.past is not None
        keys = counting(node, self.total if known else self.length)
        if not causal:
            if self.last is None:
                return None
            count = node.reshape(self.last, (node.type(self.last).elements, 1, 1, 1))
            return node.call("LessOrEqual", table(node, keys, DType.INT64), count)
        if known and reach < 0:
            return None
        queries = counting(node, self.rows).reshape((1, 1, self.rows, 1))
        ahead = table(node, keys - queries, DType.INT64)
        start = node.reshape(self.first, (node.type(self.first).elements, 1, 1, 1))
        found = node.call("LessOrEqual", ahead, start)
        if reach < 0:
            return found
        far = node.call("Sub", start, node.scalar(reach, DType.INT64))
        return node.call("And", found, node.call("Greater", ahead, far))


def _cache(node: OnnxNode, batch: int, rows: int, cached: str | None) -> _Cache:
    """Return the places of the new rows in the cache of a GroupQueryAttention node.

    A row is the key or value of one token. Two inputs determine the places: seqlens_k (input 5) and
    total_sequence_length (input 6), the number of old and new rows. With a batch of 1, the number
    of old rows is the total less the new rows. With a larger batch, seqlens_k has the position of
    the last key of each sequence. If the total is known only at run time, the new rows must fit
    into unused rows of the old cache, because the resulting cache has the same length.

    Args:
        node: the imported node.
        batch: the batch size.
        rows: the number of new rows.
        cached: the old cache; None if the node has none.

    Raises:
        InvalidModelError: if the total is less than the new rows, or, with a batch of 1, more than
            the old cache and the new rows together.
        UnsupportedOperatorError: if the total depends on input data, and the node has no old cache.
    """
    old = 0 if cached is None else node.shape(cached)[2]
    longest = node.input(6)
    if node.builder.known(longest) is None and longest not in node.builder.sizes and old:
        last = _last_keys(node, batch)
        first = node.call("Add", last, node.scalar(1 - rows, DType.INT64))
        first = node.emit("max", [first, node.scalar(0, DType.INT64)])
        return _Cache(node, rows, old, old, None, first, last)
    (total,) = node.static_ints(6, "total_sequence_length") or (0,)
    if total < rows:
        raise node.invalid(
            f"total_sequence_length (input 6) is {total}, less than the {rows} new rows"
        )
    past = 0 if total == rows else total - rows if batch == 1 else None
    if past is not None and past > old:
        raise node.invalid(
            f"total_sequence_length (input 6) is {total}, more than {rows} new and {old} cached "
            "rows together"
        )
    known = _last_keys(node, batch) if batch > 1 else None
    if past is None:
        assert known is not None
        first = node.call("Add", known, node.scalar(1 - rows, DType.INT64))
    else:
        first = node.sizes([past])
    return _Cache(node, rows, total, larger(total, old), past, first, known)


def _last_keys(node: OnnxNode, batch: int) -> str:
    """Return seqlens_k (input 5), the position of each batch row's last key, as int64 (batch,)."""
    lengths = node.input(5)
    if node.type(lengths).elements != batch:
        raise node.invalid(
            f"seqlens_k (input 5) is {show(node.shape(lengths))}, expected one number for each of "
            f"the batch of {batch}"
        )
    return cast_to(node, node.reshape(lengths, (batch,)), DType.INT64)


_QUANTISED_CACHE = ("k_quant_type", "v_quant_type", "sliding_window_cache", "qk_output")
_NOT_IN_GROUPS = {12: "k_scale", 13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight"}


def _group_query_attention(node: OnnxNode) -> list[str]:
    """Import GroupQueryAttention; returns the result and the caches, which include the new rows.

    Inputs: query, key, value, cached keys, cached values, position of each batch row's last key,
    total length, cosines, sines, position ids, bias of scores, head_sink (heads,). The last is the
    score of an additional key per head, whose value is zero.
    """
    refuse(node, _NOT_IN_GROUPS, _QUANTISED_CACHE)
    heads, groups = node.integer("num_heads"), node.integer("kv_num_heads")
    query, key, value = _grouped(node, heads, groups)
    batch, _, rows, _ = node.shape(query)
    past = both(node, 3, 4, "past key and value")
    cache = _cache(node, batch, rows, past[0])
    if node.integer("do_rotary", 0):
        interleaved = node.integer("rotary_interleaved", 0) != 0
        tables, where = (node.input(7), node.input(8)), node.optional(9)
        if where is None:
            where = positions(node, cache.first, batch, rows)
        elif not same_extents(node.shape(where), (batch, rows)):
            raise node.invalid(
                f"position_ids (input 9) is {show(node.shape(where))}, expected "
                f"{show((batch, rows))}"
            )
        query, key = (
            rotated(node, each, where, tables, interleaved=interleaved) for each in (query, key)
        )
    present = (
        cache.filled(past[0], key, "past_key"),
        cache.filled(past[1], value, "past_value"),
    )
    key, value = present
    if cache.past is not None:
        key, value = (part(node, each, 2, 0, cache.total) for each in present)
    causal = node.integer("causal", 1) != 0
    reach = node.integer("local_window_size", -1) if causal else -1
    seen = cache.seen(causal=causal, reach=reach)
    made = MaskedAttention(node, query, key, value)
    if seen is not None:
        made = made.masked(hidden(node, seen, node.type(query).dtype, -np.inf))
    elif causal:
        made = replace(made, causal=True, past=0 if cache.past is None else cache.past)
    if (bias := node.optional(10)) is not None:
        if len(node.shape(bias)) != 4:
            raise node.invalid(
                f"attention_bias (input 10) is {show(node.shape(bias))}, expected four dimensions"
            )
        made = made.masked(window(node, bias, {3: (0, made.keys)}))
    sink = node.optional(11)
    if sink is None and node.integer("smooth_softmax", 0) > 0:
        sink = node.constant(
            to_memory(np.zeros(heads), node.type(query).dtype), node.type(query).dtype
        )
    if sink is not None:
        if not same_extents(node.shape(sink), (heads,)):
            raise node.invalid(
                f"head_sink (input 11) is {show(node.shape(sink))}, expected ({heads},)"
            )
        made = made.with_sink(sink)
    return kept_outputs(node, made.emit(), *present)


def _grouped(node: OnnxNode, heads: int, groups: int) -> tuple[str, str, str]:
    """Return query, key and value as (batch, heads or groups, rows, size).

    `groups` is the number of key heads. The three are separate operands, or are concatenated in the
    first operand.
    """
    if heads < 1 or groups < 1 or heads % groups:
        raise node.invalid(
            f"attribute 'num_heads' is {heads}, expected a multiple of 'kv_num_heads', {groups}"
        )
    query, (key, value) = node.input(0), both(node, 1, 2, "key and value")
    if key is not None and value is not None:
        parts = [(query, heads), (key, groups), (value, groups)]
    else:
        shape, all_ = node.shape(query), heads + 2 * groups
        if len(shape) != 3 or shape[2] % all_:
            raise node.invalid(
                f"the packed query is {show(shape)}, expected three dimensions, the last of them "
                f"a multiple of the {all_} heads of query, key and value"
            )
        size, starts = shape[2] // all_, (0, heads, heads + groups)
        parts = [
            (part(node, query, 2, start * size, count * size), count)
            for start, count in zip(starts, (heads, groups, groups), strict=True)
        ]
    names = ("the query", "the key", "the value")
    made = [split_heads(node, *each, name) for each, name in zip(parts, names, strict=True)]
    return made[0], made[1], made[2]


RULES = (
    OnnxRule(
        "GroupQueryAttention",
        _group_query_attention,
        DOMAIN,
        "no quantised or windowed cache, no scores; lengths at run time need a cache with room",
    ),
)
