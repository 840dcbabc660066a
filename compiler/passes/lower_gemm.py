"""Lower Gemm to matmul and bias.

Before:                                             After:
    %2 = gemm(%0, w, c) {alpha=2, trans_b=1}            %1 = transpose(w) {perm=(1, 0)}
                                                        %2 = matmul(%0, %1, c)   w scaled by 2

`alpha` scales the constant factor of the product, and `beta` scales `c`. A value that is computed
at run time is scaled by a `mul`.
"""

from __future__ import annotations

import numpy as np

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import integer, number
from tilewright.compiler.passes.rewrite import Rewriter, rewrite


def lower_gemm(graph: Graph) -> Graph:
    """Replace every gemm by a matmul, with a bias if the gemm has one."""
    return rewrite(graph, _lower)


def _lower(rewriter: Rewriter, node: Node) -> str | None:
    if node.op != "gemm":
        return None
    a, b = node.inputs[:2]
    if integer(node.attrs, "trans_a", 0):
        a = rewriter.emit("transpose", [a], {"perm": (1, 0)})
    if integer(node.attrs, "trans_b", 0):
        b = _transposed(rewriter, b)
    alpha = number(node.attrs, "alpha", 1.0)
    if rewriter.array(b) is not None or rewriter.array(a) is None:
        b = scaled(rewriter, b, alpha)
    else:
        a = scaled(rewriter, a, alpha)
    if len(node.inputs) < 3 or not node.inputs[2]:
        return rewriter.emit("matmul", [a, b])
    c = scaled(rewriter, node.inputs[2], number(node.attrs, "beta", 1.0))
    return rewriter.emit("matmul", [a, b, c])


def scaled(rewriter: Rewriter, value: str, factor: float) -> str:
    """Multiply a value by a number: scale a constant, or add a `mul`; return the new value."""
    if factor == 1.0:
        return value
    array = rewriter.array(value)
    dtype = rewriter.type(value).dtype
    if array is not None:
        return rewriter.constant((array * factor).astype(array.dtype), f"{value}.scaled")
    number = rewriter.constant(np.asarray(factor, dtype.numpy), f"{value}.factor")
    return rewriter.emit("mul", [value, number])


def _transposed(rewriter: Rewriter, value: str) -> str:
    array = rewriter.array(value)
    if array is not None:
        return rewriter.constant(np.ascontiguousarray(array.T), f"{value}.transposed")
    return rewriter.emit("transpose", [value], {"perm": (1, 0)})
