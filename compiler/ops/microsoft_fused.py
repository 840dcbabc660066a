"""Float operators of com.microsoft that ONNX Runtime's optimiser writes, spelled out again."""

from __future__ import annotations

from compiler.ops.microsoft_bytes import DOMAIN
from compiler.ops.onnx_node import OnnxNode
from compiler.ops.registry import OnnxRule
from compiler.ops.shapes import show

_QUICK = 1.702
"""The alpha of x * sigmoid(alpha * x) that comes nearest to GELU."""

_EPSILON = 1e-12
"""Of SkipLayerNormalization; the other normalisations have ONNX's."""


def _sum(node: OnnxNode, first: str, *positions: int) -> str:
    """A value, plus the operands at these positions that are there."""
    for position in positions:
        other = node.optional(position)
        if other is not None:
            first = node.call("Add", first, other)
    return first


def _fast_gelu(node: OnnxNode) -> str:
    return node.call("Gelu", _sum(node, node.input(0), 1), approximate="tanh")


def _bias_gelu(node: OnnxNode) -> str:
    return node.call("Gelu", node.call("Add", node.input(0), node.input(1)))


def _quick_gelu(node: OnnxNode) -> str:
    return node.call("Swish", node.input(0), alpha=node.number("alpha", _QUICK))


def _skipped(node: OnnxNode, bias: int) -> str:
    """input + skip + bias; a skip of lower rank serves the whole batch."""
    x, skip = node.input(0), node.input(1)
    shape, other = node.shape(x), node.shape(skip)
    fits = len(other) <= len(shape) and shape[len(shape) - len(other) + 1 :] == other[1:]
    if not fits or other[:1] not in (shape[len(shape) - len(other) :][:1], (1,)):
        raise node.invalid(f"a skip {show(other)} for an input {show(shape)}")
    return _sum(node, node.call("Add", x, skip), bias)


def _with_sum(node: OnnxNode, normalised: str, total: str) -> list[str]:
    """The outputs: normalised values, their mean and deviation (refused), what was normalised."""
    if any(node.outputs[1:3]):
        raise node.unsupported("the outputs mean and inv_std_var")
    return [normalised, "", "", total][: max(len(node.outputs), 1)]


def _skip_layer_norm(node: OnnxNode) -> list[str]:
    total = _skipped(node, 4)
    epsilon = node.number("epsilon", _EPSILON)
    operands = (total, node.input(2), node.optional(3))
    return _with_sum(node, node.call("LayerNormalization", *operands, epsilon=epsilon), total)


def _skip_rms_norm(node: OnnxNode) -> list[str]:
    total = _skipped(node, 3)
    epsilon = node.number("epsilon", _EPSILON)
    normalised = node.call("RMSNormalization", total, node.input(2), epsilon=epsilon)
    return _with_sum(node, normalised, total)


def _rms_norm(node: OnnxNode) -> str:
    if any(node.outputs[1:]):
        raise node.unsupported("the output inv_std_var")
    axis, epsilon = node.integer("axis", -1), node.number("epsilon", 1e-5)
    return node.call("RMSNormalization", node.input(0), node.input(1), axis=axis, epsilon=epsilon)


RULES = (
    OnnxRule("FastGelu", _fast_gelu, DOMAIN),
    OnnxRule("BiasGelu", _bias_gelu, DOMAIN),
    OnnxRule("QuickGelu", _quick_gelu, DOMAIN),
    OnnxRule("SkipLayerNormalization", _skip_layer_norm, DOMAIN, "without mean and inv_std_var"),
    OnnxRule(
        "SkipSimplifiedLayerNormalization", _skip_rms_norm, DOMAIN, "without mean and inv_std_var"
    ),
    OnnxRule("SimplifiedLayerNormalization", _rms_norm, limits="without inv_std_var"),
)
