"""Costs of kernels and copies in a layout, estimated from the graph alone.

The unit is one operation of a core. A moved byte costs `OPERATIONS_A_BYTE`, the cost in an outer
cache. The factors are rounded from measurements of the kernels of ResNet-50, MobileNetV2,
DenseNet-121 and GoogLeNet in all layouts on one core (AVX-512). Two properties determine most of
the cost: whether the lanes run along one axis in all operands, and whether the lanes are full.
"""

from __future__ import annotations

from math import prod

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import MAX_LANE_STEP, ROW_MAJOR, Layout
from tilewright.compiler.memo import memo
from tilewright.compiler.ops.attributes import integer, ints
from tilewright.compiler.ops.shapes import FEW_TAPS
from tilewright.compiler.plan.workload import Halo, stored_bytes
from tilewright.compiler.sizes import is_dynamic

OPERATIONS_A_BYTE = 2.0

_LINE_BYTES = 64

_TORN = 1.25
"""Factor for the cost of memory traffic if vectors cross cache lines. Blocks of channels then
neither fill whole lines nor divide a line."""

_TRANSFORM_MACS = 8
"""Cost of transforming one number into Winograd's domain and reading it there, as a number of
multiplications."""

WEIGHT_MACS = 15.0
"""The value of `CoreModel.weight_macs` if no target is given. It is between the smallest and the
largest measured value."""

_MIXED = 10.0
"""Slowdown if vector lanes run along different axes in two operands, so that elements are loaded
one by one."""


_LINE_STARTS = 800.0
"""Cost of starting and ending the two passes over one line of a pool's output."""


@memo(4096)
def moved(kind: TensorType, layout: Layout, halo: Halo = ()) -> float:
    """Return the cost of reading or writing a value once, as it is stored in a layout."""
    torn = False
    if layout != ROW_MAJOR:
        last = layout.factors[-1]
        block = (last.mod or kind.shape[last.dim]) * kind.dtype.bytes
        fills_lines = block % _LINE_BYTES == 0
        torn = not fills_lines and (is_dynamic(block) or _LINE_BYTES % block != 0)
    return OPERATIONS_A_BYTE * stored_bytes(kind, layout, halo) * (_TORN if torn else 1.0)


def convolution(
    graph: Graph,
    node: Node,
    source: Layout,
    output: Layout,
    lanes: int,
    weight_macs: float = WEIGHT_MACS,
) -> float:
    """Return the cost of a convolution from `source` to `output` layout, without memory traffic.

    `weight_macs` is the number of multiplications that a core computes while it loads one float32
    weight from memory (`CoreModel.weight_macs`).
    """
    types = graph.types
    weight, result = types[node.inputs[1]].shape, types[node.output].shape
    work = 2.0 * types[node.output].elements * prod(weight[1:])
    together = 1.0
    if node.attr("accumulator") is not None and source != ROW_MAJOR and weight[1] > 1:
        # Contiguous elements are multiplied in groups, if the lanes are channels too.
        together = types[node.inputs[1]].dtype.bytes / 4 if output != ROW_MAJOR else _MIXED
    group = integer(node.attrs, "group", 1)
    spatial = len(weight) - 2
    steps = ints(node.attrs, "strides", (1,) * spatial)
    pointwise = set(steps) == {1} and prod(weight[2:]) == 1
    if group > 1 and weight[:2] == (group, 1):  # depthwise
        if source != output:
            return work * _MIXED
        if output != ROW_MAJOR:
            return work
        return work * _gathered(steps[-1]) * _filled(result[-1], lanes)
    if output != ROW_MAJOR:
        turned = 1.05 if source == ROW_MAJOR and pointwise else 1.0
        whole = _holds_vectors(source, lanes) and _holds_vectors(output, lanes)
        share = _winograd(node, weight, result, weight_macs) if whole else 1.0
        return work * turned * min(share, together)
    work *= together * _filled(prod(result[2:]) if pointwise else result[-1], lanes)
    if pointwise:
        return work * (1.05 if source == ROW_MAJOR else 1.15)
    return work * (_gathered(steps[-1]) if source == ROW_MAJOR else _MIXED)


def _winograd(
    node: Node, weight: tuple[int, ...], result: tuple[int, ...], weight_macs: float
) -> float:
    """Estimate the cost of Winograd's algorithm for a convolution, relative to the direct
    algorithm.

    The result is at most 1, because the direct algorithm is used if it is cheaper. The channels are
    assumed to be contiguous. The cost includes the multiplications, the transforms, and loading the
    weights. Transformed weights are larger, which matters if the image has few pixels. `weight` and
    `result` are shapes.
    """
    spatial = len(weight) - 2
    steps = ints(node.attrs, "strides", (1,) * spatial)
    plain = set(ints(node.attrs, "dilations", (1,))) == {1} and integer(node.attrs, "group", 1) == 1
    if not plain:
        return 1.0
    sides = [
        (taps, step, -(-taps // step), extent)
        for taps, step, extent in zip(weight[2:], steps, result[2:], strict=True)
        if taps > 1
    ]
    if not 1 <= len(sides) <= 2 or any(reach < 2 for _, _, reach, _ in sides):
        return 1.0
    pairs = weight[0] * weight[1]
    phases = weight[0] + weight[1] * prod(steps)
    weights = pairs * prod(weight[2:])
    direct = _fetched(weights * prod(result[2:]), weight_macs * weights)
    others = prod(result[2:]) // prod(extent for *_, extent in sides)
    best = direct
    for outputs in (2, 3, 4):
        if any(outputs > extent or outputs + reach > 7 for _, _, reach, extent in sides):
            continue
        tiles = others * prod(-(-extent // outputs) for *_, extent in sides)
        products = prod(
            step * (outputs + reach - 2) + taps - step * (reach - 1)
            for taps, step, reach, _ in sides
        )
        points = prod(outputs + reach - 1 for _, _, reach, _ in sides)
        cost = _fetched(pairs * products * tiles, weight_macs * pairs * products)
        best = min(best, cost + _TRANSFORM_MACS * points * tiles * phases)
    return best / direct


def _fetched(multiplications: float, fetch: float) -> float:
    """Return the time of multiplications whose weights are loaded from memory meanwhile.

    `fetch` is the time to load the weights. All times are in units of one multiplication. 30 % of
    the shorter time does not overlap with the longer one.
    """
    return max(multiplications, fetch) + 0.3 * min(multiplications, fetch)


def _holds_vectors(layout: Layout, lanes: int) -> bool:
    """Whether a layout stores consecutive channels in contiguous blocks of whole vectors."""
    return layout != ROW_MAJOR and (layout.factors[-1].mod or lanes) % lanes == 0


def window(graph: Graph, node: Node, layout: Layout, lanes: int) -> float:
    """Return the cost of a pool or channel normalisation that reads and writes one layout."""
    elements = graph.types[node.output].elements
    if node.attr("kernel") is None:  # its window runs along the channels
        return elements * (60.0 if layout == ROW_MAJOR else 450.0)
    kernel = ints(node.attrs, "kernel")
    work = 3.0 * elements * prod(kernel)
    large = prod(kernel) > FEW_TAPS
    if layout != ROW_MAJOR:
        return _two_passes(graph, node, 1.0) if large else work
    step = _gathered(ints(node.attrs, "strides", (1,) * len(kernel))[-1])
    filled = 1.2 * _filled(graph.types[node.output].shape[-1], lanes)
    pads = ints(node.attrs, "pads", (0,) * (2 * len(kernel)))
    if large or pads[len(kernel) - 1] or pads[-1]:
        return _two_passes(graph, node, step) * filled
    return work * filled * step


def _two_passes(graph: Graph, node: Node, step: float) -> float:
    """Return the cost of a pool with a large window, computed in two passes per row of outputs.

    The first pass reduces the window along all dimensions but the last; its results form one line.
    The second pass reduces along this line. `step` is the slowdown of strided loads along the line.
    """
    *across, along = ints(node.attrs, "kernel")
    outputs = graph.types[node.output]
    lines = outputs.elements // outputs.shape[-1] * graph.types[node.inputs[0]].shape[-1]
    starts = _LINE_STARTS * (outputs.elements // outputs.shape[-1])
    return starts + 3.0 * (lines * (prod(across) + 1) + outputs.elements * along * step)


def interpolation(graph: Graph, node: Node, layout: Layout) -> float:
    """Return the cost of an interpolation, whose results are weighted sums of a few elements of an
    image.

    If a row-major image is resized along its rows, the elements are loaded one by one, which costs
    more.
    """
    types = graph.types
    taps = prod(types[value].shape[0] for value in node.inputs[1::2])
    along_row = len(types[node.output].shape) - 1 in ints(node.attrs, "axes")
    gathered = _MIXED if layout == ROW_MAJOR and along_row else 1.0
    return 2.0 * types[node.output].elements * taps * gathered


def reduction(graph: Graph, node: Node, layout: Layout) -> float:
    """Return the cost of a sum over pixels in a layout.

    In a row-major layout, lanes run along the pixels and are summed at the end, which costs more.
    """
    return graph.types[node.inputs[0]].elements * (1.2 if layout == ROW_MAJOR else 1.0)


def _gathered(step: int) -> float:
    """Return the slowdown of a vectorised loop that loads every `step`-th element of a row."""
    return 1.1 if step == 1 else 1.6 if step <= MAX_LANE_STEP else _MIXED


def _filled(points: int, lanes: int) -> float:
    """Return the slowdown of a row of `points` elements because its last vector is partly empty.

    A remainder of at most half a vector costs half a vector.
    """
    half = max(1, lanes // 2)
    return -(-points // half) * half / points
