"""Products of two dequantised matrices (QDQ attention), as products of integers with int32 sums.

Before:                                             After:
    %1 = matmul((%0 - y) * s, (%8 - z) * t)             %2 = matmul(%0, %8) - corrections
                                                        %1 = float32(%2) * (s * t)

Both matrices are computed at run time. `integer_activation_products` describes the int32 sums,
which are exact.

The pass runs after the pass `attention`, which fuses two products and the softmax between them into
one kernel. It does so only if the attention weights are not quantised. The fused kernel computes
with floats, and is faster than two products of integers.

Like `quantised_products`, this pass is omitted for targets whose products of 8-bit integers are not
faster than those of float32 (`Target.multiplies_bytes`).
"""

from __future__ import annotations

from functools import partial

from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.passes.integer_activation_products import activation_product
from tilewright.compiler.passes.quantisation import IntegerFactor, unsigned
from tilewright.compiler.passes.rewrite import rewrite


def quantised_activation_products(graph: Graph, factor: IntegerFactor = unsigned) -> Graph:
    """Replace products of two dequantised matrices by scaled products of the 8-bit matrices.

    `factor` maps a stored type to the type in which the target multiplies it.
    """
    return rewrite(graph, partial(activation_product, scaled=True, factor=factor))
