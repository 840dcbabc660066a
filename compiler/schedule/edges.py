"""Division of an output axis with dynamic extent into its edges and its middle.

At the edges, windows reach beyond the image, so that their loops must be clipped.

    y[w] = max over k: 3 of x[2 w + k - 1], w in n:
      w in 0..0: the loop over k is clipped, one output at a time
      w in 1..n-2: no tap leaves the image, tiles of any size
      w in n-1..n-1: as in 0..0

If the extent is fixed, the first and last tiles are emitted as static code instead (`For.peel`).
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
    """A part of a `Problem` (a workload as one expression): a range of one of its output axes.

    Attributes:
        problem: the restricted problem, over `axis` instead of the original axis.
        axis: the new axis, which counts from 0 over the range.
        clipped: whether windows may reach beyond the image, so that loops must skip taps at run
            time.
        places: maps the original axis to its index in terms of `axis`.
    """

    problem: Problem
    axis: Axis
    clipped: bool
    places: Mapping[Axis, Affine]


def edge_parts(problem: Problem, axis: Axis) -> tuple[EdgePart, ...]:
    """Divide an output axis into its first, middle and last outputs; return the non-empty parts.

    Windows of the first and last outputs reach beyond the image. If the axis may be too short for
    both edges, the result is a single clipped part with all outputs.
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
