"""Deinterleaving loads: pairs of vectors with the even and the odd elements of the same memory.

For example, the vectors 0 2 4 6 and 1 3 5 7 together need elements 0 to 7. Two plain loads read
these elements, or one deinterleaving instruction loads both vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.codegen.cpu.points import Point
from tilewright.compiler.codegen.cpu.resolve import Access, bounds_check
from tilewright.compiler.sizes import is_dynamic
from tilewright.compiler.targets.target import Target

Place = tuple[int, ...]
"""Identifies an element that an access reads: its offset in bytes, followed by the row number on
each axis on which a tile may repeat its last row."""


def has_deinterleaving_loads(target: Target) -> bool:
    """Return whether one instruction loads even elements to one vector and odd elements to another.

    The result is false for SVE registers, which are permuted by other instructions.
    """
    return target.family.splits_pairs and target.lane_factors > 1


def paired_vectors(points: Sequence[Point], access: Access) -> dict[Place, Place]:
    """Find pairs of vectors that consist of the even and the odd elements of the same memory.

    The result maps the place of the vector with the odd elements to the place of its partner. A
    place identifies the first element of a vector: its byte offset, followed by a row number for
    each axis on which a tile may repeat its last row. Each vector belongs to at most one pair.

    Args:
        points: the points of the register tile, one index per unrolled axis. Points at which the
            access is out of bounds are ignored.
        access: the access, which loads one vector per tile point.
    """
    places = _places(points, access)
    size = access.tensor.dtype.bytes
    found: dict[Place, Place] = {}
    for first, *rest in sorted(places):
        second = (first + size, *rest)
        if second in places and (first, *rest) not in found:
            found[second] = (first, *rest)
    return found


def load_offsets(points: Sequence[Point], access: Access) -> dict[int, int]:
    """Choose where to load vectors that consist of every second element of memory.

    To load such a vector, the code loads twice its length and selects every second element. This
    load may begin at the vector's first element, or one element earlier. The choice ensures that
    the load reads nothing before the first or after the last element of the register tile.

    For example, suppose that a tile needs elements 0 to 3. The vector of elements 1 and 3 is then
    selected from a load of 0 1 2 3.

    Args:
        points: the points of the register tile (one index per unrolled axis).
        access: the access, which loads one vector per point.

    Returns:
        A dictionary from the byte offset of a vector to the byte offset at which its load begins. A
            vector is missing if the tile needs no neighbouring element.
    """
    size = access.tensor.dtype.bytes
    offsets = {place[0] for place in _places(points, access)} if not access.repeated else set()
    seconds = {place[0] for place in paired_vectors(points, access)} if offsets else set()
    found: dict[int, int] = {}
    for offset in offsets:
        if offset in seconds or (offset - size in offsets and offset + size not in offsets):
            found[offset] = offset - size
        elif offset + size in offsets:
            found[offset] = offset
    return found


def _places(points: Sequence[Point], access: Access) -> set[Place]:
    """Return the places of an access's vectors if their lanes are every second element.

    A place is the byte offset of the first element, followed by a row number for each axis on which
    a tile may repeat its last row. The result is empty for an access with other lanes.
    """
    step, lanes = 2 * access.tensor.dtype.bytes, len(access.lane_offsets)
    if lanes < 2 or access.packed > 1 or access.indirect_strides:
        return set()
    if access.lane_offsets != tuple(range(0, step * lanes, step)):
        return set()
    if is_dynamic(access.constant) or any(is_dynamic(stride) for _, stride in access.unrolled):
        return set()
    in_bounds = bounds_check([access])
    return {access.place(point) for point in points if in_bounds(point)}
