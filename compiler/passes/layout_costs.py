"""What kernels and copies cost in a layout, as far as a graph shows it.

In operations: a core multiplies and adds about as often as it moves a byte of its outer caches
twice. Factors are rounded from kernels of ResNet-50, MobileNetV2, DenseNet-121 and GoogLeNet, timed
in all layouts on one core (AVX-512): what counts is that the lanes run along one axis in all
operands, and are full.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from compiler.graph.ir import Graph, Node
from compiler.graph.types import TensorType
from compiler.loops.layout import ROW_MAJOR, Layout, strides
from compiler.passes.attributes import ints, number
from compiler.workload import Halo

OPERATIONS_A_BYTE = 2.0

_LINE_BYTES = 64

_TORN = 1.25
"""Vectors of a value whose channels, which lie together, do not end where a cache line does."""

_MIXED = 10.0
"""Lanes along one axis in one operand and along another in the next: elements come one by one."""


@lru_cache(maxsize=4096)
def moved(kind: TensorType, layout: Layout, halo: Halo = ()) -> float:
    """Reading or writing a value once, as it lies."""
    bytes_ = strides(kind.shape, layout, halo)[1] * kind.dtype.bytes
    torn = False
    if layout != ROW_MAJOR:
        last = layout.factors[-1]
        torn = (last.mod or kind.shape[last.dim]) * kind.dtype.bytes % _LINE_BYTES != 0
    return OPERATIONS_A_BYTE * bytes_ * (_TORN if torn else 1.0)


def convolution(graph: Graph, node: Node, source: Layout, output: Layout, lanes: int) -> float:
    """A convolution that reads and writes these layouts, but for the traffic."""
    types = graph.types
    weight, result = types[node.inputs[1]].shape, types[node.output].shape
    work = 2.0 * types[node.output].elements * prod(weight[1:])
    group = int(number(node, "group", 1))
    spatial = len(weight) - 2
    steps = ints(node, "strides", (1,) * spatial)
    unit = all(step == 1 for step in steps)
    pointwise = unit and prod(weight[2:]) == 1
    if group > 1 and weight[:2] == (group, 1):  # depthwise
        if source == output:
            return work if output != ROW_MAJOR else work * (2.0 if unit else 6.0)
        return work * _MIXED
    if output != ROW_MAJOR:
        turned = 1.05 if source == ROW_MAJOR and pointwise else 1.0
        return work * turned * _winograd(node, source, output, weight, result)
    points = prod(result[2:]) if pointwise else result[-1]
    work *= _rounded(points, lanes // 2) / points
    if pointwise:
        return work * (1.05 if source == ROW_MAJOR else 1.15)
    return work * (1.1 if unit and source == ROW_MAJOR else _MIXED)


def _winograd(
    node: Node,
    source: Layout,
    output: Layout,
    weight: tuple[int, ...],
    result: tuple[int, ...],
) -> float:
    """Less than 1 where Winograd's algorithm, which reads and writes one layout, may do it."""
    plain = (
        weight[2:] == (3, 3)
        and set(ints(node, "strides", (1,))) == {1}
        and set(ints(node, "dilations", (1,))) == {1}
        and number(node, "group", 1) == 1
    )
    # below some 8 pixels and 32 channels, its transforms cost what they save
    large = min(result[2:]) >= 8 and min(weight[:2]) >= 32
    return 0.4 if plain and large and source == output != ROW_MAJOR and _is_blocked(output) else 1.0


def _is_blocked(layout: Layout) -> bool:
    return any(factor.mod is not None for factor in layout.factors)


def window(graph: Graph, node: Node, layout: Layout) -> float:
    """A pool, or a normalisation over neighbouring channels, that keeps its operand's layout."""
    elements = graph.types[node.output].elements
    if node.attr("kernel") is None:  # its window runs along the channels
        return elements * (60.0 if layout == ROW_MAJOR else 450.0)
    kernel = ints(node, "kernel")
    work = 3.0 * elements * prod(kernel)
    if layout != ROW_MAJOR:
        return work
    unit = all(step == 1 for step in ints(node, "strides", (1,) * len(kernel)))
    return work * (1.5 if unit else 7.0)


def reduction(graph: Graph, node: Node, layout: Layout) -> float:
    """A sum over pixels: lanes along the pixels are added up at the end."""
    return graph.types[node.inputs[0]].elements * (4.0 if layout == ROW_MAJOR else 1.0)


def _rounded(number: int, block: int) -> int:
    return -(-number // block) * block
