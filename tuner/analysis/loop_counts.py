"""Trip counts of the loops around a `Compute` and sizes of its tiles.

Counts and sizes do not depend on the expression that the `Compute` evaluates. Candidates of one
workload have many loops in common, so equal loops share one object, which caches the bytes that
accesses of each form (`accesses.Form`) touch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Binding, For, Let, Tile
from tilewright.compiler.memo import memo
from tilewright.tuner.analysis.accesses import Form


@dataclass(frozen=True, slots=True)
class EnclosingLoop:
    """A loop around a statement, including reduction loops that are not unrolled.

    Attributes:
        axis: the axis that the loop divides into tiles.
        axes: `axis` and the axes that the loop defines from it (`For.lets`).
        trips: number of iterations.
        extent: number of positions of `axis` that the whole loop covers.
    """

    axis: Axis
    axes: frozenset[Axis]
    trips: int
    extent: int
    sizes: tuple[tuple[Axis, int], ...] = field(init=False)
    """The size of each axis of `axes` in the whole loop. It is `extent` for `axis`, and the full
    extent for other axes."""

    def __post_init__(self) -> None:
        own = self.axis
        sizes = [(axis, self.extent if axis == own else axis.extent) for axis in self.axes]
        object.__setattr__(self, "sizes", tuple(sizes))


@dataclass(frozen=True, slots=True, eq=False)
class EnclosingLoops:
    """The loops around a node of a loop nest.

    Attributes:
        fors: the `For` nodes, outermost first, with empty bodies.
        around: the same loops as EnclosingLoop, innermost first.
        sizes: number of positions of each axis that one iteration of the innermost loop covers.
    """

    fors: tuple[For, ...] = ()
    around: tuple[EnclosingLoop, ...] = ()
    sizes: Mapping[Axis, int] = field(default_factory=dict)

    def inside(self, loop: For) -> EnclosingLoops:
        """Return these loops with `loop` added as the innermost."""
        return _inside(self, loop.axis, loop.step, loop.binding, loop.peel, loop.unroll, loop.lets)


OUTSIDE = EnclosingLoops()
"""The surrounding loops of a node that is outside of all loops."""


@memo(4096)
def _inside(
    loops: EnclosingLoops,
    axis: Axis,
    step: int,
    binding: Binding,
    peel: bool,
    unroll: bool,
    lets: tuple[Let, ...],
) -> EnclosingLoops:
    extent = loops.sizes.get(axis, axis.extent)
    derived = {let.axis: 1 for let in lets}
    around = EnclosingLoop(axis, frozenset((axis, *derived)), max(1, -(-extent // step)), extent)
    return EnclosingLoops(
        (*loops.fors, For(axis, step, (), binding, peel, unroll, lets)),
        (around, *loops.around),
        {**loops.sizes, axis: min(step, extent), **derived},
    )


@dataclass(frozen=True, eq=False)
class LoopCounts:
    """The loops and the register tile of a `Compute`.

    Attributes:
        loops: the loops around the `Compute`, without reduction loops.
        around: all loops around the register tile, innermost first, including reduction loops.
        reduce_levels: number of reduction loops in `around`.
        reduce_unroll: number of unrolled reduction steps.
        reduce_trips: product of the trip counts of all reduction loops.
        outer_trips: product of the trip counts of all other loops.
        parallel_tiles: product of the trip counts of the parallel loops.
        tile: number of positions of each axis that one execution of the register tile covers.
        counts: number of vectors (in scalar code: elements) along each axis of the register tile.
        lanes: vector lanes along the axis `vector`; 1 without vectors.
        useful: fraction of the lanes whose results are needed.
        vector: the vectorised axis; None for scalar code.
    """

    loops: EnclosingLoops
    around: tuple[EnclosingLoop, ...]
    reduce_levels: int
    reduce_unroll: int
    reduce_trips: int
    outer_trips: int
    parallel_tiles: int
    tile: Mapping[Axis, int]
    counts: Mapping[Axis, int]
    lanes: int
    useful: float
    vector: Axis | None
    _points: dict[frozenset[Axis], int] = field(init=False, default_factory=dict)
    _places: dict[tuple[Form, tuple[Axis, ...]], int] = field(init=False, default_factory=dict)
    _spans: dict[Form, tuple[float, ...]] = field(init=False, default_factory=dict)
    _footprints: dict[tuple[tuple[Form, ...], ...], tuple[float, ...]] = field(
        init=False, default_factory=dict
    )

    def points_along(self, axes: frozenset[Axis]) -> int:
        """Return the number of vectors (or elements) of the register tile along the given axes.

        This is the product of their `counts`.
        """
        known = self._points.get(axes)
        if known is None:
            known = prod([count for axis, count in self.counts.items() if axis in axes])
            self._points[axes] = known
        return known

    def places(self, form: Form, fixed: tuple[Axis, ...] = ()) -> int:
        """Return how many distinct elements of a tensor the register tile accesses.

        `form` has the index expressions of the accesses. A vector counts as one element. Along the
        `fixed` axes, the tile is assumed to have only one position.
        """
        known = self._places.get((form, fixed))
        if known is None:
            counts = [1 if axis in fixed else self.counts.get(axis, 1) for axis in form.numbers]
            points = [
                (count, -(-self.tile[axis] // count) if count > 1 else 1)
                for axis, count in zip(form.numbers, counts, strict=True)
            ]
            self._places[form, fixed] = known = form.places(tuple(points))
        return known

    def overlap(self, form: Form) -> float:
        """Return the number of distinct elements that the register tile accesses, divided by the
        number of its accesses.

        `form` has the index expressions of the accesses. The result is below 1 if the tile accesses
        an element several times.
        """
        return self.places(form) / self.points_along(form.axes)

    @cached_property
    def innermost(self) -> frozenset[Axis]:
        """Return the axes of the innermost loop that has several iterations.

        The set is empty if no loop has several iterations.
        """
        return next((loop.axes for loop in self.around if loop.trips > 1), frozenset())

    def trips_inside(self, form: Form) -> int:
        """Return how many consecutive iterations access the same elements of a tensor.

        `form` has the index expressions of the accesses. The result is the product of the trip
        counts of the innermost loops, up to the first loop that changes the address.
        """
        inside = 1
        for loop in self.around:
            if loop.trips > 1:
                if not loop.axes.isdisjoint(form.axes):
                    break
                inside *= loop.trips
        return inside

    def span(self, form: Form) -> tuple[float, ...]:
        """Return the bytes that accesses touch in the register tile and in each enclosing loop.

        `form` has the index expressions of the accesses. The first entry is for one execution of
        the tile. The others are for one complete execution of each loop of `around`.
        """
        known = self._spans.get(form)
        if known is None:
            self._spans[form] = known = self._span(form)
        return known

    def footprints(self, tensors: tuple[tuple[Form, ...], ...]) -> tuple[float, ...]:
        """Return the bytes of all tensors that the register tile and each enclosing loop touch.

        The first entry is for one execution of the tile. The others are for one complete execution
        of each loop of `around`. `tensors` has, for each tensor, the forms of its accesses. The
        accesses of one tensor mostly touch the same elements, so only the form that touches the
        most bytes counts.
        """
        known = self._footprints.get(tensors)
        if known is None:
            self._footprints[tensors] = known = self._sum_of_spans(tensors)
        return known

    def _sum_of_spans(self, tensors: tuple[tuple[Form, ...], ...]) -> tuple[float, ...]:
        if not tensors:
            return (0.0,) * (len(self.around) + 1)
        # Accesses of one tensor mostly overlap (taps of a stencil), so only the largest counts.
        spans = [
            map(max, zip(*map(self.span, forms), strict=True))
            if len(forms) > 1
            else self.span(forms[0])
            for forms in tensors
        ]
        return tuple(map(sum, zip(*spans, strict=True)))

    def _span(self, form: Form) -> tuple[float, ...]:
        tile, numbers = self.tile, form.numbers
        sizes = [tile.get(axis, axis.extent) for axis in numbers]
        touched = form.touched_by(tuple(sizes))
        span = [touched]
        for loop in self.around:
            grows = False
            for axis, size in loop.sizes if loop.trips > 1 else ():
                number = numbers.get(axis)
                if number is not None and size > sizes[number]:
                    sizes[number] = size
                    grows = True
            if grows:
                touched = form.touched_by(tuple(sizes))
            span.append(touched)
        return tuple(span)

    @cached_property
    def whole(self) -> Mapping[Axis, int]:
        """Return the full size of each axis, before loops divide it into tiles."""
        sizes = dict(self.tile)
        for loop in self.around:
            for axis, size in loop.sizes:
                sizes[axis] = max(size, sizes.get(axis, 1))
        return sizes


@memo(1024)
def _level(axis: Axis, trips: int, extent: int) -> EnclosingLoop:
    """Return an `EnclosingLoop` for a reduction loop; equal arguments give the same object."""
    return EnclosingLoop(axis, frozenset((axis,)), trips, extent)


@memo(1024)
def count_loops(
    loops: EnclosingLoops, reduce: tuple[Tile, ...], unroll: tuple[Tile, ...], vector: Axis | None
) -> LoopCounts:
    """Count the iterations of the loops around a `Compute`, and the vectors of its register tile.

    Args:
        loops: the loops around the `Compute`.
        reduce: the tiles of its reduction axes (`Compute.reduce`).
        unroll: the tiles of its unrolled axes (`Compute.unroll`).
        vector: the axis that vectors run along (`Compute.vector`), if any.
    """
    tile = dict(loops.sizes)
    levels: list[EnclosingLoop] = []
    written_out = 1
    for level in reduce:
        extent = tile.get(level.axis, level.axis.extent)
        trips = max(1, -(-extent // level.step))
        if level.unroll:
            written_out *= trips
        else:
            levels.append(_level(level.axis, trips, extent))
        tile[level.axis] = min(level.step, extent)
    lanes, useful = 1, 1.0
    counts: dict[Axis, int] = {}
    for part in unroll:
        extent = tile.setdefault(part.axis, part.axis.extent)
        counts[part.axis] = max(1, -(-extent // part.step))
        if part.axis == vector:
            lanes = part.step
            useful = extent / (counts[part.axis] * part.step)
    outer = zip(loops.fors, reversed(loops.around), strict=True)
    return LoopCounts(
        loops=loops,
        around=(*reversed(levels), *loops.around),
        reduce_levels=len(levels),
        reduce_unroll=written_out,
        reduce_trips=prod([level.trips for level in levels]),
        outer_trips=prod([around.trips for around in loops.around]),
        parallel_tiles=prod(
            [around.trips for loop, around in outer if loop.binding is Binding.PARALLEL]
        ),
        tile=tile,
        counts=counts,
        lanes=lanes,
        useful=useful,
        vector=vector,
    )
