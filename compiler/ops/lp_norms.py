"""Lp norms: LpPool, GlobalLpPool and LpNormalization."""

from __future__ import annotations

import numpy as np

from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.pooling import window_attrs
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import Window
from tilewright.compiler.ops.wide_rules import in_wide_type


def _power(node: OnnxNode, x: str, p: int) -> str:
    """Emit |x| ** p."""
    match p:
        case 1:
            return node.emit("abs", [x])
        case 2:
            return node.emit("mul", [x, x])
        case _:
            magnitude = node.emit("abs", [x])
            return node.emit("pow", [magnitude, node.scalar(p, node.type(x).dtype)])


def _root(node: OnnxNode, total: str, p: int) -> str:
    """Emit total ** (1 / p)."""
    match p:
        case 1:
            return total
        case 2:
            return node.emit("sqrt", [total])
        case _:
            return node.emit("pow", [total, node.scalar(1 / p, node.type(total).dtype)])


def _order(node: OnnxNode) -> int:
    """Return the attribute `p`, which must be a positive integer; opset 1 states it as a float."""
    p = node.number("p", 2)
    if p < 1 or p != int(p):
        raise node.invalid(f"p is {p}, not a positive integer")
    return int(p)


def _onnx_lp_pool(node: OnnxNode) -> str:
    """Import LpPool: the p-th root of the sum of |x| ** p over each window.

    The sums are emitted as an average pooling with the divisor 1.
    """
    x, p = node.input(0), _order(node)
    dtype = node.type(x).dtype
    attrs, _, spatial = window_attrs(node)
    rank = len(spatial)
    pads = attrs["pads"]
    window = Window(attrs["kernel"], attrs["strides"], attrs["dilations"], pads[:rank], pads[rank:])
    ones = np.ones((1, 1, *window.output(spatial)), np.float32)
    counts = node.constant(to_memory(ones, dtype), dtype)
    total = node.emit("average_pool", [_power(node, x, p), counts], **attrs)
    return _root(node, total, p)


def _onnx_global_lp_pool(node: OnnxNode) -> str:
    x, p = node.input(0), _order(node)
    rank = len(node.shape(x))
    if rank < 3:
        raise node.invalid(f"the input has rank {rank}, not 3 or more")
    axes = tuple(range(2, rank))
    return _root(node, node.emit("reduce_sum", [_power(node, x, p)], axes=axes, keepdims=1), p)


def _onnx_lp_normalization(node: OnnxNode) -> str:
    """Import LpNormalization: x divided by its norm along an axis; a zero vector is unchanged."""
    x, p = node.input(0), _order(node)
    rank, axis = len(node.shape(x)), node.integer("axis", -1)
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    dtype = node.type(x).dtype
    total = node.emit("reduce_sum", [_power(node, x, p)], axes=(axis % rank,), keepdims=1)
    norm = _root(node, total, p)
    empty = node.emit("equal", [norm, node.scalar(0, dtype)])
    return node.emit("div", [x, node.emit("where", [empty, node.scalar(1, dtype), norm])])


RULES = (
    OnnxRule("LpPool", in_wide_type(_onnx_lp_pool)),
    OnnxRule("GlobalLpPool", in_wide_type(_onnx_global_lp_pool)),
    OnnxRule("LpNormalization", in_wide_type(_onnx_lp_normalization)),
)
