"""Sources of 16 bits, of which products of pairs are made where their sums fit in int32."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.passes.test_integer_products import WIDE, after, anchor, conv, matmul, pair
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.ops.products import INT16_TYPES
from tilewright.compiler.passes.quantisation import unsigned


def of_words(stored: DType) -> DType | None:
    return DType.INT16 if stored in INT16_TYPES else unsigned(stored)


UNSIGNED = {"source": DType.UINT16, "scaled": True}
SIGNED = {"source": DType.INT16, "scaled": True}
"""Their zero point is 3."""


@pytest.mark.parametrize(
    "graph",
    [
        matmul(**UNSIGNED),
        matmul(**UNSIGNED, zero=None, weight=DType.UINT8, each=(5,)),
        matmul(**SIGNED, zero=-32768, gemm={}),
        matmul(source=DType.INT16, values=WIDE, depth=3, columns=2),
        matmul(**UNSIGNED, depth=128, values=np.full((128, 5), 255)),
        matmul(**SIGNED, depth=511, values=np.full((511, 5), -128)),
        conv(**UNSIGNED, bias=True, strides=(2, 2)),
        conv(**UNSIGNED, channels=3, zero=65535, strides=(2, 2)),
        conv(**UNSIGNED, channels=8, group=2, weight=DType.UINT8),
    ],
)
def test_16_bits_are_multiplied_in_pairs(graph: Graph) -> None:
    """By weights of int16, which hold asymmetric ones of 8 bits as they are."""
    scaled = "float32" in {kind.dtype for kind in graph.types.values()}
    found = after(graph, scaled, of_words)
    product = anchor(found)
    kinds = [found.types[value].dtype for value in product.inputs[:2]]
    assert kinds == [DType.INT16] * 2 and product.attr("accumulator") == "int32"
    assert after(graph, scaled).nodes == graph.nodes, "the target says whether it multiplies them"


@pytest.mark.parametrize(
    "graph",
    [
        # 65535 * 255 * 129 leaves int32, and 32768 * 128 * 512 is the first one that does
        matmul(**UNSIGNED, zero=None, depth=129, values=np.full((129, 5), 255)),
        matmul(**SIGNED, zero=None, depth=512, values=np.full((512, 5), -128)),
        conv(**UNSIGNED, channels=4, group=4),  # a channel alone has no pairs
        conv(**UNSIGNED),  # Winograd's algorithm is faster
        pair({"kind": DType.UINT16, "scale": 0.5}, {"scale": 0.25}),
    ],
)
def test_16_bits_whose_sums_leave_int32_stay_floats(graph: Graph) -> None:
    assert after(graph, True, of_words).nodes == graph.nodes
