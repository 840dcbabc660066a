"""What one Compute of a loop nest does, counted: trips, accumulators, loads, bytes by level.

The counts ignore ragged tails: they are inputs of a cost model, not a simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from compiler.loops.expr import Cast, Expr, Load, Op, Operation, Space, Tensor, walk
from compiler.loops.index import Axis, FloorDiv
from compiler.loops.layout import strides
from compiler.loops.nest import Binding, Compute, For, LoopNest, Node

PAGE_BYTES = 4096
"""Rows whose addresses differ by a multiple of this fall into the same sets of an L1 cache."""

_COSTS: Mapping[Operation, float] = {
    Operation.DIV: 8.0,
    Operation.REM: 12.0,
    Operation.SQRT: 10.0,
}
"""Cost of an operation in additions, as a CPU's throughput tables have it; 1 where not named."""


@dataclass(frozen=True, slots=True)
class Level:
    """A loop around (or inside) a statement: how often its body runs, and what it touches.

    `trips` counts the iterations of this loop alone; `footprint_bytes` is what one whole execution
    of the loop touches, over all tensors in memory.
    """

    trips: int
    footprint_bytes: float


@dataclass(frozen=True, slots=True)
class Statement:
    """One Compute in its loops.

    `operations` is scalar arithmetic in all, `vector_operations` what is issued for it.
    `levels` run from the innermost reduction loop to the outermost For.
    """

    operations: float
    vector_operations: float
    lanes: int
    useful: float
    accumulators: int
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
    parallel_tiles: int
    levels: tuple[Level, ...]


def statements(nest: LoopNest) -> tuple[Statement, ...]:
    """Every Compute of a nest, in program order, analysed in its loops."""
    found: list[Statement] = []
    for stage in nest.stages:
        for node in stage.body:
            found.extend(_visit(node, (), {}))
    return tuple(found)


def _visit(
    node: Node, loops: tuple[tuple[For, int, int], ...], sizes: dict[Axis, int]
) -> Iterator[Statement]:
    """`loops` holds each enclosing For with its trips and the extent that it splits."""
    match node:
        case For():
            extent = sizes.get(node.axis, node.axis.extent)
            trips = max(1, -(-extent // node.step))
            inner = dict(sizes)
            inner[node.axis] = min(node.step, extent)
            for let in node.lets:
                inner[let.axis] = 1
            for child in node.body:
                yield from _visit(child, (*loops, (node, trips, extent)), inner)
        case Compute():
            yield _statement(node, loops, sizes)


@dataclass(frozen=True, slots=True)
class _Reference:
    """A load or store: its tensor, and bytes along each axis from flat addresses."""

    load: Load
    axes: frozenset[Axis]
    is_store: bool


def _statement(
    compute: Compute, loops: tuple[tuple[For, int, int], ...], sizes: Mapping[Axis, int]
) -> Statement:
    tile = dict(sizes)
    output_axes = {
        axis for store in compute.stores for index in store.target.index for axis in index.axes()
    }
    reduce_levels: list[tuple[Axis, int, int]] = []  # axis, trips, extent that is split
    reduce_unroll = 1
    for level in compute.reduce:
        extent = tile.get(level.axis, level.axis.extent)
        trips = max(1, -(-extent // level.step))
        if level.unroll:
            reduce_unroll *= trips
        else:
            reduce_levels.append((level.axis, trips, extent))
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
    reduce_trips = prod(trips for _, trips, _ in reduce_levels)
    outer = prod(trips for _, trips, _ in loops)
    executions = float(outer * reduce_trips)

    references = _references(compute)
    vector = broadcast = scattered = stores = scattered_stores = 0.0
    aliased = 0
    for reference in references:
        distinct = prod(n for axis, n in counts.items() if axis in reference.axes)
        if reference.load.tensor.space is not Space.MEMORY:
            continue
        step = _byte_step(reference.load, compute.vector) if compute.vector else 0
        element = reference.load.tensor.dtype.bytes
        if reference.is_store:
            stores += distinct * outer
            if compute.vector in output_axes and step not in (0, element):
                scattered_stores += distinct * outer
            continue
        count = distinct * executions
        if step == 0:
            broadcast += count
        elif step == element:
            vector += count
        else:
            scattered += count
        for axis, number in counts.items():
            if axis != compute.vector and axis in reference.axes:
                stride = abs(_byte_step(reference.load, axis))
                if stride and stride % PAGE_BYTES == 0:
                    aliased = max(aliased, number)

    body_cost = _cost(compute.body) + (0.0 if _is_fused(compute) else _combine_cost(compute))
    epilogue_cost = sum(_cost(store.value) for store in compute.stores)
    vector_operations = executions * points * body_cost + outer * spatial * epilogue_cost
    return Statement(
        operations=vector_operations * lanes * useful,
        vector_operations=vector_operations,
        lanes=lanes,
        useful=useful,
        accumulators=spatial * partial,
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
        is_reduction=compute.combiner is not None,
        lane_reduction=compute.vector is not None and compute.vector not in output_axes,
        parallel_tiles=prod(t for loop, t, _ in loops if loop.binding is Binding.PARALLEL),
        levels=_levels(references, tile, reduce_levels, loops),
    )


def _levels(
    references: tuple[_Reference, ...],
    tile: Mapping[Axis, int],
    reduce_levels: list[tuple[Axis, int, int]],
    loops: tuple[tuple[For, int, int], ...],
) -> tuple[Level, ...]:
    """Innermost first: each loop's trips and what its whole execution touches."""
    sizes = dict(tile)
    tensors: dict[str, list[Load]] = {}
    for reference in references:
        if reference.load.tensor.space is Space.MEMORY:
            tensors.setdefault(reference.load.tensor.name, []).append(reference.load)
    levels = [Level(1, _footprint(tensors, sizes))]
    around = [(axis, trips, extent) for axis, trips, extent in reversed(reduce_levels)]
    around += [(loop.axis, trips, extent) for loop, trips, extent in reversed(loops)]
    lets = {let.axis: loop.axis for loop, _, _ in loops for let in loop.lets}
    for axis, trips, extent in around:
        sizes[axis] = max(extent, sizes.get(axis, 1))
        for derived, source in lets.items():
            if source == axis:
                sizes[derived] = derived.extent
        if trips > 1:
            levels.append(Level(trips, _footprint(tensors, sizes)))
    return tuple(levels)


def _footprint(tensors: Mapping[str, list[Load]], sizes: Mapping[Axis, int]) -> float:
    total = 0.0
    for loads in tensors.values():
        # Several loads of one tensor mostly overlap (taps of a stencil): the largest is all.
        total += max(_touched(load, sizes) for load in loads)
    return total


def _touched(load: Load, sizes: Mapping[Axis, int]) -> float:
    tensor = load.tensor
    elements = 1
    for extent, index in zip(tensor.shape, load.index, strict=True):
        reach = 1
        for term, coefficient in index.terms:
            axis = term.axis if isinstance(term, FloorDiv) else term
            size = sizes.get(axis, axis.extent)
            if isinstance(term, FloorDiv):
                size = -(-size // term.divisor)
            reach += abs(coefficient) * (size - 1)
        elements *= min(reach, extent) if extent else 1
    if load.indirect:
        elements = prod(tensor.shape)
    return float(elements * tensor.dtype.bytes)


def _references(compute: Compute) -> tuple[_Reference, ...]:
    found: list[_Reference] = []
    roots: list[Expr] = [compute.body, *(store.value for store in compute.stores)]
    if compute.init is not None:
        roots.append(compute.init)
    seen: set[Load] = set()
    for root in roots:
        for node in walk(root):
            if isinstance(node, Load) and node not in seen:
                seen.add(node)
                found.append(_Reference(node, _axes(node), False))
    found.extend(_Reference(s.target, _axes(s.target), True) for s in compute.stores)
    return tuple(found)


def _axes(load: Load) -> frozenset[Axis]:
    return frozenset(axis for index in load.index for axis in index.axes())


def _is_fused(compute: Compute) -> bool:
    """Whether combining costs nothing beyond the product: a fused multiply-add."""
    return isinstance(compute.body, Op) and compute.body.operation is Operation.MUL


def _combine_cost(compute: Compute) -> float:
    return 1.0 if compute.combiner is not None else 0.0


@lru_cache(maxsize=4096)
def _cost(expr: Expr) -> float:
    total = 0.0
    for node in walk(expr):
        match node:
            case Op(operation=operation):
                total += _COSTS.get(operation, 1.0)
            case Cast():
                total += 1.0
    return total


@lru_cache(maxsize=16384)
def _byte_step(load: Load, axis: Axis) -> int:
    """Bytes between the elements that a load reads at 0 and at 1 of an axis; 0: the same one."""
    if axis.extent < 2:
        return 0
    return _address(load, axis, 1) - _address(load, axis, 0)


def _address(load: Load, axis: Axis, value: int) -> int:
    position = []
    for index in load.index:
        total = index.constant
        for term, coefficient in index.terms:
            if isinstance(term, FloorDiv):
                total += coefficient * (value // term.divisor) if term.axis == axis else 0
            elif term == axis:
                total += coefficient * value
        position.append(total)
    tensor = load.tensor
    steps = _strides(tensor)
    offset = 0
    for factor, step in zip(tensor.layout.resolved(len(tensor.shape)), steps, strict=True):
        logical = position[factor.dim] + tensor.halo_of(factor.dim)[0]
        part = logical // factor.div
        offset += (part % factor.mod if factor.mod else part) * step
    return offset * tensor.dtype.bytes


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return strides(tensor.shape, tensor.layout, tensor.halo)[0]
