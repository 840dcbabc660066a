"""Bounds checks of index arguments before a compiled graph runs.

PyTorch rejects an index that is out of bounds. A compiled program would read the nearest element
instead, so that it never reads other memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_MOVES = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
    aten.permute.default,
    aten.transpose.int,
    aten.slice.Tensor,
    aten.select.int,
    aten.clone.default,
    aten.alias.default,
    aten._to_copy.default,
}
"""Operators that change no element, so that the result's elements are all from the argument."""


def source_of(node: fx.Node) -> fx.Node:
    """Return the node whose elements a node has, reached through operators that only move them."""
    while node.target in _MOVES and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def intersection(one: range, other: range) -> range:
    """Return the intersection of two ranges."""
    return range(max(one.start, other.start), min(one.stop, other.stop))


def are_within(positions: Any, bounds: range) -> bool:
    """Whether all elements of an integer tensor lie in a range."""
    if not positions.numel():
        return True
    low, high = positions.aminmax()
    return bool(low >= bounds.start and high < bounds.stop)
