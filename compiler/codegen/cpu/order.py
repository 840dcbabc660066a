"""The order in which the points of a register tile are emitted.

A tile point is one index per unrolled axis.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from tilewright.compiler.codegen.cpu.deinterleaving import Place
from tilewright.compiler.codegen.cpu.points import Point
from tilewright.compiler.codegen.cpu.resolve import Access
from tilewright.compiler.loops.expr import Space
from tilewright.compiler.targets.target import Target


def is_in_order(target: Target) -> bool:
    """Return whether the order in which loads and multiply-adds are emitted affects the speed.

    This holds for AArch64 cores that execute instructions in program order. On other architectures,
    no gain is known, and the result is false.
    """
    return not target.core.reorder_buffer and target.lane_factors > 1


def constant_points(points: list[Point], matrix: Access, spatial: Sequence[int]) -> list[Point]:
    """Select the tile points of a product with a constant matrix at which the matrix is not zero.

    A tile point is one index per unrolled axis. A transform by such a matrix, as in Winograd
    convolution, thus has no instructions for zero coefficients. In the result, tile points that
    contribute to the same sum are adjacent. A tile point with coefficient 1, which needs no
    multiplication, comes first among them.

    Args:
        points: all points of the register tile.
        matrix: the access to the matrix.
        spatial: positions, in a tile point, of the axes that identify a sum.
    """
    size = matrix.tensor.dtype.bytes
    coefficients = {p: matrix.tensor.values[matrix.offset(p) // size] for p in points}
    rank: dict[Point, int] = {}
    for point in points:
        rank.setdefault(tuple(point[i] for i in spatial), len(rank))
    return sorted(
        (p for p in points if coefficients[p]),
        key=lambda p: (rank[tuple(p[i] for i in spatial)], coefficients[p] != 1),
    )


def greedy_points(
    points: list[Point],
    accesses: Iterable[Access],
    depth: int,
    beside: Callable[[Access, bool], Mapping[Place, Place]],
) -> list[Point]:
    """Order points so that each point adds as few loads as possible to those of earlier points.

    Ties keep the program order. For GEMM, the result is an outer product; for a depthwise
    convolution, each pixel is read once and contributes to several sums.

    The function `beside` finds pairs of vectors that one instruction loads together. Its arguments
    are an access, and whether no other access loads inside the loop. Its result maps the second
    vector of each pair to the first; the key of a vector is its address (`Access.place`). A pair
    counts as one load.

    Args:
        points: the points of the register tile (one index per unrolled axis) in program order.
        accesses: the accesses of the operands. Loads that are hoisted out of the loop at `depth`
            are not counted.
        depth: the depth of the innermost loop.
    """
    inner = [
        access
        for access in accesses
        if access.tensor.space is Space.MEMORY
        and access.base is not None
        and access.base.depth >= depth
    ]
    if not inner or len(points) < 2:
        return points
    users: dict[tuple[int, ...], list[int]] = {}
    needs: list[list[tuple[int, ...]]] = []
    firsts = [beside(access, len(inner) == 1) for access in inner]
    for number, point in enumerate(points):
        places = [access.place(point) for access in inner]
        keys = [(i, *firsts[i].get(place, place)) for i, place in enumerate(places)]
        needs.append(keys)
        for key in keys:
            users.setdefault(key, []).append(number)
    missing = [len(keys) for keys in needs]
    queues: list[list[int]] = [[] for _ in range(len(inner) + 1)]
    for number, count in enumerate(missing):
        heapq.heappush(queues[count], number)
    loaded: set[tuple[int, ...]] = set()
    done = [False] * len(points)
    result: list[Point] = []
    while len(result) < len(points):
        number = _next(queues, done, missing)
        done[number] = True
        result.append(points[number])
        for key in needs[number]:
            if key in loaded:
                continue
            loaded.add(key)
            for user in users[key]:
                missing[user] -= 1
                if not done[user]:
                    heapq.heappush(queues[missing[user]], user)
    return result


def _next(queues: list[list[int]], done: list[bool], missing: list[int]) -> int:
    for count, queue in enumerate(queues):
        while queue and (done[queue[0]] or missing[queue[0]] != count):
            heapq.heappop(queue)
        if queue:
            return heapq.heappop(queue)
    raise AssertionError("no point left")
