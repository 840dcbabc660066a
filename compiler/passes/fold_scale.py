"""Fold scales and shifts by constants into the convolution or matmul before them.

Before:                         After:
    %1 = conv(%0, w)                %3 = conv(%0, w * s, t)
    %2 = mul(%1, s)
    %3 = add(%2, t)

    %1 = matmul(%0, w)              %2 = matmul(%0, w, t)
    %2 = add(%1, t)

`s` and `t` are scalars, or have one value per output channel (conv) or output column (matmul).
Products are computed in float64 and rounded once.
"""

from __future__ import annotations

import numpy as np

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.sizes import is_dynamic


def fold_scale(graph: Graph) -> Graph:
    """Fold `mul` and `add` by per-channel constants into conv and matmul."""
    return rewrite(graph, _fold)


def _fold(rewriter: Rewriter, node: Node) -> str | None:
    if node.op not in ("mul", "add"):
        return None
    for value, other in (node.inputs, node.inputs[::-1]):
        constant = rewriter.array(other)
        anchor = rewriter.producer(value)
        if constant is None or anchor is None or not rewriter.used_once(value):
            continue
        shape = rewriter.shape(value)
        if rewriter.shape(node.outputs[0]) != shape or not rewriter.type(value).dtype.is_float:
            continue
        if anchor.op == "conv":
            channels = per_dimension(constant, shape, 1)
            if channels is None or not _has_constant_bias(rewriter, anchor):
                continue
            if node.op == "add":
                return shift_conv(rewriter, value, channels)
            if rewriter.array(anchor.inputs[1]) is not None:
                return scale_conv(rewriter, anchor, channels)
        if anchor.op == "matmul" and len(rewriter.shape(anchor.inputs[1])) >= 2:
            columns = per_dimension(constant, shape, len(shape) - 1)
            if columns is None or not _has_constant_bias(rewriter, anchor):
                continue
            if node.op == "add":
                return _shift_matmul(rewriter, anchor, columns)
            if rewriter.array(anchor.inputs[1]) is not None:
                return _scale_matmul(rewriter, anchor, columns)
    return None


def per_dimension(array: np.ndarray, shape: tuple[int, ...], dim: int) -> np.ndarray | None:
    """Return an array as `shape[dim]` float64 values, if it varies along dimension `dim` only.

    `shape` is the shape to which the array broadcasts. The result is None if the array varies along
    another dimension or the extent is dynamic.
    """
    if array.ndim > len(shape) or is_dynamic(shape[dim]):
        return None
    padded = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if any(extent != 1 for d, extent in enumerate(padded.shape) if d != dim):
        return None
    return np.broadcast_to(padded.reshape(-1).astype(np.float64), (shape[dim],))


def scale_conv(rewriter: Rewriter, conv: Node, factor: np.ndarray) -> str:
    """Multiply the output channels of a convolution by `factor`, and return the new value.

    The factor is folded into a constant weight and bias. If either is computed at run time, a `mul`
    after the convolution applies it.
    """
    weight = rewriter.array(conv.inputs[1])
    bias = rewriter.array(conv.inputs[2]) if len(conv.inputs) > 2 else None
    if weight is None or (len(conv.inputs) > 2 and bias is None):
        column = factor.reshape((-1,) + (1,) * (len(rewriter.shape(conv.outputs[0])) - 2))
        dtype = rewriter.type(conv.outputs[0]).dtype.numpy
        multiplier = rewriter.constant(column.astype(dtype), f"{conv.name}.scale")
        return rewriter.emit("mul", [conv.outputs[0], multiplier])
    column = factor.reshape((-1,) + (1,) * (weight.ndim - 1))
    # Computed piece by piece, because a float64 copy of all weights would take long.
    scaled = np.empty_like(weight)
    np.multiply(weight, column, out=scaled, dtype=np.float64, casting="unsafe")
    inputs = [conv.inputs[0], rewriter.constant(scaled, f"{conv.inputs[1]}.scaled")]
    if bias is not None:
        inputs.append(
            rewriter.constant((bias * factor).astype(bias.dtype), f"{conv.inputs[2]}.scaled")
        )
    return rewriter.emit("conv", inputs, conv.attrs)


def shift_conv(rewriter: Rewriter, value: str, shift: np.ndarray) -> str:
    """Add one number per channel to a value, and return the new value.

    The shift is folded into the bias of the preceding convolution, or is an `add` if that is not
    possible.
    """
    conv = rewriter.producer(value, "conv")
    dtype = rewriter.type(value).dtype.numpy
    if conv is None or not _has_constant_bias(rewriter, conv):
        column = shift.reshape((-1,) + (1,) * (len(rewriter.shape(value)) - 2))
        addend = rewriter.constant(column.astype(dtype), f"{value}.shift")
        return rewriter.emit("add", [value, addend])
    bias = rewriter.array(conv.inputs[2]) if len(conv.inputs) > 2 else None
    total = shift if bias is None else bias.astype(np.float64) + shift
    constant = rewriter.constant(total.astype(dtype), f"{conv.inputs[1]}.bias")
    return rewriter.emit("conv", [*conv.inputs[:2], constant], conv.attrs)


def _has_constant_bias(rewriter: Rewriter, node: Node) -> bool:
    return len(node.inputs) < 3 or rewriter.array(node.inputs[2]) is not None


def _scale_matmul(rewriter: Rewriter, matmul: Node, factor: np.ndarray) -> str:
    b = rewriter.array(matmul.inputs[1])
    assert b is not None
    inputs = [
        matmul.inputs[0],
        rewriter.constant((b * factor).astype(b.dtype), f"{matmul.inputs[1]}.scaled"),
    ]
    if len(matmul.inputs) > 2:
        bias = rewriter.array(matmul.inputs[2])
        assert bias is not None
        inputs.append(
            rewriter.constant((bias * factor).astype(bias.dtype), f"{matmul.inputs[2]}.scaled")
        )
    return rewriter.emit("matmul", inputs, matmul.attrs)


def _shift_matmul(rewriter: Rewriter, matmul: Node, shift: np.ndarray) -> str:
    dtype = rewriter.type(matmul.outputs[0]).dtype.numpy
    total = shift
    if len(matmul.inputs) > 2:
        bias = rewriter.array(matmul.inputs[2])
        assert bias is not None
        total = bias.astype(np.float64) + shift
    constant = rewriter.constant(total.astype(dtype), f"{matmul.inputs[1]}.bias")
    return rewriter.emit("matmul", [*matmul.inputs[:2], constant], matmul.attrs)
