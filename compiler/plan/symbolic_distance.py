"""The offset of a box in the buffer of a tensor with dynamic extents.

An address is a sum over dimensions. Along a dimension, it is a sum over the factors of the layout,
the parts into which the layout divides the index. `compiler.plan.placement.distance` enumerates all
addresses; this module compares them factor by factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from tilewright.compiler.loops.layout import Factor, Layout, strides
from tilewright.compiler.sizes import always_less, exact_quotient, is_dynamic

Halo = tuple[tuple[int, int], ...]

_Along = tuple[list[tuple[Factor, int]], int]
"""The layout factors of one dimension with their strides, and the number of halo zeros before its
first element."""


def open_distance(
    whole_shape: tuple[int, ...],
    whole: tuple[Layout, Halo],
    shape: tuple[int, ...],
    part: tuple[Layout, Halo],
    start: tuple[int, ...],
) -> int | None:
    """Return the offset of a box in the buffer of a tensor, in elements, for dynamic sizes.

    The result is that of `compiler.plan.placement.distance`. It is None unless the box is proven to
    be stored like a separate tensor for all sizes. `whole` and `part` are the layouts and halos of
    the tensor and of the box.
    """
    total = 0
    outer, inner = _along(whole_shape, *whole), _along(shape, *part)
    for dim, (extent, first) in enumerate(zip(shape, start, strict=True)):
        if extent == 0:
            return None
        if is_dynamic(extent) or is_dynamic(first):
            apart = _by_factors(outer[dim], inner[dim], first, extent)
        else:
            apart = _by_index(outer[dim], inner[dim], first, extent)
        if apart is None:
            return None
        total += apart
    return total


def _along(shape: tuple[int, ...], layout: Layout, halo: Halo) -> Sequence[_Along]:
    result: list[_Along] = [([], halo[dim][0] if halo else 0) for dim in range(len(shape))]
    steps, _ = strides(shape, layout, halo)
    for factor, step in zip(layout.resolved(len(shape)), steps, strict=True):
        result[factor.dim][0].append((factor, step))
    return result


def _by_index(outer: _Along, inner: _Along, first: int, extent: int) -> int | None:
    """Return the offset between a box in a tensor and a separate tensor, along one dimension.

    `outer` describes how the tensor is addressed along the dimension, `inner` how the separate
    tensor is, and `first` is the first index of the box. The result is the difference of the
    addresses, in elements. It is None if the difference is not the same for all `extent` indices.
    """
    if _is_plain(outer) and _is_plain(inner):
        return _by_factors(outer, inner, first, extent)
    apart = _address(outer, first) - _address(inner, 0)
    others = range(1, extent)
    same = all(_address(outer, first + i) - _address(inner, i) == apart for i in others)
    return apart if same else None


def _is_plain(along: _Along) -> bool:
    return all(factor.div == 1 and factor.mod is None for factor, _ in along[0])


def _address(along: _Along, index: int) -> int:
    factors, before = along
    total = 0
    for factor, step in factors:
        place = (index + before) // factor.div
        total += (place % factor.mod if factor.mod else place) * step
    return total


def _by_factors(outer: _Along, inner: _Along, first: int, extent: int) -> int | None:
    """Return the offset between a box in a tensor and a separate tensor, along one dimension.

    The result is the difference of the addresses, in elements. It is computed from the layout
    factors instead of the addresses of all indices, so extents may be dynamic. A factor is a part
    into which a layout divides an index, such as a block of 16. The result is None unless both
    layouts have the same factors and the box starts at a multiple of each block.

    Args:
        outer: the layout factors and the halo of the tensor along the dimension.
        inner: the layout factors and the halo of the separate tensor.
        first: the first index of the box.
        extent: the extent of the box.
    """
    shift = first + outer[1] - inner[1]
    total = 0
    for (factor, step), (other, inner_step) in zip_longest(outer[0], inner[0], fillvalue=_NONE):
        if (factor.div, factor.mod) != (other.div, other.mod):
            return None
        slices = exact_quotient(shift, factor.div * (factor.mod or 1))
        if slices is None:
            return None
        total += 0 if factor.mod else slices * step
        if step == inner_step:
            continue
        if extent == 1:  # a single slice has no distance to others
            place = inner[1] // factor.div
            total += (place % factor.mod if factor.mod else place) * (step - inner_step)
        elif inner[1] or not always_less(extent - 1, factor.div):
            return None
    return total


_NONE = (Factor(-1, 0), 0)
