"""Bounds checks of index arguments before a compiled graph runs.

PyTorch raises an error for an index out of bounds. A compiled program clamps such an index instead,
so that it never reads other memory. Calls with such indices therefore run in PyTorch.
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
"""Operators that rearrange or repeat elements without computing new ones. All elements of the
result are elements of the first argument."""


def source_of(node: fx.Node) -> fx.Node:
    """Return the node from which a node's value takes its elements.

    Operators that only move or copy elements, such as `view` or `permute`, are skipped: the source
    of `x.view(-1).t()` is `x`.
    """
    while node.target in _MOVES and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def intersection(one: range, other: range) -> range:
    """Return the integers that lie in both ranges, as a range with step 1."""
    return range(max(one.start, other.start), min(one.stop, other.stop))


def are_within(positions: Any, bounds: range) -> bool:
    """Whether all elements of an integer tensor lie in a range."""
    if not positions.numel():
        return True
    low, high = positions.aminmax()
    return bool(low >= bounds.start and high < bounds.stop)
