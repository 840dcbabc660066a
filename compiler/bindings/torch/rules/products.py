"""Translation rules to ONNX for ATen's matrix products, convolutions and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError, Size
from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten


def _unjoined(t: Translator, node: fx.Node, x: fx.Node) -> fx.Node | None:
    """Return the tensor before the view `x`, if the matrix product `node` can use it directly.

    Return None otherwise. PyTorch represents a linear layer over (batch, tokens, features) by three
    operators: a view that joins the leading dimensions, a matrix product, and a view that splits
    the dimensions again. If all users of the product split the dimensions in this way, the product
    can use the tensor before the first view. The compiler then sees batch and tokens as separate
    dimensions.
    """
    if x.target not in (aten.view.default, aten._unsafe_view.default):
        return None
    before = x.args[0]
    if not isinstance(before, fx.Node):
        return None
    shape: tuple[Size, ...] = t.shape(before)
    if before in t.lifted or len(shape) < 3 or shape[-1] != t.shape(x)[-1]:
        return None
    whole = (*shape[:-1], t.shape(node)[-1])
    views = (aten.view.default, aten._unsafe_view.default)
    parts = all(user.target in views and t.shape(user) == whole for user in node.users)
    return before if parts and node.users else None


def _product(t: Translator, node: fx.Node, left: fx.Node, right: fx.Node) -> str:
    """Emit a matrix product, and return its name.

    If `left` is a view that joins leading dimensions, and all users of the product split these
    again, the product uses the tensor without the view (`_unjoined`).
    """
    before = _unjoined(t, node, left)
    if before is not None:
        t.lifted.add(node)
    return t.op("MatMul", t.value(before or left), t.value(right))


def _mm(t: Translator, node: fx.Node, left: fx.Node, right: fx.Node) -> str:
    return _product(t, node, left, right)


def _addmm(
    t: Translator,
    node: fx.Node,
    added: fx.Node,
    left: fx.Node,
    right: fx.Node,
    beta: float = 1,
    alpha: float = 1,
) -> str:
    simple = beta == alpha == 1 and len(t.shape(added)) == 1
    product = _product(t, node, left, right) if simple else None
    if product is None:
        product = t.op("MatMul", t.value(left), t.value(right))
    return _sum(t, node, product, alpha, added, beta)


def _baddbmm(
    t: Translator,
    node: fx.Node,
    added: fx.Node,
    left: fx.Node,
    right: fx.Node,
    beta: float = 1,
    alpha: float = 1,
) -> str:
    product = t.op("MatMul", t.value(left), t.value(right))
    return _sum(t, node, product, alpha, added, beta)


def _sum(
    t: Translator, node: fx.Node, product: str, alpha: float, added: fx.Node, beta: float
) -> str:
    """Emit alpha * product + beta * added; `added` is ignored if beta is 0."""
    scaled = _scaled(t, product, alpha, node)
    if beta == 0:  # the added value is then ignored, even if it is NaN
        return scaled
    return t.op("Add", scaled, _scaled(t, t.value(added), beta, node))


def _addbmm(
    t: Translator,
    node: fx.Node,
    added: fx.Node,
    left: fx.Node,
    right: fx.Node,
    beta: float = 1,
    alpha: float = 1,
) -> str:
    """Translate alpha * (sum of left[i] @ right[i] over i) + beta * added."""
    products = t.op("MatMul", t.value(left), t.value(right))
    product = t.op("ReduceSum", products, t.constant([0]), keepdims=0)
    return _sum(t, node, product, alpha, added, beta)


def _distances(
    t: Translator, node: fx.Node, left: fx.Node, right: fx.Node, p: float, *_: Any
) -> str:
    """Translate the distances of order `p` between each row of `left` and each row of `right`.

    Raises:
        NotTranslatedError: if `p` is not 1, 2 or infinity.
    """
    kinds = {1.0: "ReduceL1", 2.0: "ReduceL2", math.inf: "ReduceMax"}
    if p not in kinds:
        raise NotTranslatedError(f"of order {p}")
    rows = t.op("Unsqueeze", t.value(left), t.constant([-2]))
    others = t.op("Unsqueeze", t.value(right), t.constant([-3]))
    apart = t.op("Abs", t.op("Sub", rows, others))
    return t.op(kinds[p], apart, t.constant([-1]), keepdims=0)


def _scaled(t: Translator, value: str, factor: float, node: fx.Node) -> str:
    if factor == 1:
        return value
    return t.op("Mul", value, t.value(factor, t.dtype(node)))


def _matmul(t: Translator, node: fx.Node, left: fx.Node, right: fx.Node) -> str:
    return t.op("MatMul", t.value(left), t.value(right))


def _linear(
    t: Translator, node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None = None
) -> str:
    rank = len(t.shape(weight))
    turned = t.op("Transpose", t.value(weight), perm=list(range(rank))[::-1])
    product = t.op("MatMul", t.value(x), turned)
    return product if bias is None else t.op("Add", product, t.value(bias))


def _convolution(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    weight: fx.Node,
    bias: fx.Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> str:
    rank = len(t.shape(x)) - 2
    strides, pads, steps, more = (
        list(each) * rank if len(each) == 1 else list(each)
        for each in (stride, padding, dilation, output_padding)
    )
    operands = [t.value(x), t.value(weight), *([] if bias is None else [t.value(bias)])]
    common: dict[str, Any] = {
        "strides": strides,
        "pads": pads * 2,
        "dilations": steps,
        "group": groups,
    }
    if transposed:
        return t.op("ConvTranspose", *operands, output_padding=more, **common)
    return t.op("Conv", *operands, **common)


def _attention(
    t: Translator,
    node: fx.Node,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: fx.Node | None = None,
    scale: float | None = None,
) -> tuple[str, ...]:
    """Translate attention over operands of shape (batch, heads, tokens, width).

    Return the attention's result only: PyTorch's second result, the log-sum-exp, is not supported.

    Raises:
        NotTranslatedError: if there is dropout, or the width is dynamic.
    """
    if dropout_p:
        raise NotTranslatedError("with dropout")
    dtype, width = t.dtype(node), t.shape(query)[-1]
    if not isinstance(width, int):
        raise NotTranslatedError("with a dynamic width")
    factor = 1 / math.sqrt(width) if scale is None else scale
    turned = t.op("Transpose", t.value(key), perm=[0, 1, 3, 2])
    scores = t.op("MatMul", t.value(query), turned)
    scores = t.op("Mul", scores, t.constant(factor, dtype))
    hidden = t.constant(-math.inf, dtype)
    if attn_mask is not None and t.dtype(attn_mask) is torch.bool:
        scores = t.op("Where", t.value(attn_mask), scores, hidden)
    elif attn_mask is not None:
        scores = t.op("Add", scores, t.value(attn_mask, dtype))
    if is_causal:
        queries, keys = t.shape(query)[-2], t.shape(key)[-2]
        one = t.op("Expand", t.constant(True, torch.bool), t.numbers([queries, keys]))
        seen = t.op("Trilu", one, t.constant(0), upper=0)
        scores = t.op("Where", seen, scores, hidden)
    weights = t.op("Softmax", scores, axis=-1)
    if attn_mask is not None:  # a query whose keys are all masked gets zeros
        lost = t.op("IsNaN", weights)
        weights = t.op("Where", lost, t.constant(0, dtype), weights)
    return (t.op("MatMul", weights, t.value(value)),)


RULES: dict[Any, Rule] = {
    aten.mm.default: _mm,
    aten.bmm.default: _matmul,
    aten.matmul.default: _matmul,
    aten.mv.default: _matmul,
    aten.dot.default: _matmul,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _baddbmm,
    aten.addmv.default: _baddbmm,
    aten.addbmm.default: _addbmm,
    aten._cdist_forward.default: _distances,
    aten.linear.default: _linear,
    aten.convolution.default: _convolution,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}
