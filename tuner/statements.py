"""What one Compute of a loop nest does, counted: trips, accumulators, operations, loads, bytes.

The counts ignore ragged tails: they are inputs of a cost model, not a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from compiler.loops.expr import Op, Operation
from compiler.loops.index import Axis
from compiler.loops.nest import Binding, Compute, For, LoopNest, Node
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


@dataclass(frozen=True, slots=True)
class Use:
    """An access of a statement: how often it is executed in all, and its step along the lanes."""

    access: Access
    is_store: bool
    executions: float
    lane_step: int


@dataclass(frozen=True)
class Statement:
    """One Compute in its loops.

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
    loops: tuple[For, ...] = field(repr=False)
    uses: tuple[Use, ...] = field(repr=False)
    tile: Mapping[Axis, int] = field(repr=False, hash=False)
    """The size of each axis inside all loops."""

    @cached_property
    def footprints(self) -> tuple[float, ...]:
        """Bytes that one execution of the tile touches, then of each loop of `around`."""
        # Several accesses of one tensor mostly overlap (taps of a stencil): the largest is all.
        tensors = [
            map(max, zip(*(self.spans[form] for form in forms), strict=True))
            if len(forms) > 1
            else self.spans[forms[0]]
            for forms in self.tensors
        ]
        if not tensors:
            return (0.0,) * (len(self.around) + 1)
        return tuple(map(sum, zip(*tensors, strict=True)))

    @cached_property
    def tensors(self) -> tuple[tuple[Form, ...], ...]:
        """The distinct forms of its loads and stores, of each tensor together."""
        found = forms_by_tensor(use.access for use in self.uses)
        return tuple(tuple(forms) for forms in found.values())

    @cached_property
    def spans(self) -> Mapping[Form, tuple[float, ...]]:
        """Bytes that each form touches in the tile, then in one run of each loop of `around`."""
        found = {}
        for form in (form for forms in self.tensors for form in forms):
            sizes = {axis: self.tile.get(axis, axis.extent) for axis in form.axes}
            touched = form.touched(sizes)
            span = [touched]
            for loop in self.around:
                if loop.trips > 1 and not loop.axes.isdisjoint(form.axes):
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
    for stage in nest.stages:
        for node in stage.body:
            _visit(node, (), {}, found)
    return tuple(found)


_Loops = tuple[tuple[For, int, int], ...]
"""Each enclosing For with its trips and the extent that it splits."""


def _visit(node: Node, loops: _Loops, sizes: dict[Axis, int], found: list[Statement]) -> None:
    match node:
        case For():
            extent = sizes.get(node.axis, node.axis.extent)
            trips = max(1, -(-extent // node.step))
            inner = dict(sizes)
            inner[node.axis] = min(node.step, extent)
            for let in node.lets:
                inner[let.axis] = 1
            for child in node.body:
                _visit(child, (*loops, (node, trips, extent)), inner, found)
        case Compute():
            found.append(_statement(node, loops, sizes))


def _statement(compute: Compute, loops: _Loops, sizes: Mapping[Axis, int]) -> Statement:
    tile = dict(sizes)
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
    outer = prod(trips for _, trips, _ in loops)
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
    # Of unrolled windows and transforms many loads have one form.
    shared: dict[Form, tuple[int, int, list[tuple[Axis, int]]]] = {}
    for load in dict.fromkeys([load for root in roots for load in root.loads]):
        found = access(load)
        if found is None:
            continue
        step = found.step(compute.vector) if compute.vector else 0
        if found.form not in shared:
            moving = [(axis, n) for axis, n in counts.items() if axis in found.axes]
            shared[found.form] = (
                prod([n for _, n in moving]),
                prod([n for axis, n in moving if axis in output_axes]),
                [(axis, n) for axis, n in moving if axis != compute.vector],
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
        if step and is_inner and compute.combiner is not None:
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
    combines = compute.combiner is not None
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
            trips,
            extent,
        )
        for loop, trips, extent in reversed(loops)
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
        peeled=sum(1 for loop, _, _ in loops if loop.peel or loop.unroll),
        skips_padding=compute.skip_padding,
        is_reduction=combines,
        lane_reduction=compute.vector is not None and compute.vector not in output_axes,
        prefetches=compute.prefetch > 0,
        parallel_tiles=prod(t for loop, t, _ in loops if loop.binding is Binding.PARALLEL),
        around=(*reversed(reduce_levels), *around),
        loops=tuple(loop for loop, _, _ in loops),
        uses=tuple(uses),
        tile=tile,
    )
