"""Enlarge images after the pointwise convolution that mixes their channels.

Before:                                             After:
    %1 = interpolate(%0, ...)       28x28 -> 56x56      %2 = conv(%0, w[:, :64])        28x28
    %2 = concat(%1, %x) {axis=1}                        %3 = interpolate(%2, ...)       56x56
    %3 = conv(%2, w: 1x1, b)                            %4 = conv(%x, w[:, 64:], b)
                                                        %5 = add(%4, %3)

A pointwise convolution mixes channels and an interpolation mixes pixels, both linearly. They
therefore commute, and the convolution then runs on fewer pixels. The decoder of SegFormer (Xie et
al., 2021), which enlarges, joins and mixes features of several sizes, then needs a third of the
multiplications. A bias commutes with an interpolation whose weights sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import dimension, integer, ints
from tilewright.compiler.passes.pool_first import is_pointwise
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.sizes import typical


def enlarge_last(graph: Graph) -> Graph:
    """Swap interpolations with the pointwise convolutions after them, if that saves work."""
    return rewrite(graph, _rule)


def _rule(rewriter: Rewriter, node: Node) -> str | None:
    if node.op != "conv" or integer(node.attrs, "group", 1) != 1:
        return None
    weight = rewriter.array(node.inputs[1])
    if weight is None or not is_pointwise(rewriter, node):
        return None
    pieces = _pieces(rewriter, node.inputs[0])
    large = [_enlarged(rewriter, piece, len(weight)) for piece in pieces]
    if not any(large):
        return None
    parts: list[tuple[Node | None, list[str], list[np.ndarray]]] = []
    first = 0
    for piece, enlarged in zip(pieces, large, strict=True):
        channels = rewriter.shape(piece)[1]
        columns = weight[:, first : first + channels]
        first += channels
        rest = next((part for part in parts if part[0] is None), None)
        if enlarged is None and rest is not None:
            rest[1].append(piece)
            rest[2].append(columns)
        else:
            parts.append((enlarged, [piece], [columns]))
    # the bias is added to a piece that is not enlarged
    parts.sort(key=lambda part: part[0] is not None)
    total, bias = "", node.inputs[2:]
    for enlarged, values, weights in parts:
        mixed = _mixed(rewriter, node, enlarged, values, weights, bias)
        total, bias = rewriter.emit("add", [total, mixed]) if total else mixed, ()
    return total


def _pieces(rewriter: Rewriter, value: str) -> Sequence[str]:
    """The operands of a concatenation along the channels of an image.

    For any other value, the value alone.
    """
    node = rewriter.producer(value, "concat")
    if node is None or not rewriter.used_once(value):
        return (value,)
    rank = len(rewriter.shape(value))
    return node.inputs if dimension(integer(node.attrs, "axis"), rank) == 1 else (value,)


def _enlarged(rewriter: Rewriter, value: str, filters: int) -> Node | None:
    """The interpolation that computes an image, if it is worth moving after the convolution.

    The interpolation must have no other reader and weights that sum to 1, and the move must save
    arithmetic for a convolution with `filters` output channels. Otherwise, the result is None.
    """
    node = rewriter.producer(value, "interpolate")
    if node is None or not rewriter.used_once(value) or min(ints(node.attrs, "axes")) < 2:
        return None
    for weights in map(rewriter.array, node.inputs[2::2]):
        if weights is None or not np.allclose(weights.sum(axis=0), 1, rtol=0, atol=1e-5):
            return None
    before, after = rewriter.shape(node.inputs[0]), rewriter.shape(value)
    taps = prod(rewriter.shape(v)[0] for v in node.inputs[1::2])
    saved = filters * before[1] * (prod(after[2:]) - prod(before[2:]))
    more = ((filters - before[1]) * taps + filters) * prod(after[2:])
    return node if typical(saved - more) > 0 else None


def _mixed(
    rewriter: Rewriter,
    conv: Node,
    enlarged: Node | None,
    values: Sequence[str],
    columns: Sequence[np.ndarray],
    bias: Sequence[str],
) -> str:
    """Emit the part of a pointwise convolution that reads some of the concatenated images.

    These images are either the result of one interpolation, which is moved after the convolution,
    or `values`, which are convolved unchanged.

    Args:
        rewriter: the graph under construction.
        conv: the original convolution.
        enlarged: the interpolation; None to convolve `values`.
        values: the images; unused with an interpolation.
        columns: the columns of the weights that belong to the images.
        bias: the bias, if this part adds it; else empty.
    """
    if enlarged is not None:
        (x, *table) = enlarged.inputs
    else:
        x = values[0] if len(values) == 1 else rewriter.emit("concat", values, {"axis": 1})
    weight = rewriter.constant(np.concatenate(columns, axis=1), conv.inputs[1])
    mixed = rewriter.emit("conv", [x, weight, *bias], conv.attrs)
    if enlarged is None:
        return mixed
    return rewriter.emit("interpolate", [mixed, *table], enlarged.attrs)
