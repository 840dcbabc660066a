"""Scaled dot-product attention: softmax(scale * Q K^T + mask) V, with one softmax per query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import (
    Combiner,
    Const,
    Expr,
    IndexValue,
    Op,
    Operation,
    Reduce,
    op,
    widened,
)
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.ops.attributes import integer, number
from tilewright.compiler.ops.elementwise import floats_only
from tilewright.compiler.ops.products import accumulated, computed_type, exactly
from tilewright.compiler.ops.registry import Fresh, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import broadcast, broadcast_index, operand_count, show
from tilewright.compiler.sizes import equal, same_extents

_LOWEST = {
    DType.FLOAT16: -65504.0,
    DType.BFLOAT16: -3.3895313892515355e38,
    DType.FLOAT32: -3.4028234663852886e38,
    DType.FLOAT64: -3.4028234663852886e38,
}
"""Lower limit of the largest score of a row. It is finite, so that a row whose scores are all -inf
does not yield NaN. It is not above any finite score (for float64: any score from a float32
mask)."""


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Infer the type of attention: (batch, heads, queries, value size).

    The operands and attributes are those of ONNX's Attention (opset 23) with four dimensions:

        query: (batch, heads, queries, size)
        key: (batch, key heads, keys, size)
        value: (batch, key heads, keys, value size)
        mask (optional), added to the scores: broadcasts to (batch, heads, queries, keys)

    Each key head is shared by `heads / key heads` neighbouring heads (Ainslie et al., "GQA", 2023).
    A `softcap` c maps scores to c tanh(score / c) before the mask is added. With `causal`, query i
    attends only to keys 0 to `past + i`; the attribute `past` is the number of cached keys. If a
    mask of -inf hides all keys of a query, the query's result is zero.
    """
    operand_count(types, 3, 4)
    dtype = computed_type(types, attrs, 3)
    floats_only(types)
    query, key, value = (kind.shape for kind in types[:3])
    for name, shape in (("query", query), ("key", key), ("value", value)):
        if len(shape) != 4:
            raise InvalidModelError(f"{name} is {show(shape)}, expected four dimensions")
    if not equal(key[3], query[3]):
        raise InvalidModelError(f"head size differs, query {query[3]} against key {key[3]}")
    if not same_extents(value[:3], key[:3]) or not equal(key[0], query[0]):
        raise InvalidModelError(
            f"query {show(query)}, key {show(key)} and value {show(value)} differ in their batch, "
            "or key and value in their heads or rows"
        )
    if 0 in key or not equal(query[1] % key[1], 0):
        raise InvalidModelError(
            f"{query[1]} heads of the query are not a multiple of the heads of the key {show(key)}"
        )
    scores = (*query[:3], key[2])
    if len(types) == 4 and not same_extents(broadcast(scores, types[3].shape), scores):
        raise InvalidModelError(
            f"the mask {show(types[3].shape)} does not broadcast to the scores {show(scores)}"
        )
    number(attrs, "scale")
    number(attrs, "softcap", 0.0)
    if integer(attrs, "past", 0) < 0:
        raise InvalidModelError(
            f"attribute 'past' is {integer(attrs, 'past')}, expected at least 0"
        )
    return TensorType(dtype, (*query[:3], value[3]))


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Compute attention with NumPy, one block of queries at a time.

    The block size is such that the scores of a block need no more memory than the operands.
    """
    query, key, value = exactly(arrays[:3], attrs)
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = (np.repeat(array, group, axis=1) for array in (key, value))
    queries, keys = query.shape[2], key.shape[2]
    operands = query.size + key.size + value.size
    rows = max(1, operands // max(1, 2 * query.shape[0] * query.shape[1] * keys))
    mixed = np.empty((*query.shape[:3], value.shape[3]), query.dtype)
    for start in range(0, queries, rows):
        some = slice(start, start + rows)
        mask = arrays[3] if len(arrays) == 4 else None
        if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
            mask = mask[..., some, :]
        scores = _scores(query[:, :, some], key, mask, start, attrs)
        largest = np.maximum(scores.max(axis=-1, keepdims=True), np.finfo(np.float32).min)
        powers = np.exp(scores - largest)
        mixed[:, :, some] = np.matmul(powers, value)
        mixed[:, :, some] /= np.maximum(powers.sum(axis=-1, keepdims=True), 1)
    return accumulated(mixed, attrs, arrays[0].dtype)


def _scores(
    query: np.ndarray, key: np.ndarray, mask: np.ndarray | None, start: int, attrs: Attrs
) -> np.ndarray:
    """Return the scores after scale, softcap and mask; the softmax exponentiates them.

    `start` is the index of the first query in `query`, on which the causal mask depends.
    """
    scores: np.ndarray = np.matmul(query, key.swapaxes(2, 3))
    scores = scores * query.dtype.type(number(attrs, "scale"))
    softcap = query.dtype.type(number(attrs, "softcap", 0.0))
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if integer(attrs, "causal", 0):
        rows, columns = scores.shape[2:]
        seen = np.tri(rows, columns, integer(attrs, "past", 0) + start, dtype=bool)
        scores = np.where(seen, scores, scores.dtype.type(-np.inf))
    return scores


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the expression: (sum over j of p[j] * v[j]) / (sum over j of p[j]).

    p[j] is exp(score[j] - largest score). The maximum and both sums use the same reduction axis
    over keys, so that they share one expression of the scores.
    """
    dtype = computed_type(types, attrs, 3)
    batch, head, query, element = index
    key_head = head // (types[0].shape[1] // types[1].shape[1])
    size, keys = fresh("d", types[0].shape[3]), fresh("j", types[1].shape[2])
    j = affine(keys)
    left = operands[0]((batch, head, query, affine(size)))
    right = operands[1]((batch, key_head, j, affine(size)))
    score: Expr = Reduce(Combiner.SUM, (size,), widened(left, dtype) * widened(right, dtype))
    scale = number(attrs, "scale")
    if scale != 1.0:
        score = score * Const(scale, score.dtype)
    softcap = number(attrs, "softcap", 0.0)
    if softcap:
        score = maths.tanh(score * Const(1 / softcap, score.dtype)) * Const(softcap, score.dtype)
    if len(types) == 4:
        place = (batch, head, query, j)
        score = score + operands[3](broadcast_index(place, types[3].shape))
    if integer(attrs, "causal", 0):
        last = IndexValue(query + integer(attrs, "past", 0), DType.INT32)
        seen = Op(Operation.LE, (IndexValue(j, DType.INT32), last))
        score = op(Operation.SELECT, seen, score, Const(float("-inf"), score.dtype))
    largest: Expr = Reduce(Combiner.MAX, (keys,), score)
    if len(types) == 4:
        largest = maths.maximum(largest, _LOWEST[largest.dtype])  # -inf - -inf would be NaN
    power = maths.exp_of_negative(score - largest)
    total: Expr = Reduce(Combiner.SUM, (keys,), power)
    value = operands[2]((batch, key_head, j, element))
    mixed = Reduce(Combiner.SUM, (keys,), power * widened(value, dtype))
    if len(types) == 4:
        # the largest power is 1, so a smaller total means that all keys are hidden
        total = maths.maximum(total, 1.0)
    return mixed * (Const(1.0, total.dtype) / total)


OPERATORS = (Operator("attention", OpKind.ATTENTION, _infer, _reference, _expression),)
