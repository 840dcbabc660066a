"""Constant folding: compute at compile time all values that depend only on constants.

Before:                         After:
    %1 = add(c0, c1)                %2 = mul(%0, c2)        c2 = c0 + c1
    %2 = mul(%0, %1)

Also called constant propagation.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.runtime.labels import LABELLED
from tilewright.compiler.sizes import dynamic_sizes

GROWTH_LIMIT_BYTES = 1 << 22
"""Maximum size in bytes of a folded value that is larger than its operands, such as an expanded
zero. The weights of a convolution in 8 bits that exceed the limit in float32 stay in 8 bits
(`integer_products`)."""


def constant_folding(graph: Graph) -> Graph:
    """Replace nodes whose operands are all constants by constants."""
    return rewrite(graph, _fold)


def _fold(rewriter: Rewriter, node: Node) -> str | None:
    arrays = [rewriter.array(value) for value in node.inputs]
    operands = [array for array in arrays if array is not None]
    if len(operands) != len(arrays) or not arrays or node.bodies:
        return None  # a body may run for any time, or forever
    if dynamic_sizes((rewriter.shape(node.outputs[0]), node.attrs)):
        return None
    if node.op == LABELLED:
        return None  # the node states the meaning of an output
    result = rewriter.type(node.outputs[0])
    size = prod(result.shape) * result.dtype.bytes
    if size > max(GROWTH_LIMIT_BYTES, sum(array.nbytes for array in operands)):
        return None
    if result.dtype is DType.BFLOAT16:
        return None  # NumPy has no such type, and the array's type becomes the constant's
    with np.errstate(all="ignore"):
        array = np.asarray(ops.get(node.op).reference(operands, node.attrs))
    if node.op == "trim" and array.shape != result.shape:
        return None  # the type states the largest extent, and this value has fewer elements
    return rewriter.constant(
        array.astype(result.dtype.numpy, copy=False).reshape(result.shape), node.outputs[0]
    )
