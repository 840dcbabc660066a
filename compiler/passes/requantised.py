"""Remove a quantisation that has the scale and zero point by which its operand was dequantised.

Before:                                     After:
    %1 = (float32(%0) - 3) * 0.1                %0
    %2 = cast(round(%1 * 10) + 3) {to=uint8}

Quantisers write such pairs around data movement. The pass computes the pair for each of the 256 (or
65,536) values of the stored type with the NumPy references of the operators. It removes the pair if
all values are unchanged.
"""

from __future__ import annotations

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.passes.lookup_tables import every_value, function_of, values_of
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

_STORED = (*INT8_TYPES, DType.INT16, DType.UINT16)

_MOST_NODES = 8
"""Maximum number of nodes of a dequantisation and a quantisation: two casts, a subtraction and a
product; a quotient, a rounding, an addition and a cast."""


def requantised(graph: Graph) -> Graph:
    """Replace a value that is dequantised and quantised again by the stored integers.

    This is done only if the two conversions return each integer of the stored type unchanged.
    """
    return rewrite(graph, _same)


def _same(rewriter: Rewriter, node: Node) -> str | None:
    dtype = rewriter.type(node.outputs[0]).dtype
    if node.op != "cast" or dtype not in _STORED:
        return None
    found = function_of(rewriter, node, _STORED)
    if found is None:
        return None
    source, nodes = found
    if rewriter.type(source).dtype is not dtype or len(nodes) > _MOST_NODES:
        return None
    same = np.array_equal(values_of(rewriter, source, nodes), every_value(dtype))
    return source if same else None
