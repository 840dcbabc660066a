"""Placement of values in memory: layouts, halos, and the offset of a box inside a larger tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, strides
from tilewright.compiler.memo import memo
from tilewright.compiler.plan.symbolic_distance import open_distance
from tilewright.compiler.plan.workload import Halo
from tilewright.compiler.sizes import is_dynamic


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a value in memory: its layout, and the zeros stored around its elements."""

    layout: Layout = ROW_MAJOR
    halo: Halo = ()

    def __post_init__(self) -> None:
        if self.halo and not any(any(pair) for pair in self.halo):
            object.__setattr__(self, "halo", ())


def same_storage(shape: tuple[int, ...], first: Placement, second: Placement) -> bool:
    """Whether two placements of a tensor have equal buffer sizes and element offsets.

    For example, NCHW16c and row-major are the same storage for an image of one pixel, if the number
    of channels is a multiple of 16.
    """
    if first == second:
        return True
    sizes = (strides(shape, place.layout, place.halo)[1] for place in (first, second))
    return len(set(sizes)) == 1 and distance(shape, first, shape, second, (0,) * len(shape)) == 0


@memo(4096)
def distance(
    whole_shape: tuple[int, ...],
    whole: Placement,
    shape: tuple[int, ...],
    part: Placement,
    start: tuple[int, ...],
) -> int | None:
    """Return the offset of a box inside a tensor if the box can be used like a separate tensor.

    The result is in elements, from the start of the buffer of `whole_shape` to the first element of
    the box. It is None unless all elements of the box have the same relative addresses as in a
    separate buffer of `shape` with the placement `part`. `start` is the index of the box's first
    element. For example, a range of channels of an NCHW16c value of batch 1 is such a box if it
    starts at a multiple of 16. Addresses are sums over the dimensions, so each dimension is
    compared separately.
    """
    if any(map(is_dynamic, (*whole_shape, *shape, *start))):
        return open_distance(
            whole_shape, (whole.layout, whole.halo), shape, (part.layout, part.halo), start
        )
    total = 0
    addresses = zip(_addresses(whole_shape, whole), _addresses(shape, part), start, strict=True)
    for outer, inner, first in addresses:
        if not inner.size:
            return None
        apart = outer[first : first + inner.size] - inner
        if (apart != apart[0]).any():
            return None
        total += int(apart[0])
    return total


def _addresses(shape: tuple[int, ...], place: Placement) -> list[np.ndarray]:
    """Return, per dimension, the offset that each index adds to an element's address, in
    elements."""
    result = [np.zeros(extent, np.int64) for extent in shape]
    steps, _ = strides(shape, place.layout, place.halo)
    for factor, step in zip(place.layout.resolved(len(shape)), steps, strict=True):
        before = place.halo[factor.dim][0] if place.halo else 0
        index = (np.arange(shape[factor.dim]) + before) // factor.div
        result[factor.dim] += (index % factor.mod if factor.mod else index) * step
    return result
