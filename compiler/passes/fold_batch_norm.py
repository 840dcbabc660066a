"""Fold batch normalisation into the convolution before it, or into a scale and a shift.

Before:                                             After:
    %1 = conv(%0, w, b)                                 %2 = conv(%0, w * s, (b - mean) * s + shift)
    %2 = batch_norm(%1, scale, shift, mean, var)            s = scale / sqrt(var + epsilon)

A batch_norm after another operator becomes `x * s + (shift - mean * s)`. The factors are computed
in float64. Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), section 3.2, folds in the same way.
"""

from __future__ import annotations

import numpy as np

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import number
from tilewright.compiler.passes.fold_scale import scale_conv, shift_conv
from tilewright.compiler.passes.rewrite import Rewriter, rewrite


def fold_batch_norm(graph: Graph) -> Graph:
    """Fold every batch_norm whose statistics are constants, and decompose all others.

    Raises:
        InvalidModelError: if a constant variance plus epsilon is not positive.
    """
    return rewrite(graph, _fold)


def _fold(rewriter: Rewriter, node: Node) -> str | None:
    if node.op != "batch_norm":
        return None
    value = node.inputs[0]
    arrays = [rewriter.array(v) for v in node.inputs[1:5]]
    if any(array is None for array in arrays):
        return _composed(rewriter, node)
    scale, shift, mean, variance = (np.asarray(a, np.float64) for a in arrays)
    epsilon = number(node.attrs, "epsilon", 1e-5)
    if (variance + epsilon <= 0).any():
        raise InvalidModelError(f"batch_norm '{node.name}': a variance is not positive")
    factor = scale / np.sqrt(variance + epsilon)
    offset = shift - mean * factor
    conv = rewriter.producer(value, "conv")
    if conv is not None and rewriter.used_once(value):
        return shift_conv(rewriter, scale_conv(rewriter, conv, factor), offset)
    rank, dtype = len(rewriter.shape(value)), rewriter.type(value).dtype.numpy
    column = (-1,) + (1,) * (rank - 2)
    multiplier = rewriter.constant(factor.reshape(column).astype(dtype), f"{node.name}.scale")
    addend = rewriter.constant(offset.reshape(column).astype(dtype), f"{node.name}.shift")
    return rewriter.emit("add", [rewriter.emit("mul", [value, multiplier]), addend])


def _composed(rewriter: Rewriter, node: Node) -> str:
    """Replace a batch normalisation whose statistics are computed at run time.

    Elementwise operators compute (x - mean) * (scale / sqrt(var + epsilon)) + shift.
    """
    value = node.inputs[0]
    rank, dtype = len(rewriter.shape(value)), rewriter.type(value).dtype.numpy
    scale, shift, mean, variance = (
        rewriter.emit("reshape", [v], {"shape": rewriter.shape(v) + (1,) * (rank - 2)})
        for v in node.inputs[1:5]
    )
    epsilon = rewriter.constant(
        np.asarray(number(node.attrs, "epsilon", 1e-5), dtype), f"{node.name}.epsilon"
    )
    deviation = rewriter.emit("sqrt", [rewriter.emit("add", [variance, epsilon])])
    factor = rewriter.emit("div", [scale, deviation])
    centred = rewriter.emit("sub", [value, mean])
    return rewriter.emit("add", [rewriter.emit("mul", [centred, factor]), shift])
