"""Fused float operators of com.microsoft, which ONNX Runtime's optimiser emits.

The import replaces each by the separate operators from which the optimiser fused it.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.computed import filled
from tilewright.compiler.ops.contrib.microsoft.quantised import DOMAIN
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import same_extents

_QUICK = 1.702
"""Default of QuickGelu's attribute `alpha`, for which x * sigmoid(alpha * x) best approximates
GELU."""

_INTEGERS = (DType.INT32,)

_EPSILON = 1e-12
"""Default epsilon of normalisations after a skip connection. The other normalisations have ONNX's
default."""


def _sum(node: OnnxNode, first: str, *positions: int) -> str:
    """Add the operands at `positions` to the value `first`; omitted operands are skipped."""
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
    """Emit input + skip + bias; `bias` is the input position of the bias.

    A skip of lower rank, or with a batch of 1, is broadcast over the batch.
    """
    x, skip = node.input(0), node.input(1)
    shape, other = node.shape(x), node.shape(skip)
    own = shape[max(len(shape) - len(other), 0) :]
    wanted = (1, *own[1:]) if other[:1] == (1,) else own
    if not same_extents(other, wanted):
        raise node.invalid(
            f"skip (input 1) is {show(other)}, which does not broadcast over the batch of the "
            f"input {show(shape)}"
        )
    return _sum(node, node.call("Add", x, skip), bias)


def _with_sum(node: OnnxNode, normalised: str, total: str) -> list[str]:
    """Return the outputs of a SkipLayerNormalization or SkipSimplifiedLayerNormalization.

    The first output is `normalised`, and the fourth is `total`, the sum before the normalisation.
    The second and third (mean and inverse standard deviation) are not supported.

    Raises:
        UnsupportedOperatorError: if the node has the output mean or inverse standard deviation.
    """
    if any(node.outputs[1:3]):
        raise node.unsupported("the outputs mean and inv_std_var are not implemented")
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
        raise node.unsupported("the output inv_std_var is not implemented")
    axis, epsilon = node.integer("axis", -1), node.number("epsilon", 1e-5)
    return node.call("RMSNormalization", node.input(0), node.input(1), axis=axis, epsilon=epsilon)


def _gemm_fast_gelu(node: OnnxNode) -> str:
    product = node.call("MatMul", node.input(0), node.input(1))
    return node.call("Gelu", _sum(node, product, 2), approximate="tanh")


def _embed_layer_norm(node: OnnxNode) -> list[str]:
    """Import EmbedLayerNormalization: the normalised sum of three embeddings.

    Inputs: token ids (batch, tokens), segment ids, tables of tokens, positions and segments, gamma,
    beta, mask, position ids. Outputs: the normalised sum, the number of unmasked tokens per row,
    and the sum before the normalisation.
    """
    words, segments, tables = node.input(0), node.optional(1), (node.input(2), node.input(3))
    shape = node.shape(words)
    if len(shape) != 2:
        raise node.invalid(f"input_ids (input 0) is {show(shape)}, expected (batch, words)")
    where = node.optional(8)
    total = node.call("Gather", tables[0], words, axis=0)
    rows = node.call("Gather", tables[1], where, axis=0) if where else tables[1]
    if where is None:
        if node.shape(rows)[0] < shape[1]:
            raise node.invalid(
                f"position_embedding (input 3) has {node.shape(rows)[0]} rows, and input_ids "
                f"(input 0) {shape[1]} words per row"
            )
        rows = part(node, rows, 0, 0, shape[1])
    total = node.call("Add", total, rows)
    if segments is not None:
        total = node.call("Add", total, node.call("Gather", node.input(4), segments, axis=0))
    operands, epsilon = (total, node.input(5), node.input(6)), node.number("epsilon", _EPSILON)
    made = [node.call("LayerNormalization", *operands, epsilon=epsilon)]
    if len(node.outputs) > 1:
        mask = node.optional(7)
        made.append(
            filled(node, 0, shape[:1], DType.INT32)
            if mask is None
            else node.call("ReduceSum", mask, node.constant(np.array([1], np.int64)), keepdims=0)
        )
    return [*made, total][: max(len(node.outputs), 1)]


def _bias_add(node: OnnxNode) -> str:
    return _sum(node, node.call("Add", node.input(0), node.input(1)), 2)


def _bias_softmax(node: OnnxNode) -> str:
    """Import BiasSoftmax: softmax(x + bias), normalised over all dimensions from `axis` on.

    The bias may lack some of the dimensions before `axis`, and is broadcast over the missing ones.
    The missing dimensions are the last ones before `axis` if `is_inner_broadcast` is set, otherwise
    the first ones.
    """
    x, bias = node.input(0), node.input(1)
    shape, given = node.shape(x), node.shape(bias)
    axis = node.integer("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    if not 0 <= axis < len(shape) or len(given) > len(shape):
        raise node.invalid(
            f"attribute 'axis' is {axis} and the bias (input 1) {show(given)}, which do not fit "
            f"the input {show(shape)}"
        )
    rows, elements = prod(shape[:axis]), prod(shape[axis:])
    count = node.type(bias).elements // max(elements, 1)
    if count * elements != node.type(bias).elements or not count or rows % count:
        raise node.invalid(
            f"the bias (input 1) is {show(given)}, which does not broadcast to the input "
            f"{show(shape)} with its elements from axis {axis} on"
        )
    times = rows // count
    inner = node.integer("is_inner_broadcast", 1) != 0
    split = (count, times) if inner else (times, count)
    other = (count, 1) if inner else (1, count)
    total = node.call(
        "Add", node.reshape(x, (*split, elements)), node.reshape(bias, (*other, elements))
    )
    return node.reshape(node.call("Softmax", total, axis=2), shape)


def _renamed(op_type: str, node: OnnxNode) -> str:
    """Import a node as the ONNX operator `op_type`, which has the same inputs and attributes."""
    return node.call(op_type, *node.inputs, **node.attrs)


def _expand_dims(node: OnnxNode) -> str:
    axis = node.static_ints(1, "axis")
    if axis is None or len(axis) != 1:
        raise node.invalid("axis (input 1) is not one integer")
    return node.call("Unsqueeze", node.input(0), node.constant(np.array(axis, np.int64)))


RULES = (
    OnnxRule("GemmFastGelu", _gemm_fast_gelu, DOMAIN),
    OnnxRule("EmbedLayerNormalization", _embed_layer_norm, DOMAIN, types=_INTEGERS),
    OnnxRule("ExpandDims", _expand_dims, DOMAIN),
    *(
        OnnxRule(name, partial(_renamed, name), DOMAIN)
        for name in ("GatherND", "Pad", "Range", "Trilu")
    ),
    OnnxRule("BiasAdd", _bias_add, DOMAIN),
    OnnxRule("BiasSoftmax", _bias_softmax, DOMAIN),
    OnnxRule("FastGelu", _fast_gelu, DOMAIN),
    OnnxRule("BiasGelu", _bias_gelu, DOMAIN),
    OnnxRule("QuickGelu", _quick_gelu, DOMAIN),
    OnnxRule("SkipLayerNormalization", _skip_layer_norm, DOMAIN, "without mean and inv_std_var"),
    OnnxRule(
        "SkipSimplifiedLayerNormalization", _skip_rms_norm, DOMAIN, "without mean and inv_std_var"
    ),
    OnnxRule("SimplifiedLayerNormalization", _rms_norm, limits="without inv_std_var"),
)
