"""What one Compute of a loop nest does, counted: trips, accumulators, operations, loads, bytes.

The counts ignore ragged tails: they are inputs of a cost model, not a simulation. Candidates of one
workload have much in common: what a nest, an expression or an access is, is found out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod

from compiler.loops.expr import Expr, Op, Operation
from compiler.loops.index import Axis
from compiler.loops.nest import Binding, Compute, For, LoopNest, Node, Store
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


@dataclass(frozen=True, eq=False)
class Statement:
    """One Compute in its loops. Equal nests in equal loops have the same statements, as objects.

    `operations` is scalar arithmetic in all, `vector_operations` what is issued for it, weighted by
    cost; `counts` is what is issued by kind, in the order of `accesses.KINDS`. `operands` are the
    vectors that are loaded for one step of the innermost reduction, which registers hold beside
    the accumulators. `around` is innermost first, reduction loops included, `loops` outermost
    first and without them, each without its body; `path` says which loops these are: each one's
    place among its neighbours, outermost first.
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
    path: tuple[int, ...] = field(repr=False)
    uses: tuple[Use, ...] = field(repr=False)
    tile: Mapping[Axis, int] = field(repr=False)
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
    nodes = (node for stage in nest.stages for node in stage.body)
    return _in_loops(nodes, _Context())


@dataclass(frozen=True, slots=True)
class _Context:
    """The loops around a node; see Statement. `sizes` is of each axis inside them."""

    loops: tuple[For, ...] = ()
    path: tuple[int, ...] = ()
    around: tuple[Around, ...] = field(default=(), compare=False)
    sizes: Mapping[Axis, int] = field(default_factory=dict, compare=False)

    def inside(self, loop: For, place: int) -> _Context:
        """The context of the loop's body."""
        extent = self.sizes.get(loop.axis, loop.axis.extent)
        trips = max(1, -(-extent // loop.step))
        derived = {let.axis: 1 for let in loop.lets}
        axes = frozenset((loop.axis, *derived))
        return _Context(
            (*self.loops, replace(loop, body=())),
            (*self.path, place),
            (Around(loop.axis, axes, trips, extent), *self.around),
            {**self.sizes, loop.axis: min(loop.step, extent), **derived},
        )


def _in_loops(nodes: Iterable[Node], context: _Context) -> tuple[Statement, ...]:
    return tuple(s for place, node in enumerate(nodes) for s in _remembered(node, place, context))


def _visit(node: Node, place: int, context: _Context) -> tuple[Statement, ...]:
    """The statements of a node that is number `place` of those in its loops."""
    match node:
        case Compute():
            return (_statement(node, context),)
        case For(body=(child,)):
            return _visit(child, 0, context.inside(node, place))
        case For():
            return _in_loops(node.body, context.inside(node, place))


_remembered = lru_cache(maxsize=2048)(_visit)
"""Where several nests follow each other, most are those of other candidates: halos, transforms."""


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """What a Compute does at one point, whatever its loops and tiles are.

    `loads` and `stores` have the step along the lanes; of loads `inner` says whether they are in
    the body. `body` and `ending` are what is issued for a step of a sum and for its end, by kind,
    then weighted. `aliased` are the axes whose neighbours lie pages apart.
    """

    output_axes: frozenset[Axis]
    loads: tuple[tuple[Access, int, bool], ...]
    stores: tuple[tuple[Access, int], ...]
    body: tuple[float, ...]
    body_cost: float
    ending: tuple[float, ...]
    ending_cost: float
    aliased: frozenset[Axis]


@lru_cache(maxsize=4096)
def _facts(
    stores: tuple[Store, ...],
    body: Expr,
    init: Expr | None,
    vector: Axis | None,
    combines: bool,
) -> _Facts:
    inner = expression_facts(body)
    epilogues = [expression_facts(store.value) for store in stores]
    roots = [inner, *epilogues, *([expression_facts(init)] if init is not None else [])]
    loads = dict.fromkeys(load for root in roots for load in root.loads)
    in_body = frozenset(inner.loads)
    read = tuple(
        (found, found.step(vector) if vector else 0, load in in_body)
        for load in loads
        if (found := access(load)) is not None
    )
    written = tuple(
        (found, found.step(vector) if vector else 0)
        for store in stores
        if (found := access(store.target)) is not None
    )
    issued = list(inner.counts)
    is_fused = isinstance(body, Op) and body.operation is Operation.MUL
    if combines:
        # one multiplication and the addition of the sum are one instruction
        issued[_FMA if is_fused else _ADD] += 1
        issued[_MUL] -= is_fused
    return _Facts(
        output_axes=frozenset(axis for store in stores for axis in load_axes(store.target)),
        loads=read,
        stores=written,
        body=tuple(issued),
        body_cost=inner.cost + float(combines and not is_fused),
        ending=tuple(map(sum, zip(*(each.counts for each in epilogues), strict=True))),
        ending_cost=sum(each.cost for each in epilogues),
        aliased=frozenset(
            axis
            for found, _, _ in read
            for axis in found.axes
            if axis != vector and found.step(axis) and found.step(axis) % PAGE_BYTES == 0
        ),
    )


def _statement(compute: Compute, context: _Context) -> Statement:
    tile = dict(context.sizes)
    combines = compute.combiner is not None
    facts = _facts(compute.stores, compute.body, compute.init, compute.vector, combines)
    output_axes = facts.output_axes
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
    outer = prod(loop.trips for loop in context.around)
    executions = float(outer * reduce_trips)

    vector = broadcast = scattered = stores = scattered_stores = 0.0
    operands = 0
    uses: list[Use] = []
    # Of unrolled windows and transforms many loads have one form.
    shared: dict[Form, tuple[int, int]] = {}
    for found, step, is_inner in facts.loads:
        if found.form not in shared:
            moving = [(axis, n) for axis, n in counts.items() if axis in found.axes]
            shared[found.form] = (
                prod([n for _, n in moving]),
                prod([n for axis, n in moving if axis in output_axes]),
            )
        distinct, held = shared[found.form]
        # What starts or ends a sum is loaded once a tile, not in every step.
        count = distinct * (executions if is_inner else float(outer))
        uses.append(Use(found, False, count, step))
        if step == 0:
            broadcast += count
        elif step == found.element_bytes:
            vector += count
        else:
            scattered += count
        if step and is_inner and combines:
            operands += held
    for found, step in facts.stores:
        distinct = prod([n for axis, n in counts.items() if axis in found.axes])
        uses.append(Use(found, True, float(distinct * outer), step))
        stores += distinct * outer
        if compute.vector in output_axes and step not in (0, found.element_bytes):
            scattered_stores += distinct * outer

    steps, ends = executions * points, outer * spatial
    vector_operations = steps * facts.body_cost + ends * facts.ending_cost
    issued = zip(facts.body, facts.ending, strict=True)
    return Statement(
        operations=vector_operations * lanes * useful,
        vector_operations=vector_operations,
        counts=tuple([steps * body + ends * ending for body, ending in issued]),
        lanes=lanes,
        useful=useful,
        accumulators=spatial * partial,
        operands=operands,
        points=points,
        reduce_trips=reduce_trips,
        reduce_unroll=reduce_unroll * prod(n for a, n in counts.items() if a not in output_axes),
        outer_trips=outer,
        depth=len(context.loops) + len(reduce_levels),
        vector_loads=vector,
        broadcast_loads=broadcast,
        scattered_loads=scattered,
        stores=stores,
        scattered_stores=scattered_stores,
        aliased_rows=max((n for axis, n in counts.items() if axis in facts.aliased), default=0),
        peeled=sum(1 for loop in context.loops if loop.peel or loop.unroll),
        skips_padding=compute.skip_padding,
        is_reduction=combines,
        lane_reduction=compute.vector is not None and compute.vector not in output_axes,
        prefetches=compute.prefetch > 0,
        parallel_tiles=prod(
            around.trips
            for loop, around in zip(context.loops, reversed(context.around), strict=True)
            if loop.binding is Binding.PARALLEL
        ),
        around=(*reversed(reduce_levels), *context.around),
        loops=context.loops,
        path=context.path,
        uses=tuple(uses),
        tile=tile,
    )
