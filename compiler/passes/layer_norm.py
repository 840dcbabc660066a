"""Recognise layer normalisation in its decomposed form.

Before:                                     After:
    %1 = reduce_mean(%0) {axes=(-1), keepdims}  %9 = layer_norm(%0, scale, bias) {axis, epsilon}
    %2 = sub(%0, %1)
    %3 = mul(%2, %2)         (or pow 2)
    %4 = reduce_mean(%3)
    %5 = add(%4, epsilon)
    %6 = sqrt(%5)
    %7 = div(%2, %6)
    %8 = mul(%7, scale)
    %9 = add(%8, bias)

Ba, Kiros and Hinton, "Layer Normalization" (2016).
"""

from __future__ import annotations

import numpy as np

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import integer, ints
from tilewright.compiler.passes.match import Any_, Apply, Number, match_node
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

_CENTRED = Apply("sub", (Any_("x"), Apply("reduce_mean", (Any_("x"),), "mean")))
_DEVIATION = [
    Apply(
        "sqrt",
        (Apply("add", (Apply("reduce_mean", (square,), "variance"), Number(name="epsilon"))),),
    )
    for square in (
        Apply("pow", (_CENTRED, Number(2.0))),
        Apply("mul", (_CENTRED, _CENTRED)),
    )
]
_NORMALISED = [
    *(Apply("div", (_CENTRED, deviation)) for deviation in _DEVIATION),
    *(Apply("mul", (_CENTRED, Apply("reciprocal", (deviation,)))) for deviation in _DEVIATION),
]


def layer_norm(graph: Graph) -> Graph:
    """Replace decomposed layer normalisations, and absorb the scale and bias that follow them."""
    return rewrite(graph, _recognise)


def _recognise(rewriter: Rewriter, node: Node) -> str | None:
    match node.op:
        case "div":
            return _normalised(rewriter, node)
        case "mul":
            return _with_operand(rewriter, node, 1) or _normalised(rewriter, node)
        case "add":
            return _with_operand(rewriter, node, 2)
    return None


def _normalised(rewriter: Rewriter, node: Node) -> str | None:
    for pattern in _NORMALISED:
        if pattern.op != node.op:
            continue
        found = match_node(rewriter, node, pattern)
        if found is None:
            continue
        mean, variance = rewriter.producer(found["mean"]), rewriter.producer(found["variance"])
        epsilon = rewriter.scalar(found["epsilon"])
        if mean is None or variance is None or epsilon is None:
            continue
        axis = _trailing_axis(mean, len(rewriter.shape(found["x"])))
        if axis is None or axis != _trailing_axis(variance, len(rewriter.shape(found["x"]))):
            continue
        return rewriter.emit("layer_norm", [found["x"]], {"axis": axis, "epsilon": epsilon})
    return None


def _trailing_axis(reduce: Node, rank: int) -> int | None:
    """The first axis that a reduction reduces, if it reduces all axes from there to the last one.

    Returns None otherwise, and also if the reduction removes the axes.
    """
    axes = sorted(axis % rank for axis in ints(reduce.attrs, "axes", tuple(range(rank))))
    if not integer(reduce.attrs, "keepdims", 1) or axes != list(range(rank - len(axes), rank)):
        return None
    return axes[0]


def _with_operand(rewriter: Rewriter, node: Node, count: int) -> str | None:
    """Add a scale or a bias to the layer_norm that computes an operand of `node`.

    `count` is 1 if `node` multiplies the layer_norm by a constant, the scale, and 2 if it adds a
    constant, the bias. The layer_norm may have at most `count` operands so far. Returns the name of
    the new layer_norm; None if the layer_norm has more operands, or if the constant does not have a
    suitable shape.
    """
    for value, other in (node.inputs, node.inputs[::-1]):
        norm, array = rewriter.producer(value, "layer_norm"), rewriter.array(other)
        if norm is None or array is None or not rewriter.used_once(value):
            continue
        shape = rewriter.shape(value)
        axis = integer(norm.attrs, "axis", -1) % len(shape)
        inner = array.shape[max(array.ndim - (len(shape) - axis), 0) :]
        if len(norm.inputs) > count or array.ndim > len(shape) or array.size == 0:
            continue
        if any(extent != 1 for extent in array.shape[: array.ndim - len(inner)]):
            continue
        operand = np.ascontiguousarray(np.broadcast_to(array.reshape(inner), shape[axis:]))
        inputs = list(norm.inputs)
        if count == 2 and len(inputs) == 1:
            inputs.append(rewriter.constant(np.ones_like(operand), f"{norm.name}.scale"))
        if array.shape == operand.shape:
            inputs.append(other)
        else:
            inputs.append(rewriter.constant(operand, f"{other}.broadcast"))
        return rewriter.emit("layer_norm", inputs, norm.attrs)
    return None
