"""Compute averages over space before the pointwise convolution that they follow.

Before:                                     After:
    %1 = conv(%0, w: 1x1)                       %1 = average_pool(%0) {kernel=(2, 2)}
    %2 = average_pool(%1) {kernel=(2, 2)}       %2 = conv(%1, w: 1x1)

A pointwise convolution mixes channels and an average mixes pixels, both linearly. They therefore
commute, and the convolution then runs on fewer pixels. The transitions of DenseNet (Huang et al.,
2017) then need a quarter of the multiplications. A bias commutes with an average that does not
count padding.
"""

from __future__ import annotations

from math import prod

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import integer, ints
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.sizes import typical


def pool_first(graph: Graph) -> Graph:
    """Swap averages with the pointwise convolutions before them, if that saves arithmetic."""
    return rewrite(graph, _rule)


def _rule(rewriter: Rewriter, node: Node) -> str | None:
    if node.op not in ("average_pool", "reduce_mean"):
        return None
    value = node.inputs[0]
    conv = rewriter.producer(value, "conv")
    if conv is None or not rewriter.used_once(value) or not is_pointwise(rewriter, conv):
        return None
    if not _averages_pixels(rewriter, node, biased=len(conv.inputs) == 3):
        return None
    if not _saves(rewriter, conv, node):
        return None
    pooled = rewriter.emit(node.op, [conv.inputs[0], *node.inputs[1:]], node.attrs)
    return rewriter.emit("conv", [pooled, *conv.inputs[1:]], conv.attrs)


def is_pointwise(rewriter: Rewriter, conv: Node) -> bool:
    """Whether a convolution only mixes channels: a window of one tap that reads each pixel once."""
    spatial = len(rewriter.shape(conv.inputs[1])) - 2
    return (
        all(extent == 1 for extent in rewriter.shape(conv.inputs[1])[2:])
        and all(stride == 1 for stride in ints(conv.attrs, "strides", (1,) * spatial))
        and not any(ints(conv.attrs, "pads", (0,) * 2 * spatial))
    )


def _averages_pixels(rewriter: Rewriter, node: Node, *, biased: bool) -> bool:
    """Whether a node computes averages over the pixels of each channel.

    If `biased`, the averages of a constant image must also be the same constant. This excludes
    nodes that count padding, whose pixels are 0.
    """
    if node.op == "reduce_mean":
        rank = len(rewriter.shape(node.inputs[0]))
        axes = [axis % rank for axis in ints(node.attrs, "axes", tuple(range(rank)))]
        return bool(integer(node.attrs, "keepdims", 1)) and min(axes, default=0) >= 2
    if len(node.inputs) == 2:  # reciprocal counts, one per pixel
        counts = rewriter.shape(node.inputs[1])
        rank = len(ints(node.attrs, "kernel"))
        if len(counts) > rank and counts[-rank - 1] != 1:
            return False
        return not biased or not integer(node.attrs, "count_include_pad", 0)
    return not biased or not any(ints(node.attrs, "pads", ()))


def _saves(rewriter: Rewriter, conv: Node, node: Node) -> bool:
    """Whether averaging before the convolution saves arithmetic.

    Fewer pixels are convolved, but an average is computed for each channel of the convolution's
    input instead of its output.
    """
    before, after = rewriter.shape(conv.outputs[0]), rewriter.shape(node.outputs[0])
    filters, channels = rewriter.shape(conv.inputs[1])[:2]
    pixels, pooled = prod(before[2:]), prod(after[2:])
    taps = prod(ints(node.attrs, "kernel")) if node.op == "average_pool" else pixels // pooled
    more = rewriter.shape(conv.inputs[0])[1] - filters
    return typical(filters * channels * (pixels - pooled) - more * pooled * taps) > 0
