"""Division of an output axis with dynamic extent into edges, where windows leave the image, and
middle.

    y[w] = max over k: 3 of x[2 w + k - 1], w in n:
      w in 0..0: the loop over k is clipped, one output at a time
      w in 1..n-2: no tap leaves the image, any tile
      w in n-1..n-1: like the first

For a fixed extent, the first and the last tile are static code instead (`For.peel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.rewriting import load_at, reindex
from tilewright.compiler.schedule.problem import Problem
from tilewright.compiler.schedule.structure import tile_edges
from tilewright.compiler.sizes import always_less


@dataclass(frozen=True)
class EdgePart:
    """A problem restricted to a range of one of its output axes.

    Attributes:
        problem: the restricted problem, over `axis` in place of the whole axis.
        axis: the new axis, which counts from 0 over the range.
        clipped: whether windows may reach over an edge, so that loops leave out taps at run time.
        places: the whole axis, mapped to its index in terms of `axis`.
    """

    problem: Problem
    axis: Axis
    clipped: bool
    places: Mapping[Axis, Affine]


def edge_parts(problem: Problem, axis: Axis) -> tuple[EdgePart, ...]:
    """Divide an output axis into its first outputs, its middle ones and its last ones.

    Windows of the first and last outputs reach over the edges of the image. Empty ranges are left
    out. Returns the whole problem as one clipped part if the axis may have fewer outputs than the
    two edges together.
    """
    first, last = tile_edges(problem.reduction, axis)
    if not always_less(first + last - 1, axis.extent):
        return (EdgePart(problem, axis, True, {}),)
    between = axis.extent - first - last
    cuts = ((0, first, True), (first, between, False), (first + between, last, True))
    return tuple(
        _part(problem, axis, number, start, extent, clipped)
        for number, (start, extent, clipped) in enumerate(cuts)
        if extent != 0
    )


def _part(
    problem: Problem, axis: Axis, number: int, start: int, extent: int, clipped: bool
) -> EdgePart:
    own = Axis(f"{axis.name}e{number}", extent)
    places = {axis: affine(own) + start}
    restricted = replace(
        problem,
        axes=tuple(own if a == axis else a for a in problem.axes),
        output=load_at(problem.output, places),
        expr=reindex(problem.expr, places),
    )
    return EdgePart(restricted, own, clipped, places)
