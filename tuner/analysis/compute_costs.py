"""Operation, load, store and byte counts of each `Compute` statement of a loop nest.

The counts treat partial tiles at loop ends as full tiles. This is precise enough for the inputs of
a cost model. Candidates of one workload have many nodes in common, so equal nests, expressions and
accesses are analysed only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from tilewright.compiler.loops.expr import Combiner, Expr, Fold, Load, Op, Operation, Space
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Node, Order, Store
from tilewright.compiler.memo import memo
from tilewright.compiler.sizes import typical
from tilewright.tuner.analysis.accesses import (
    KINDS,
    Form,
    MemoryAccess,
    OperationKind,
    access,
    alignment,
    expression_facts,
    forms_by_tensor,
    load_axes,
)
from tilewright.tuner.analysis.loop_counts import (
    OUTSIDE,
    EnclosingLoop,
    EnclosingLoops,
    LoopCounts,
    count_loops,
)
from tilewright.tuner.analysis.machine import PAGE_BYTES

_FMA, _ADD, _MUL, _COMPARE = map(
    KINDS.index, (OperationKind.FMA, OperationKind.ADD, OperationKind.MUL, OperationKind.COMPARE)
)


@dataclass(frozen=True, slots=True)
class LoopLevel:
    """The trip count and the memory footprint of a loop around a statement.

    An object of this class may also describe the statement's register tile, with one trip.

    Attributes:
        trips: iterations of this loop alone, without those of outer loops.
        footprint_bytes: bytes of all tensors touched by all iterations of the loop.
    """

    trips: int
    footprint_bytes: float


@dataclass(frozen=True, slots=True)
class Use:
    """One load or store of a statement, with its execution count.

    Attributes:
        executions: number of executions in one run of the nest.
        lane_step: distance in bytes between neighbouring vector lanes; 0 for a broadcast.
        in_body: whether the access is executed in each step of a reduction. False for accesses of
            the initial value and of the epilogue.
        alignment: guaranteed alignment in bytes of the first lane's address.
    """

    access: MemoryAccess
    is_store: bool
    executions: float
    lane_step: int
    in_body: bool
    alignment: int


@dataclass(frozen=True, eq=False)
class ComputeCosts:
    """Costs of one statement (a `Compute` with the loops around it) in one run of its nest.

    Equal statements in equal loops share one object.

    Attributes:
        operations: number of scalar operations, weighted by cost.
        vector_operations: number of vector instructions for these operations, weighted by cost.
        counts: unweighted number of vector instructions by kind, in the order of `accesses.KINDS`.
        lanes: elements per vector; 1 for scalar code.
        useful: fraction of the lanes whose results are needed.
        accumulators: number of vectors that hold sums in registers during a reduction.
        operands: number of vectors that one step of the innermost reduction loads. They need
            registers in addition to the accumulators.
        points: number of vectors (or scalars) that one execution of the register tile computes,
            counted once for each unrolled reduction step.
        reduce_trips: product of the trip counts of all reduction loops.
        outer_trips: executions of the register tile.
        depth: number of loops around the statement, reduction loops included.
        aliased_rows: rows of the register tile whose addresses differ by multiples of a page and
            compete for the same sets of the L1 cache.
        peeled: number of loops with peeled or unrolled tiles.
        is_extremum: whether the statement computes a maximum or minimum of floats. Each reduction
            step then has an additional comparison, which propagates NaN.
        ending: cost of the epilogue for one result, in units of a floating-point addition.
        lane_reduction: whether the lanes of a vector are added up after the reduction.
        parallel_tiles: number of iterations that can be distributed over threads.
        depth_groups: for a product in AMX tile registers, the number of dot-product groups in one
            row of a tile register, such as 16 groups of 4 adjacent int8 elements of the reduction
            axis; otherwise 0.
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
    is_extremum: bool
    ending: float
    lane_reduction: bool
    parallel_tiles: int
    uses: tuple[Use, ...] = field(repr=False)
    tensors: tuple[tuple[Form, ...], ...] = field(repr=False)
    """The distinct forms (`accesses.Form`) of the statement's loads and stores, grouped by
    tensor."""
    loop_counts: LoopCounts = field(repr=False)
    depth_groups: int = 0

    @property
    def around(self) -> tuple[EnclosingLoop, ...]:
        """The loops around the register tile, innermost first, including reduction loops.

        Unrolled reduction steps are part of the register tile.
        """
        return self.loop_counts.around

    @property
    def loops(self) -> tuple[For, ...]:
        """The `For` nodes around the `Compute`, outermost first.

        They are copies with empty bodies, so that they are equal for all statements in equal loops.
        """
        return self.loop_counts.loops.fors

    @property
    def tile(self) -> Mapping[Axis, int]:
        """The shape of the register tile: how many positions of each axis one execution covers."""
        return self.loop_counts.tile

    @property
    def footprints(self) -> tuple[float, ...]:
        """Return the bytes touched by one execution of the register tile and of each enclosing
        loop.

        The first entry is for the tile; the others are for the loops of `around`, in their order.
        """
        return self.loop_counts.footprints(self.tensors)

    @cached_property
    def weight(self) -> float:
        """Return the number of vector operations and loads (including broadcasts).

        Of each nest, the features describe only the two statements with the largest weight in
        detail.
        """
        return self.vector_operations + self.vector_loads + self.broadcast_loads

    @cached_property
    def totals(self) -> tuple[float, float, float, float]:
        """Return this statement's contribution to four features that are sums over a whole nest.

        The four numbers are vector operations, vector and broadcast loads, scattered loads and
        stores, and all stores.
        """
        return (
            self.vector_operations,
            self.vector_loads + self.broadcast_loads,
            self.scattered_loads + self.scattered_stores,
            self.stores,
        )

    @cached_property
    def spans(self) -> Mapping[Form, tuple[float, ...]]:
        """The bytes touched by all accesses that share a form (`accesses.Form`), by form.

        The first entry of each tuple is for one execution of the register tile. The others are for
        one execution of each enclosing loop, innermost first.
        """
        return {form: self.loop_counts.span(form) for forms in self.tensors for form in forms}

    @cached_property
    def levels(self) -> tuple[LoopLevel, ...]:
        """Return the trip counts and footprints of the register tile and of the loops around it.

        The tile comes first, with a trip count of 1. The loops follow, innermost first, without
        loops that have a single iteration.
        """
        found = [LoopLevel(1, self.footprints[0])]
        for loop, footprint in zip(self.around, self.footprints[1:], strict=True):
            if loop.trips > 1:
                found.append(LoopLevel(loop.trips, footprint))
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedCompute:
    """A statement, its position in a nest, and two properties that its costs leave out.

    Attributes:
        statement: the costs, which depend on neither `prefetches` nor `in_program_order`.
        path: the position of each enclosing loop among its siblings, outermost first.
        prefetches: whether the code prefetches weights.
        in_program_order: whether the unrolled operations of the register tile are in program order.
            Otherwise they are in greedy order: the next operation is always the one that needs the
            fewest new loads.
    """

    statement: ComputeCosts
    path: tuple[int, ...]
    prefetches: bool
    in_program_order: bool


def compute_costs(nest: LoopNest) -> tuple[ComputeCosts, ...]:
    """Return the costs of every `Compute` statement of a loop nest, in program order."""
    return tuple([each.statement for each in placed_computes(nest)])


def placed_computes(nest: LoopNest) -> tuple[PlacedCompute, ...]:
    """Return every `Compute` statement of a loop nest, in program order.

    Each has its costs and its position in the nest.
    """
    return _in_loops([node for stage in nest.stages for node in stage.body], (), OUTSIDE)


def _in_loops(
    nodes: Sequence[Node], path: tuple[int, ...], loops: EnclosingLoops
) -> tuple[PlacedCompute, ...]:
    found: list[PlacedCompute] = []
    for place, node in enumerate(nodes):
        found += _remembered(node, (*path, place), loops)
    return tuple(found)


def _visit(node: Node, path: tuple[int, ...], loops: EnclosingLoops) -> tuple[PlacedCompute, ...]:
    """Return the statements in a node of the nest, in program order.

    `path` is the position of each enclosing loop among its siblings, followed by the position of
    the node. `loops` are the enclosing loops.
    """
    while True:
        match node:
            case Compute():
                in_order = node.order is Order.PROGRAM
                statement = _statement(node, loops)
                return (PlacedCompute(statement, path[:-1], node.prefetch > 0, in_order),)
            case For(body=(child,)):
                loops = loops.inside(node)
                node, path = child, (*path, 0)
            case For():
                return _in_loops(node.body, path, loops.inside(node))


_remembered = memo(1024)(_visit)
"""`_visit` with a cache. Candidates of one workload share many nodes, such as those that fill
halos."""


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """The part of a statement's costs that depends only on its expressions, not on loops and tiles.

    Attributes:
        vector: the vectorised axis; None for scalar code.
        combines: whether the statement is a reduction.
        density: fraction of the reduction steps for which code is generated. Steps that multiply by
            a zero of a constant matrix are skipped.
        loads: for each load, its access, its stride in bytes along `vector`, whether it is executed
            in each reduction step, the axes of the output that it depends on, and its alignment in
            bytes.
        stores: for each store, its access, stride and alignment.
        tensors: the distinct forms of all these accesses, grouped by tensor.
        body: the number of instructions of each kind in one reduction step.
        body_cost: the cost of these instructions, in units of a floating-point addition.
        ending: the number of instructions of each kind in the epilogue of one result.
        ending_cost: the cost of these instructions, in units of a floating-point addition.
        aliased: the axes along which neighbouring elements are a multiple of a page apart.
    """

    vector: Axis | None
    combines: bool
    is_extremum: bool
    density: float
    output_axes: frozenset[Axis]
    loads: tuple[tuple[MemoryAccess, int, bool, frozenset[Axis], int], ...]
    stores: tuple[tuple[MemoryAccess, int, int], ...]
    tensors: tuple[tuple[Form, ...], ...]
    body: tuple[float, ...]
    body_cost: float
    ending: tuple[float, ...]
    ending_cost: float
    aliased: frozenset[Axis]


@memo(2048)
def _facts(
    stores: tuple[Store, ...],
    body: Expr,
    init: Expr | None,
    vector: Axis | None,
    combiner: Combiner | Fold | None,
    group: int,
) -> _Facts:
    """Analyse the expressions of a statement: its loads, its stores and its instruction counts.

    `group` is the number of adjacent elements of each factor that a dot-product instruction
    multiplies and adds, such as 4 for int8; 1 without such an instruction.
    """
    combines = combiner is not None
    is_extremum = combiner in (Combiner.MAX, Combiner.MIN) and body.dtype.is_float
    inner = expression_facts(body)
    epilogues = [expression_facts(store.value) for store in stores]
    roots = [inner, *epilogues, *([expression_facts(init)] if init is not None else [])]
    loads = dict.fromkeys(load for root in roots for load in root.loads)
    in_body = frozenset(inner.loads)
    output_axes = frozenset(axis for store in stores for axis in load_axes(store.target))
    read = tuple(
        (
            found,
            (found.step(vector) if vector else 0) // (group if load in in_body else 1),
            load in in_body,
            found.axes & output_axes,
            alignment(load, vector),
        )
        for load in loads
        if (found := access(load)) is not None
    )
    written = tuple(
        (found, found.step(vector) if vector else 0, alignment(store.target, vector))
        for store in stores
        if (found := access(store.target)) is not None
    )
    forms = forms_by_tensor([*(use[0] for use in read), *(use[0] for use in written)])
    issued, body_cost = list(inner.counts), inner.cost
    is_fused = isinstance(body, Op) and body.operation is Operation.MUL
    if group > 1 and combines:  # conversions, products and sums of the group are one instruction
        issued, body_cost = [float(kind == _FMA) for kind in range(len(KINDS))], 1.0
    elif combines:
        # A multiplication and the addition of the sum are one instruction.
        issued[_FMA if is_fused else _ADD] += 1
        issued[_MUL] -= is_fused
        issued[_COMPARE] += is_extremum  # the comparison that keeps a NaN
    return _Facts(
        vector=vector,
        combines=combines,
        is_extremum=is_extremum,
        density=_density(inner.loads) if is_fused and combiner is Combiner.SUM else 1.0,
        output_axes=output_axes,
        loads=read,
        stores=written,
        tensors=tuple(map(tuple, forms.values())),
        body=tuple(issued),
        body_cost=body_cost + float(combines and not is_fused) + float(is_extremum),
        ending=tuple(map(sum, zip(*(each.counts for each in epilogues), strict=True))),
        ending_cost=sum(each.cost for each in epilogues),
        aliased=frozenset(
            axis
            for found, *_ in read
            for axis in found.axes
            if axis != vector and found.step(axis) and found.step(axis) % PAGE_BYTES == 0
        ),
    )


def _density(loads: Iterable[Load]) -> float:
    """Return the fraction of products for which code is generated.

    It is below 1 if some of `loads` read constant matrices with zeros, because the code generator
    emits no multiplication by a constant zero.
    """
    share = 1.0
    for load in loads:
        if load.tensor.space is Space.CONSTANT:
            share *= sum(map(bool, load.tensor.values)) / len(load.tensor.values)
    return share


def _statement(compute: Compute, loops: EnclosingLoops) -> ComputeCosts:
    facts = _facts(
        compute.stores, compute.body, compute.init, compute.vector, compute.combiner, compute.group
    )
    counted = count_loops(loops, compute.reduce, compute.unroll, compute.vector)
    deep = 0
    if compute.rows is not None and compute.dot is not None:
        steps = [tile.step for tile in compute.reduce if tile.axis == compute.dot]
        deep = -(-min(steps[-1], typical(compute.dot.extent)) // compute.group)
    return _cost_in(facts, counted, compute.partial, compute.skip_padding, deep)


@memo(4096)
def _cost_in(
    facts: _Facts,
    counted: LoopCounts,
    joined: tuple[Axis, ...],
    skips_padding: bool,
    depth_groups: int,
) -> ComputeCosts:
    """Combine the analysis of a statement's expressions with the trip counts of its loops.

    `joined` are the reduction axes whose unrolled steps have separate accumulators
    (`Compute.partial`). `skips_padding` and `depth_groups` become attributes of the result.
    """
    counts, output_axes, outer = counted.counts, facts.output_axes, counted.outer_trips
    points = prod(counts.values()) * counted.reduce_unroll
    spatial = counted.points_along(output_axes)
    partial = prod([counts.get(axis, 1) for axis in joined])
    executions = float(outer * counted.reduce_trips)

    vector = broadcast = scattered = stores = scattered_stores = 0.0
    operands = 0
    uses: list[Use] = []
    for found, step, is_inner, held_axes, aligned in facts.loads:
        # Loads of the initial value or the epilogue run once per tile, not in every step.
        distinct = counted.points_along(found.axes)
        count = distinct * (executions if is_inner else float(outer))
        uses.append(Use(found, False, count, step, is_inner, aligned))
        if step == 0:
            broadcast += count
        elif step == found.element_bytes:
            vector += count
        else:
            scattered += count
        if step and is_inner and facts.combines:
            operands += counted.points_along(held_axes)
    for found, step, aligned in facts.stores:
        distinct = counted.points_along(found.axes)
        uses.append(Use(found, True, float(distinct * outer), step, False, aligned))
        stores += distinct * outer
        if facts.vector in output_axes and step not in (0, found.element_bytes):
            scattered_stores += distinct * outer

    steps, ends = executions * points * facts.density, outer * spatial
    vector_operations = steps * facts.body_cost + ends * facts.ending_cost
    issued = zip(facts.body, facts.ending, strict=True)
    return ComputeCosts(
        operations=vector_operations * counted.lanes * counted.useful,
        vector_operations=vector_operations,
        counts=tuple([steps * body + ends * ending for body, ending in issued]),
        lanes=counted.lanes,
        useful=counted.useful,
        accumulators=spatial * partial,
        operands=operands,
        points=points,
        reduce_trips=counted.reduce_trips,
        reduce_unroll=points // spatial,
        outer_trips=outer,
        depth=len(counted.loops.fors) + counted.reduce_levels,
        vector_loads=vector,
        broadcast_loads=broadcast,
        scattered_loads=scattered,
        stores=stores,
        scattered_stores=scattered_stores,
        aliased_rows=max((n for axis, n in counts.items() if axis in facts.aliased), default=0),
        peeled=sum([loop.peel or loop.unroll for loop in counted.loops.fors]),
        skips_padding=skips_padding,
        is_reduction=facts.combines,
        is_extremum=facts.is_extremum,
        ending=facts.ending_cost,
        lane_reduction=facts.vector is not None and facts.vector not in output_axes,
        parallel_tiles=counted.parallel_tiles,
        uses=tuple(uses),
        tensors=facts.tensors,
        loop_counts=counted,
        depth_groups=depth_groups,
    )
