"""What one Compute of a loop nest does, counted: trips, accumulators, operations, loads, bytes.

The counts ignore ragged tails: they are inputs of a cost model, not a simulation.

Statements are remembered by what they are made of, and everything that is derived from one by the
statement: candidates of a workload differ in a few loops, and share most of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from math import prod
from typing import NamedTuple

from compiler.loops.expr import Expr, Op, Operation
from compiler.loops.index import Axis
from compiler.loops.nest import Binding, Compute, For, Let, LoopNest, Node, Store, Tile
from tuner.accesses import (
    KINDS,
    Access,
    Form,
    Kind,
    access,
    expression_facts,
    forms_by_tensor,
    load_axes,
)

PAGE_BYTES = 4096
"""Rows whose addresses differ by a multiple of this fall into the same sets of an L1 cache."""

_FMA, _ADD, _MUL = (KINDS.index(kind) for kind in (Kind.FMA, Kind.ADD, Kind.MUL))


@dataclass(frozen=True, slots=True)
class Level:
    """A loop around (or inside) a statement: how often its body runs, and what it touches.

    `trips` counts the iterations of this loop alone; `footprint_bytes` is what one whole execution
    of the loop touches, over all tensors in memory.
    """

    trips: int
    footprint_bytes: float


@dataclass(frozen=True, slots=True)
class Around:
    """A run-time loop around a statement: `axes` is its own and those that it derives."""

    axis: Axis
    axes: frozenset[Axis]
    trips: int
    extent: int


class Enclosing(NamedTuple):
    """A For around a statement. `number` tells it from the others of its nest, in program order."""

    number: int
    axis: Axis
    step: int
    trips: int
    extent: int
    lets: tuple[Let, ...]
    is_parallel: bool
    is_copied: bool


@dataclass(frozen=True, slots=True)
class Use:
    """An access of a statement: how often it is executed in all, and its step along the lanes."""

    access: Access
    is_store: bool
    executions: float
    lane_step: int


@dataclass(frozen=True, eq=False)
class Statement:
    """One Compute in its loops. Equal statements are mostly one object.

    `operations` is scalar arithmetic in all, `vector_operations` what is issued for it, weighted by
    cost; `counts` is what is issued by kind, in the order of `accesses.KINDS`. `operands` are the
    vectors that are loaded for one step of the innermost reduction, which registers hold beside
    the accumulators. `around` is innermost first, reduction loops included, `loops` outermost
    first and without them.
    """

    operations: float
    vector_operations: float
    counts: tuple[float, ...]
    lanes: int
    useful: float
    accumulators: int
    operands: int
    points: int
    reduce_trips: int
    reduce_unroll: int
    outer_trips: int
    depth: int
    vector_loads: float
    broadcast_loads: float
    scattered_loads: float
    stores: float
    scattered_stores: float
    aliased_rows: int
    peeled: int
    skips_padding: bool
    is_reduction: bool
    lane_reduction: bool
    prefetches: bool
    parallel_tiles: int
    around: tuple[Around, ...] = field(repr=False)
    loops: tuple[Enclosing, ...] = field(repr=False)
    uses: tuple[Use, ...] = field(repr=False)
    tile: Mapping[Axis, int] = field(repr=False, hash=False)
    """The size of each axis inside all loops."""

    @cached_property
    def footprints(self) -> tuple[float, ...]:
        """Bytes that one execution of the tile touches, then of each loop of `around`."""
        # Several accesses of one tensor mostly overlap (taps of a stencil): the largest is all.
        tensors = [
            map(max, zip(*map(self.spans.__getitem__, forms), strict=True))
            if len(forms) > 1
            else self.spans[next(iter(forms))]
            for forms in self.tensors.values()
        ]
        return tuple(map(sum, zip(*tensors, strict=True))) or (0.0,) * (len(self.around) + 1)

    @cached_property
    def tensors(self) -> dict[str, dict[Form, None]]:
        """The distinct forms of what it loads and stores, by tensor."""
        return forms_by_tensor(use.access for use in self.uses)

    @cached_property
    def spans(self) -> dict[Form, tuple[float, ...]]:
        """Bytes that a form touches in one execution of the tile, then of each loop of `around`."""
        loops = [loop if loop.trips > 1 else None for loop in self.around]
        found = {}
        for forms in self.tensors.values():
            for form in forms:
                sizes = {axis: self.tile.get(axis, axis.extent) for axis in form.axes}
                touched = form.touched(sizes)
                span = [touched]
                for loop in loops:
                    if loop is not None and not loop.axes.isdisjoint(form.axes):
                        grow(sizes, loop)
                        touched = form.touched(sizes)
                    span.append(touched)
                found[form] = tuple(span)
        return found

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The tile, then the loops that iterate, from the innermost reduction to the outermost."""
        found = [Level(1, self.footprints[0])]
        for loop, footprint in zip(self.around, self.footprints[1:], strict=True):
            if loop.trips > 1:
                found.append(Level(loop.trips, footprint))
        return tuple(found)

    def whole(self) -> dict[Axis, int]:
        """The size of each axis around all loops."""
        sizes = dict(self.tile)
        for loop in self.around:
            grow(sizes, loop)
        return sizes


def grow(sizes: dict[Axis, int], loop: Around) -> None:
    """Let a loop run: its axis has the size that it splits, what it derives its whole extent."""
    for axis in loop.axes:
        sizes[axis] = max(loop.extent if axis == loop.axis else axis.extent, sizes.get(axis, 1))


def statements(nest: LoopNest) -> tuple[Statement, ...]:
    """Every Compute of a nest, in program order, analysed in its loops."""
    found: list[Statement] = []
    numbers = count()
    for stage in nest.stages:
        for node in stage.body:
            found.extend(_visit(node, (), {}, numbers))
    return tuple(found)


def _visit(
    node: Node, loops: tuple[Enclosing, ...], sizes: dict[Axis, int], numbers: Iterator[int]
) -> Iterator[Statement]:
    match node:
        case For(axis=axis, step=step, lets=lets):
            extent = sizes.get(axis, axis.extent)
            trips = max(1, -(-extent // step))
            is_parallel = node.binding is Binding.PARALLEL
            is_copied = node.peel or node.unroll
            loop = Enclosing(next(numbers), axis, step, trips, extent, lets, is_parallel, is_copied)
            inner = _inside(sizes, loop)
            for child in node.body:
                yield from _visit(child, (*loops, loop), inner, numbers)
        case Compute():
            made = _Made(
                node.stores,
                node.body,
                node.combiner is not None,
                node.init,
                node.reduce,
                node.unroll,
                node.vector,
                node.partial,
                node.skip_padding,
                node.prefetch > 0,
            )
            yield _statement(made, loops)


class _Made(NamedTuple):
    """What counts of a Compute."""

    stores: tuple[Store, ...]
    body: Expr
    combines: bool
    init: Expr | None
    reduce: tuple[Tile, ...]
    unroll: tuple[Tile, ...]
    vector: Axis | None
    partial: tuple[Axis, ...]
    skip_padding: bool
    prefetches: bool


def _inside(sizes: Mapping[Axis, int], loop: Enclosing) -> dict[Axis, int]:
    """Sizes of axes in the body of a loop."""
    inner = dict(sizes)
    inner[loop.axis] = min(loop.step, loop.extent)
    for let in loop.lets:
        inner[let.axis] = 1
    return inner


@lru_cache(maxsize=8192)
def _statement(compute: _Made, loops: tuple[Enclosing, ...]) -> Statement:
    tile: dict[Axis, int] = {}
    for enclosing in loops:
        tile = _inside(tile, enclosing)
    output_axes = frozenset(axis for store in compute.stores for axis in load_axes(store.target))
    reduce_levels: list[Around] = []
    reduce_unroll = 1
    for level in compute.reduce:
        extent = tile.get(level.axis, level.axis.extent)
        trips = max(1, -(-extent // level.step))
        if level.unroll:
            reduce_unroll *= trips
        else:
            reduce_levels.append(Around(level.axis, frozenset((level.axis,)), trips, extent))
        tile[level.axis] = min(level.step, extent)
    lanes = 1
    useful = 1.0
    counts: dict[Axis, int] = {}
    for part in compute.unroll:
        extent = tile.get(part.axis, part.axis.extent)
        tile.setdefault(part.axis, extent)
        counts[part.axis] = max(1, -(-extent // part.step))
        if part.axis == compute.vector:
            lanes = part.step
            useful = extent / (counts[part.axis] * part.step)
    points = prod(counts.values()) * reduce_unroll
    spatial = prod(n for axis, n in counts.items() if axis in output_axes)
    partial = prod(counts.get(axis, 1) for axis in compute.partial)
    reduce_trips = prod(loop.trips for loop in reduce_levels)
    outer = prod(loop.trips for loop in loops)
    executions = float(outer * reduce_trips)

    body = expression_facts(compute.body)
    epilogues = [expression_facts(store.value) for store in compute.stores]
    roots = [body, *epilogues]
    if compute.init is not None:
        roots.append(expression_facts(compute.init))
    vector = broadcast = scattered = stores = scattered_stores = 0.0
    aliased = operands = 0
    inner = frozenset(body.loads)
    uses: list[Use] = []
    shared: dict[Form, tuple[int, int, list[tuple[Axis, int]]]] = {}
    for load in dict.fromkeys([load for root in roots for load in root.loads]):
        found = access(load)
        if found is None:
            continue
        step = found.step(compute.vector) if compute.vector else 0
        if found.form not in shared:
            points_of = [(axis, n) for axis, n in counts.items() if axis in found.axes]
            shared[found.form] = (
                prod(n for _, n in points_of),
                prod(n for axis, n in points_of if axis in output_axes),
                [(axis, n) for axis, n in points_of if axis != compute.vector],
            )
        distinct, held, rows = shared[found.form]
        # What starts or ends a sum is loaded once a tile, not in every step.
        is_inner = load in inner
        count = distinct * (executions if is_inner else float(outer))
        uses.append(Use(found, False, count, step))
        if step == 0:
            broadcast += count
        elif step == found.element_bytes:
            vector += count
        else:
            scattered += count
        if step and is_inner and compute.combines:
            operands += held
        for axis, number in rows:
            if number > aliased:
                stride = abs(found.step(axis))
                if stride and stride % PAGE_BYTES == 0:
                    aliased = number
    for store in compute.stores:
        found = access(store.target)
        if found is None:
            continue
        step = found.step(compute.vector) if compute.vector else 0
        distinct = prod(n for axis, n in counts.items() if axis in found.axes)
        uses.append(Use(found, True, float(distinct * outer), step))
        stores += distinct * outer
        if compute.vector in output_axes and step not in (0, found.element_bytes):
            scattered_stores += distinct * outer

    is_fused = isinstance(compute.body, Op) and compute.body.operation is Operation.MUL
    combines = compute.combines
    body_cost = body.cost + float(combines and not is_fused)
    epilogue_cost = sum(each.cost for each in epilogues)
    vector_operations = executions * points * body_cost + outer * spatial * epilogue_cost
    issued = [executions * points * n for n in body.counts]
    if combines:
        # one multiplication and the addition of the sum are one instruction
        issued[_FMA if is_fused else _ADD] += executions * points
        issued[_MUL] -= executions * points * is_fused
    for each in epilogues:
        issued = [a + outer * spatial * b for a, b in zip(issued, each.counts, strict=True)]
    around = [
        Around(
            loop.axis,
            frozenset((loop.axis, *(let.axis for let in loop.lets))),
            loop.trips,
            loop.extent,
        )
        for loop in reversed(loops)
    ]
    return Statement(
        operations=vector_operations * lanes * useful,
        vector_operations=vector_operations,
        counts=tuple(issued),
        lanes=lanes,
        useful=useful,
        accumulators=spatial * partial,
        operands=operands,
        points=points,
        reduce_trips=reduce_trips,
        reduce_unroll=reduce_unroll * prod(n for a, n in counts.items() if a not in output_axes),
        outer_trips=outer,
        depth=len(loops) + len(reduce_levels),
        vector_loads=vector,
        broadcast_loads=broadcast,
        scattered_loads=scattered,
        stores=stores,
        scattered_stores=scattered_stores,
        aliased_rows=aliased,
        peeled=sum(loop.is_copied for loop in loops),
        skips_padding=compute.skip_padding,
        is_reduction=combines,
        lane_reduction=compute.vector is not None and compute.vector not in output_axes,
        prefetches=compute.prefetches,
        parallel_tiles=prod(loop.trips for loop in loops if loop.is_parallel),
        around=(*reversed(reduce_levels), *around),
        loops=loops,
        uses=tuple(uses),
        tile=tile,
    )
