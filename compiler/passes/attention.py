"""Recognise scaled dot-product attention.

Before:                                         After:
    %1 = transpose(%k) {perm=(0, 1, 3, 2)}          %7 = attention(%q, %k, %v, %mask) {scale=0.125}
    %2 = matmul(%q, %1)
    %3 = mul(%2, 0.125)      (or div; or %q, %k scaled)
    %4 = add(%3, %mask)      (or none; or where(%seen, %3, -inf))
    %5 = softmax(%4)
    %7 = matmul(%5, %v)

A mask that hides the keys after each query becomes the attribute `causal`. Such a mask is a
constant, or computed by a comparison of positions (`causal_masks`). `c tanh(x / c)` before the mask
is added becomes `softcap`. Leading dimensions become batch and heads.

A query whose keys are all hidden (a mask of -inf) gets zeros, where softmax alone would give NaN.
ONNX's Attention and PyTorch add a `where` for this purpose, which the operator replaces.

Vaswani et al., "Attention Is All You Need" (2017); also called scaled_dot_product_attention
(PyTorch) or Attention (ONNX opset 23).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.ops.attributes import integer, ints
from tilewright.compiler.passes.causal_masks import is_causal_mask
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

HIDDEN = -1e9
"""Maximum number that hides a key: added to a score, it makes the exponential zero."""

FILL = -1e37
"""The number that is added to the scores of hidden keys if the model's mask contains a finite
number. In the sum, every score is lost to rounding, so that a query whose keys are all hidden
weighs them equally. Sums and multiples of the number are finite."""


def attention(graph: Graph) -> Graph:
    """Replace each scaled dot-product attention by one operator."""
    return rewrite(graph, _recognise)


@dataclass(frozen=True, slots=True)
class _Mask:
    """A mask of attention scores: a value that is added to the scores, or a condition of a `where`.

    Attributes:
        value: the value that is added to the scores, or the condition.
        factor: a number by which the model multiplies the masked scores afterwards.
        rank: the number of dimensions of the scores.
        fill: the number that a `where` selects instead of hidden scores; None if the mask is added.
        seen: whether the condition is true for visible scores; otherwise it is true for hidden
            ones.
    """

    value: str
    factor: float
    rank: int
    fill: float | None = None
    seen: bool = True


@dataclass(slots=True)
class _Scores:
    """The operations between the product of queries and keys, and the softmax.

    They are collected from the softmax backwards.

    Attributes:
        scale: the product of all scales.
        softcap: the number c of `c tanh(x / c)`; 0 without it.
        masks: the masks, last one first.
        leading: the dimensions before (queries, keys).
    """

    scale: float = 1.0
    softcap: float = 0.0
    masks: list[_Mask] = field(default_factory=list)
    leading: tuple[int, ...] = ()
    """The dimensions before (queries, keys). If reshapes change them, these are the dimensions of
    the view with the largest rank."""


def _recognise(rewriter: Rewriter, node: Node) -> str | None:
    if node.op != "matmul" or len(node.inputs) != 2:
        return None
    weights = _unviewed(rewriter, node.inputs[0])
    guard = _guard(rewriter, weights)
    softmax = rewriter.producer(guard.weights if guard else weights, "softmax")
    if softmax is None or not _is_last_axis(rewriter, softmax):
        return None
    if not (guard or rewriter.used_once(weights)):
        return None
    found = _Scores()
    product = _product(rewriter, softmax.inputs[0], found)
    if product is None or rewriter.type(node.outputs[0]).dtype is not DType.FLOAT32:
        return None
    hiding = [mask.value for mask in found.masks if mask.factor > 0]
    if guard and guard.judged not in (None, *hiding):
        return None
    query, transposed, value = (*product.inputs, node.inputs[1])
    query, by_query = _unscaled(rewriter, query)
    transposed, by_key = _unscaled(rewriter, transposed)
    found.scale *= by_query * by_key
    return _emit(rewriter, node, query, transposed, value, found)


@dataclass(frozen=True, slots=True)
class _Guard:
    """A `where` that sets the weights of a query without visible keys to zero.

    The attention operator does the same, so the `where` can be removed.

    Attributes:
        weights: the result of the softmax.
        judged: the mask by which the `where` finds such queries. None if it tests the weights for
            NaN, or if its condition is constant.
    """

    weights: str
    judged: str | None


def _guard(rewriter: Rewriter, value: str) -> _Guard | None:
    """Recognise a `where(hidden, 0, weights)` that computes attention weights; None for others.

    `hidden` is `reduce_max(mask) == -inf`, `is_nan(weights)`, or a constant that is false.
    """
    node = rewriter.producer(value, "where")
    if node is None or not rewriter.used_once(value) or rewriter.scalar(node.inputs[1]) != 0.0:
        return None
    hidden, _, weights = node.inputs
    if rewriter.shape(weights) != rewriter.shape(value):
        return None
    known = rewriter.array(hidden)
    if known is not None:
        return None if known.any() or not rewriter.used_once(weights) else _Guard(weights, None)
    if (nan := rewriter.producer(hidden, "is_nan")) is not None:
        judges = nan.inputs[0] == weights and rewriter.uses(weights) == 2
        return _Guard(weights, None) if judges else None
    equal = rewriter.producer(hidden, "equal")
    if equal is None or not rewriter.used_once(weights):
        return None
    for largest, low in (equal.inputs, equal.inputs[::-1]):
        reduced = rewriter.producer(largest, "reduce_max")
        if reduced is None or rewriter.scalar(low) != -np.inf:
            continue
        rank = len(rewriter.shape(reduced.inputs[0]))
        axes = tuple(axis % rank for axis in ints(reduced.attrs, "axes", tuple(range(rank))))
        if axes == (rank - 1,) and integer(reduced.attrs, "keepdims", 1):
            return _Guard(weights, reduced.inputs[0])
    return None


def _unviewed(rewriter: Rewriter, value: str) -> str:
    """The operand of a reshape that changes only leading dimensions.

    Other values, and reshapes with several readers, are returned unchanged.
    """
    view = rewriter.producer(value, "reshape")
    if view is None or rewriter.shape(view.inputs[0])[-2:] != rewriter.shape(value)[-2:]:
        return value
    return view.inputs[0] if rewriter.used_once(value) else value


def _is_last_axis(rewriter: Rewriter, softmax: Node) -> bool:
    rank = len(rewriter.shape(softmax.outputs[0]))
    axis = integer(softmax.attrs, "axis", -1)
    return axis % rank == rank - 1


def _product(rewriter: Rewriter, value: str, found: _Scores) -> Node | None:
    """The matmul of queries and keys from which the scores `value` are computed.

    The operations after the matmul, such as scales and masks, are recorded in `found`. Returns None
    if there is another kind of operation between the matmul and the scores.
    """
    while rewriter.used_once(value):
        node, shape = rewriter.producer(value), rewriter.shape(value)
        if node is None or len(shape) < 2:
            return None
        if len(shape) > len(found.leading) + 2:
            found.leading = shape[:-2]
        step = None
        match node.op:
            case "matmul" if len(node.inputs) == 2:
                return node
            case "mul" | "div":
                step = _scaled(rewriter, node, found)
            case "add":
                step = _masked(rewriter, node, found)
            case "where":
                step = _selected(rewriter, node, found)
            case "tanh" if not found.softcap:
                found.softcap = found.scale
                step = node.inputs[0]
            case "reshape":
                inner = _unviewed(rewriter, value)
                step = inner if inner != value else None
        if step is None:
            return None
        value = step
    return None


def _scaled(rewriter: Rewriter, node: Node, found: _Scores) -> str | None:
    value, factor = _factor(rewriter, node)
    found.scale *= factor
    return value if value != node.outputs[0] else None


def _factor(rewriter: Rewriter, node: Node) -> tuple[str, float]:
    """Split a `mul` or `div` by a number into the other operand and a factor.

    `x * c` gives (x, c) and `x / c` gives (x, 1 / c). Other nodes give their own result and the
    factor 1.
    """
    left, right = node.inputs
    for value, other in ((left, right), (right, left)):
        factor = rewriter.scalar(other)
        if not factor or rewriter.shape(value) != rewriter.shape(node.outputs[0]):
            continue
        if node.op == "mul":
            return value, factor
        if value == left:
            return value, 1 / factor
    return node.outputs[0], 1.0


def _unscaled(rewriter: Rewriter, value: str) -> tuple[str, float]:
    """Split a scaled operand of the product of queries and keys into the operand and the factor.

    A value that is not scaled gives itself and the factor 1. For the keys, `value` is the
    transposed keys.
    """
    node = rewriter.producer(value)
    if node is None or node.op not in ("mul", "div"):
        return value, 1.0
    return _factor(rewriter, node)


def _masked(rewriter: Rewriter, node: Node, found: _Scores) -> str | None:
    shape = rewriter.shape(node.outputs[0])
    if found.softcap:
        return None  # the operator adds its mask after the tanh
    for value, other in (node.inputs, node.inputs[::-1]):
        if rewriter.shape(value) == shape and _leads_to_product(rewriter, value):
            found.masks.append(_Mask(other, found.scale, len(shape)))
            return value
    return None


def _leads_to_product(rewriter: Rewriter, value: str) -> bool:
    """Whether `_product` finds a matmul from which the value is computed."""
    return _product(rewriter, value, _Scores()) is not None


def _selected(rewriter: Rewriter, node: Node, found: _Scores) -> str | None:
    """Record `where(seen, x, c)` as a mask in `found`, and return x.

    The number c must be so low that it hides a key (HIDDEN), else the result is None. The operands
    x and c may also be swapped.
    """
    seen, chosen, other = node.inputs
    shape = rewriter.shape(node.outputs[0])
    if found.softcap:
        return None
    for value, fill, first in ((chosen, other, True), (other, chosen, False)):
        low = rewriter.scalar(fill)
        if low is None or low > HIDDEN or rewriter.shape(value) != shape:
            continue
        found.masks.append(_Mask(seen, found.scale, len(shape), low, first))
        return value
    return None


def _added(rewriter: Rewriter, mask: _Mask, low: float) -> _Mask:
    """Convert the mask `where(seen, x, c)` to the sum `x + where(seen, 0, low)`.

    `low` is a number so low that adding it hides a score.
    """
    known = rewriter.array(mask.value)
    numbers = [np.array(end, np.float32) for end in _ends(mask, 0.0, low)]
    if known is not None:
        value = rewriter.constant(np.where(known, *numbers), f"{mask.value}.mask")
    else:
        constants = [rewriter.constant(array, f"{mask.value}.end") for array in numbers]
        value = rewriter.emit("where", [mask.value, *constants])
    return replace(mask, value=value, fill=None)


def _shows_all(rewriter: Rewriter, mask: _Mask) -> bool:
    """Whether a mask is a constant that is added to the scores and hides no key.

    The attribute `causal` replaces a mask only if this is true for all other masks. Otherwise, the
    masks together could hide all keys of a query. The model would then distribute the weights over
    all keys, including future ones, which `causal` excludes.
    """
    known = rewriter.array(mask.value)
    return mask.fill is None and known is not None and bool((known > HIDDEN).all())


def _lowest(fill: float, added: bool) -> float:
    """Return the number to add to hidden scores, in place of the number `fill` of a `where` mask.

    A `where` mask selects `fill` for hidden scores. An infinite `fill` is returned unchanged. A
    finite `fill` is replaced by FILL (-1e37), because a number such as -1e9 might not outweigh a
    large score. There is one exception: if `added` (the model also adds other masks), a `fill` of
    at most FILL is returned unchanged. Keys that several masks hide then have the same relative
    weights as in the model.
    """
    return fill if not np.isfinite(fill) or (added and fill <= FILL) else FILL


def _least(low: float) -> float:
    """Return the lower limit of the number that a `where` selects for hidden scores.

    That number is `low`, multiplied by a scale, which may overflow to minus infinity. If `low` is
    finite, the limit is the lowest finite float32. Otherwise `low` is minus infinity, and so is the
    limit.
    """
    return float(np.finfo(np.float32).min) if np.isfinite(low) else low


T = TypeVar("T")


def _ends(mask: _Mask, seen: T, hidden: T) -> tuple[T, T]:
    """The two values of a mask's `where`, in the order of its operands.

    `seen` is the value for visible scores, and `hidden` the value for hidden scores.
    """
    return (seen, hidden) if mask.seen else (hidden, seen)


def _emit(
    rewriter: Rewriter, node: Node, query: str, transposed: str, value: str, found: _Scores
) -> str | None:
    """Emit the attention operator, and return its result in the shape of the original result.

    Args:
        rewriter: the graph under construction.
        node: the original product of weights and values.
        query: the queries.
        transposed: the keys, with the last two dimensions swapped.
        value: the values.
        found: the operations between the product of queries and keys, and the softmax.

    Returns:
        The name of the result; None if the operands cannot be viewed in four dimensions (batch,
        heads, rows, columns), or a mask does not fit them.
    """
    heads = _batch_and_heads(rewriter, query, found.leading)
    key_heads = _batch_and_heads(rewriter, transposed, found.leading)
    if heads is None or key_heads is None or key_heads not in (heads, (heads[0], 1)):
        return None
    if rewriter.shape(value)[:-2] != rewriter.shape(transposed)[:-2]:
        return None
    rank = len(rewriter.shape(transposed))
    swap = (*range(rank - 2), rank - 1, rank - 2)
    key = rewriter.emit("transpose", [transposed], {"perm": swap})
    operands = [
        _in_heads(rewriter, operand, leading)
        for operand, leading in ((query, heads), (key, key_heads), (value, key_heads))
    ]
    attrs: dict[str, AttrValue] = {"scale": found.scale, "causal": 0, "past": 0}
    if found.softcap:
        attrs["softcap"] = found.softcap
    past = rewriter.shape(key)[-2] - rewriter.shape(query)[-2]
    total: str | None = None
    added = any(mask.fill is None for mask in found.masks)
    for given in reversed(found.masks):  # in the order of the model
        low = 0.0 if given.fill is None else _lowest(given.fill, added)
        mask = given if given.fill is None else _added(rewriter, given, low)
        known = rewriter.array(mask.value)
        if known is not None and not known.any():
            continue
        if (
            mask.factor > 0
            and all(each is given or _shows_all(rewriter, each) for each in found.masks)
            and (
                _hides_the_future(known, past)
                or is_causal_mask(rewriter, mask.value, past, HIDDEN / mask.factor)
            )
        ):
            if rewriter.shape(query)[-2] != 1:  # a single query is the last and sees all keys
                attrs |= {"causal": 1, "past": past}
            continue
        filling = total is not None and given.fill is not None
        term = (_in_scores if filling else _mask_in_heads)(
            rewriter, given if filling else mask, heads
        )
        if term is None:
            return None
        if total is None:
            total = term
        elif filling:
            number = np.array(max(low * mask.factor, _least(low)), np.float32)
            filled = rewriter.constant(number, f"{term}.low")
            total = rewriter.emit("where", [term, *_ends(given, total, filled)])
        else:
            total = rewriter.emit("add", [total, term])
    if total is not None:
        operands.append(total)
    result = rewriter.emit("attention", operands, attrs)
    shape = rewriter.shape(node.outputs[0])
    if rewriter.shape(result) == shape:
        return result
    return rewriter.emit("reshape", [result], {"shape": shape})


def _batch_and_heads(
    rewriter: Rewriter, operand: str, scores: tuple[int, ...]
) -> tuple[int, int] | None:
    """Split the leading dimensions of an operand into the batch and the number of heads.

    `scores` are the leading dimensions of the attention scores. If `scores` has the same product as
    the operand's leading dimensions, but more of them, `scores` is split instead. A single leading
    dimension is the number of heads; the batch is then 1. Returns None if there are more than two
    leading dimensions.
    """
    own = rewriter.shape(operand)[:-2]
    chosen = scores if len(scores) > len(own) and prod(scores) == prod(own) else own
    if len(chosen) > 2:
        return None
    padded = (*(1,) * (2 - len(chosen)), *chosen)
    return padded[0], padded[1]


def _in_heads(rewriter: Rewriter, value: str, heads: tuple[int, int]) -> str:
    shape = (*heads, *rewriter.shape(value)[-2:])
    if rewriter.shape(value) == shape:
        return value
    return rewriter.emit("reshape", [value], {"shape": shape})


def _in_scores(rewriter: Rewriter, mask: _Mask, heads: tuple[int, int]) -> str | None:
    """A mask's value, reshaped to broadcast to (batch, heads, queries, keys).

    `heads` is (batch, heads). Returns None if the value has three dimensions, and the first is
    neither 1 nor batch times heads.
    """
    value, shape = mask.value, rewriter.shape(mask.value)
    if mask.rank == 3 == len(shape) and shape[0] != 1 and heads[0] != 1:
        return _in_heads(rewriter, value, heads) if shape[0] == prod(heads) else None
    return value


def _mask_in_heads(rewriter: Rewriter, mask: _Mask, heads: tuple[int, int]) -> str | None:
    """A mask's value, reshaped for the attention operator and multiplied by the mask's factor.

    The result broadcasts to (batch, heads, queries, keys); `heads` is (batch, heads). The result is
    None if the value cannot be reshaped.
    """
    value = _in_scores(rewriter, mask, heads)
    if value is None or mask.factor == 1.0:
        return value
    factor = rewriter.constant(np.array(mask.factor, np.float32), f"{value}.factor")
    return rewriter.emit("mul", [value, factor])


def _hides_the_future(array: np.ndarray | None, past: int) -> bool:
    """Whether a constant mask hides the keys after each query and adds 0 to all others.

    `past` is the number of keys before the key of the first query.
    """
    if array is None or array.ndim < 2 or past < 0 or prod(array.shape[:-2]) != 1:
        return False
    rows, columns = array.shape[-2:]
    mask = array.reshape(rows, columns)
    if columns != rows + past:
        return False
    seen = np.tri(rows, columns, past, dtype=bool)
    return bool((mask[seen] == 0).all() and (mask[~seen] <= HIDDEN).all())
