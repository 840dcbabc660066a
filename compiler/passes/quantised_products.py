"""Products of dequantised values and weights (QDQ), as products of integers with int32 sums.

Before:                                             After:
    %1 = conv((%0 - z) * s, (w - v) * t, b)             %2 = conv(%0 padded by z, w - v, -z * sum)
                                                        %1 = float32(%2) * (s * t) + b

`integer_products` describes the int32 sums. They are exact, whereas floats would be rounded at each
step; the scales are applied to the sums. The pass runs while constant integers are still separate
from their scales. It is omitted for targets whose products of 8-bit integers are not faster than
those of float32 (`Target.multiplies_bytes`).
"""

from __future__ import annotations

from functools import partial

from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.passes.integer_products import integer_product
from tilewright.compiler.passes.quantisation import IntegerFactor, unsigned
from tilewright.compiler.passes.rewrite import rewrite


def quantised_products(graph: Graph, factor: IntegerFactor = unsigned) -> Graph:
    """Replace products of dequantised values and weights by scaled products of the stored integers.

    `factor` maps a stored type to the type in which the target multiplies it.
    """
    return rewrite(graph, partial(integer_product, scaled=True, factor=factor))
