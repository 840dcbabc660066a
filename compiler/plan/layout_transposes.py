"""Transposes between an image and its rows of channels, which need no copy in some layouts.

Before:                                             After (the image is channels-last):
    %1 = conv(%0, w)           1x96x56x56               {conv} -> 0 2 3 1
    %2 = transpose(%1)         1x56x56x96               %2 needs no copy
    %3 = layer_norm(%2, ...)                            {layer_norm}

The rows of channels of an image are the NHWC value with the same elements: one row per pixel, with
all its channels. A channels-last image (logically NCHW) and its rows of channels have the same
bytes. Such a transpose is therefore a separate group, and layout assignment decides whether it is a
view or a copy. Other transposes become index maps of the kernels around them (`fusion`).
"""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.passes.transposes import permutation

RANKS = (3, 4, 5)
"""Supported ranks of tensors with channels: batch, channels, and one to three spatial
dimensions."""

_REACH = 64
"""Maximum number of values that are visited to find a convolution, pool or interpolation near a
transpose."""


def is_to_rows(graph: Graph, node: Node) -> bool:
    """Whether a transpose moves the channels of its operand (dimension 1) to the last dimension."""
    rank = len(graph.types[node.output].shape)
    return rank in RANKS and permutation(node, rank) == (0, *range(2, rank), 1)


def is_to_image(graph: Graph, node: Node) -> bool:
    """Whether a transpose moves the last dimension of its operand to the channels (dimension 1)."""
    rank = len(graph.types[node.output].shape)
    return rank in RANKS and permutation(node, rank) == (0, rank - 1, *range(1, rank - 1))


def turns(graph: Graph) -> frozenset[str]:
    """Return the names of the transposes between images (NCHW) and their rows of channels (NHWC).

    An image is a value that a convolution, pool or interpolation reads or computes, possibly
    through elementwise operators.
    """
    return frozenset(
        node.name
        for node in graph.nodes
        if node.op == "transpose"
        and (
            (is_to_rows(graph, node) and _is_image(graph, node.inputs[0]))
            or (is_to_image(graph, node) and _is_image(graph, node.output))
        )
    )


def _is_image(graph: Graph, value: str) -> bool:
    """Whether a convolution, pool or interpolation reads or computes a value, possibly through
    elementwise operators.
    """
    shape = graph.types[value].shape
    found, queue = {value}, [value]
    while queue and len(found) < _REACH:
        current = queue.pop()
        maker = graph.producer(current)
        beside: list[str] = []
        if maker is not None:
            if _has_windows(maker):
                return True
            if ops.get(maker.op).kind is OpKind.ELEMENTWISE:
                beside += maker.inputs
        for reader in graph.consumers(current):
            if _has_windows(reader) and reader.inputs[0] == current:
                return True
            if ops.get(reader.op).kind is OpKind.ELEMENTWISE:
                beside.append(reader.output)
        for each in beside:
            if each not in found and each not in graph.constants:
                found.add(each)
                queue += [each] if graph.types[each].shape == shape else []
    return False


def _has_windows(node: Node) -> bool:
    return node.op in ("conv", "interpolate") or ops.get(node.op).kind is OpKind.WINDOW
