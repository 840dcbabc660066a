"""GEMM, GEMV and direct convolution: a sum of products with a two-dimensional register tile.

One operand is read along the lanes (weights packed in panels, or rows that lie so in memory), the
other is broadcast. The tile has `tile` broadcast points by `vectors` vectors of accumulators; the
whole reduction runs inside it. Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008); Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions"
(2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.loops.expr import Accumulator, Combiner, Expr, Load, Role, Tensor, loads
from compiler.loops.index import Axis, affine
from compiler.loops.layout import Factor, Layout
from compiler.loops.nest import Compute, LoopNest, Stage, Store, Tile
from compiler.schedule.kernel import Kernel
from compiler.schedule.merge import merge_axes
from compiler.schedule.problem import Problem, axes_of, compose, is_one_expression
from compiler.schedule.schedule import Choice, Schedule
from compiler.schedule.space import Knob, SubSpace
from compiler.schedule.structure import (
    Loop,
    edges,
    edges_are_static,
    halo_stage,
    needs_padding,
    parallel_balance,
    parallel_stage,
    unit_stride,
    vector_axis,
)
from compiler.target import Target
from compiler.workload import Workload

_PREFETCHES = (0, 2048)
"""Bytes; further ahead than a few thousand showed nothing more."""

_UNROLLS = (1, 2, 4, 8)
_TILES = (*range(1, 17), 18, 20, 24, 28)


@dataclass(frozen=True)
class Contraction:
    """The roles of a problem's axes and operands.

    `lanes` is the output axis along the vectors, `tile` the broadcast axis of the register tile,
    `outer` the other output axes; `channel` is the reduction axis that is split and unrolled,
    `window` the other reduction axes.
    """

    problem: Problem
    broadcast: Expr
    streamed: Expr
    lanes: Axis
    tile: Axis | None
    outer: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    channel: Axis
    window: tuple[Axis, ...]
    channel_block: int | None
    padded: bool

    @property
    def panel(self) -> Load | None:
        """The streamed operand, where it is a plain load that can be packed."""
        return self.streamed if isinstance(self.streamed, Load) else None


def analyse(workload: Workload) -> Contraction | None:
    """The contraction that a workload is; None where it is something else."""
    if not is_one_expression(workload):
        return None
    groups = _groups(workload)
    problem = merge_axes(compose(workload, groups))
    if problem.product is None:
        return None
    lanes = vector_axis(problem.output, problem.axes)
    if lanes is None:
        return None
    left, right = problem.product
    if lanes in axes_of(left):
        left, right = right, left
    free, used = axes_of(left), axes_of(right)
    if lanes in free or lanes not in used:
        return None
    if any(_is_padded(load, lanes) for load in loads(problem.reduction.body)):
        return None
    outputs = [a for a in problem.axes if a != lanes and a.extent > 1]
    batch = tuple(a for a in outputs if a in free and a in used)
    spatial = [a for a in outputs if a not in batch]
    own = [a for a in spatial if a in free]
    tile = own[-1] if own else (spatial[-1] if spatial else None)
    window = _window(problem)
    if not _can_stream(right, lanes, window):
        return None
    window = _beside_tile_last(problem, window, tile)
    rest = [a for a in problem.reduction.axes if a not in window]
    channel = max(rest, key=lambda a: a.extent, default=Axis("unit", 1))
    return Contraction(
        problem,
        left,
        right,
        lanes,
        tile,
        tuple(a for a in spatial if a != tile),
        batch,
        channel,
        window,
        _channel_block(loads(left), channel),
        any(needs_padding(load) for load in loads(problem.reduction.body)),
    )


def _can_stream(streamed: Expr, lanes: Axis, window: Sequence[Axis]) -> bool:
    """Whether the operand along the lanes can be read as vectors: where it lies, or packed."""
    if not isinstance(streamed, Load):
        return False
    return streamed.tensor.role is Role.WEIGHT or unit_stride(streamed, lanes) or not window


def _is_padded(load: Load, axis: Axis) -> bool:
    """Whether a load may leave its tensor along an axis."""
    return any(axis in load.index[dim].axes() for dim in needs_padding(load))


def _groups(workload: Workload) -> dict[int, int] | None:
    """Split the output channels of a grouped convolution, so that each group is one tile's."""
    for node in workload.graph.nodes:
        group = node.attr("group", 1)
        if node.op == "conv" and isinstance(group, int) and group > 1:
            return {1: workload.output.type.shape[1] // group}
    return None


def _window(problem: Problem) -> tuple[Axis, ...]:
    """The reduction axes that are not the channels, in the order of the expression.

    A window axis is added to an output axis in some index; where the output is one pixel there is
    none to add, and the largest reduction axis is the channels.
    """
    reduced = [a for a in problem.reduction.axes if a.extent > 1]
    spatial = set(problem.axes) - set(problem.groups)
    window = [
        axis
        for axis in reduced
        if any(
            axis in index.axes() and spatial & set(index.axes())
            for load in loads(problem.reduction.body)
            for index in load.index
        )
    ]
    others = sorted((a for a in reduced if a not in window), key=lambda a: a.extent)
    return tuple(a for a in reduced if a in window or a in others[:-1])


def _beside_tile_last(
    problem: Problem, window: tuple[Axis, ...], tile: Axis | None
) -> tuple[Axis, ...]:
    """The window axes, the one that moves along the tile axis last: it is the one that may unroll.

    That is the last one anyway, but where the output is one pixel wide.
    """
    indices = [index.axes() for load in loads(problem.reduction.body) for index in load.index]
    beside = tuple(a for a in window if any(a in axes and tile in axes for axes in indices))
    return (*(a for a in window if a not in beside), *beside)


def _channel_block(operands: Sequence[Load], channel: Axis) -> int | None:
    """The block of the layout that the broadcast operand's channels are stored in."""
    for load in operands:
        for dim, index in enumerate(load.index):
            if channel in index.axes():
                for factor in load.tensor.layout.factors:
                    if factor.dim == dim and factor.mod is not None:
                        return factor.mod
    return None


@dataclass(frozen=True, slots=True)
class _Panels:
    """How the streamed operand is stored for a schedule, and how it gets there."""

    load: Load
    tensors: tuple[Tensor, ...]
    stages: tuple[Stage, ...]


class _Template:
    algorithms = ("direct", "gemm", "gemv")

    def preference(self, workload: Workload) -> float:
        return 1.0

    def space(
        self, workload: Workload, target: Target, *, threads: int, strict: bool
    ) -> SubSpace | None:
        found = _analyse(workload)
        if found is None:
            return None
        knobs = _knobs(found, target)
        if not all(knob.values for knob in knobs):
            return None

        def valid(choice: Mapping[str, Choice]) -> bool:
            return _fits(found, target, choice)

        algorithm = "direct" if found.window else "gemm" if found.tile else "gemv"
        default = _default(found, target, algorithm, knobs, threads)
        return SubSpace(algorithm, knobs, valid, default)

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        found = _analyse(workload)
        if found is None:
            raise ScheduleError(f"'{schedule.algorithm}' does not apply to this workload")
        return _lower(found, schedule, target)


TEMPLATE = _Template()


@lru_cache(maxsize=256)
def _analyse(workload: Workload) -> Contraction | None:
    return analyse(workload)


# ---- space


def _knobs(found: Contraction, target: Target) -> tuple[Knob, ...]:
    lanes = target.lanes(DType.FLOAT32)
    widest = 8 if found.tile is None else 6
    most = min(widest, -(-found.lanes.extent // lanes))
    vectors = tuple(range(1, most + 1))
    extent = found.tile.extent if found.tile else 1
    edge = _tile_edges(found)
    tiles = tuple(t for t in _TILES if t <= extent and edges_are_static(edge, extent, t))
    orders = ["lanes-outer"] if found.tile else []
    orders += ["lanes-inner"]
    orders += ["lanes-middle"] if found.outer and found.tile else []
    whole = found.channel_block or found.channel.extent
    unrolls = tuple(u for u in _UNROLLS if u <= whole)
    knobs = [
        Knob("tile", tiles),
        Knob("vectors", vectors),
        Knob("order", tuple(orders)),
        Knob("unroll", unrolls or (1,)),
    ]
    if found.window:
        knobs.append(Knob("taps", _taps(found)))
    if _is_weight(found.panel):
        knobs.append(Knob("prefetch", _PREFETCHES))
    if _can_stream_unpacked(found) and not found.window:
        knobs.append(Knob("pack", (False, True)))
    return tuple(knobs)


def _is_weight(panel: Load | None) -> bool:
    return panel is not None and panel.tensor.role is Role.WEIGHT


def _taps(found: Contraction) -> tuple[str, ...]:
    """How the last window axis may run, where taps may read padding that no halo holds.

    A tap along the tile axis is left out at its points, so that it must be static; along another
    axis, of which there is one value at a time, the loop's range is clipped.
    """
    last, outputs = found.window[-1], set(found.problem.axes)
    padded = [
        outputs & set(load.index[dim].axes())
        for load in loads(found.problem.reduction.body)
        for dim in needs_padding(load)
        if last in load.index[dim].axes()
    ]
    allowed = [] if _needs_static_taps(found) else ["loop"]
    if all(axes <= {found.tile} for axes in padded):
        allowed.append("unroll")
    return tuple(allowed)


def _tile_edges(found: Contraction) -> tuple[int, int]:
    """First and last values of the tile axis whose taps must be left out one by one."""
    if found.tile is None:
        return 0, 0
    reached = [edges(load, found.tile) for load in loads(found.problem.reduction.body)]
    return max(first for first, _ in reached), max(last for _, last in reached)


def _needs_static_taps(found: Contraction) -> bool:
    """Whether a tap along the tile axis may read padding that no halo holds."""
    tile = found.tile
    return tile is not None and any(
        _is_padded(load, tile) for load in loads(found.problem.reduction.body)
    )


def _can_stream_unpacked(found: Contraction) -> bool:
    """Whether the streamed operand can be read where it is, along the lanes."""
    panel = found.panel
    return panel is not None and panel.tensor.role is Role.INPUT and unit_stride(panel, found.lanes)


def _fits(found: Contraction, target: Target, choice: Mapping[str, Choice]) -> bool:
    """Registers hold the tile, its panels and one broadcast; tails do not dominate."""
    tile, vectors = int(choice["tile"]), int(choice["vectors"])
    registers = target.vector_registers
    if tile * vectors + vectors + 1 > registers:
        return False
    lanes = target.lanes(DType.FLOAT32)
    width = vectors * lanes
    if _in_groups(found) and found.lanes.extent % width:
        return False
    extent = found.tile.extent if found.tile else 1
    enough = min(registers // 2, extent * -(-found.lanes.extent // lanes))
    if found.tile is not None and tile * vectors < enough * 3 // 4 and tile < extent:
        return False
    panels = -(-found.lanes.extent // width) * width
    if panels > 1.3 * -(-found.lanes.extent // lanes) * lanes:
        return False
    if choice.get("taps") == "unroll":
        taps = found.window[-1].extent
        if int(choice["unroll"]) * taps * tile * vectors > 600:
            return False
    else:
        if int(choice["unroll"]) * tile * vectors > 300:
            return False
    return True


def _in_groups(found: Contraction) -> bool:
    return bool(found.problem.groups)


def _default(
    found: Contraction, target: Target, algorithm: str, knobs: Sequence[Knob], threads: int
) -> Schedule:
    """The valid point with the least waste in tails and over threads, and the most work a load."""
    values = {knob.name: knob.values for knob in knobs}
    lanes = target.lanes(DType.FLOAT32)
    extent = found.tile.extent if found.tile else 1
    whole = -(-found.lanes.extent // lanes)
    best: tuple[float, Schedule] | None = None
    for tile, vectors, order in product(values["tile"], values["vectors"], values["order"]):
        used = int(tile) * int(vectors) + int(vectors) + 1
        spare = target.vector_registers - used
        choice: dict[str, Choice] = {
            "tile": tile,
            "vectors": vectors,
            "order": order,
            "unroll": _default_unroll(found, values["unroll"], spare),
        }
        if "taps" in values:
            choice["taps"] = values["taps"][0]
        if "pack" in values:
            choice["pack"] = values["pack"][0]
        if "prefetch" in values:
            choice["prefetch"] = _PREFETCHES[-1]
        score = _tile_score(int(tile), int(vectors), extent, whole, target.vector_registers)
        loops = _loops(found, str(order), int(tile), int(vectors) * lanes, False)
        score *= parallel_balance(loops, threads)
        score += 10.0 if _fits(found, target, choice) else 0.0
        # Of equal scores the first order wins: panels outermost, so that each stays in the cache.
        if best is None or score > best[0]:
            best = score, Schedule.of(algorithm, **choice)
    assert best is not None
    return best[1]


def _default_unroll(found: Contraction, unrolls: Sequence[Choice], spare: int) -> Choice:
    """How far the reduction is unrolled; not at all where the tile takes every register, for then
    LLVM, which loads ahead, spills in the innermost loop."""
    if found.tile is None:
        most = 2
    elif spare < 2:
        most = 1
    else:
        most = 2 if found.window else 4
    return max(u for u in unrolls if int(u) <= most)


def _tile_score(tile: int, vectors: int, extent: int, whole: int, registers: int) -> float:
    """Useful share of the tiles' work, times how well loads are amortised, in 0..1."""
    tiles, panels = -(-extent // tile), -(-whole // vectors)
    useful = extent * whole / (tiles * tile * panels * vectors)
    latency = min(1.0, tile * vectors / (0.62 * registers))
    # A core loads about as often as it multiplies: a tile of one vector keeps its ports busy.
    loads_per_fma = (tile + vectors) / (tile * vectors)
    return useful * latency / (1 + 0.15 * loads_per_fma)


# ---- lowering


def _lower(found: Contraction, schedule: Schedule, target: Target) -> Kernel:
    problem = found.problem
    lanes = target.lanes(DType.FLOAT32)
    tile, vectors = schedule.integer("tile"), schedule.integer("vectors")
    unroll, width = schedule.integer("unroll"), vectors * lanes
    static_taps = bool(found.window) and schedule.text("taps") == "unroll"
    panels = _panels(found, width, lanes, packed=_is_packed(found, schedule))
    broadcast = _packed_broadcast(found, tile)
    body = broadcast[0] * panels.load
    reduce, points = _reduction_tiles(found, unroll, static_taps)
    if found.tile is not None:
        points.append(Tile(found.tile))
    compute = Compute(
        (Store(problem.output, problem.epilogue),),
        body,
        Combiner.SUM,
        reduce=tuple(reduce),
        unroll=(*points, Tile(found.lanes, lanes)),
        vector=found.lanes,
        skip_padding=static_taps,
        prefetch=schedule.integer("prefetch") if _is_weight(found.panel) else 0,
    )
    peel = static_taps and _needs_static_taps(found)
    stage = parallel_stage(
        "main", _loops(found, schedule.text("order"), tile, width, peel), compute
    )
    output = problem.output.tensor
    inputs = _replace_tensors(problem.inputs, (*panels.tensors, *broadcast[1]))
    shared = tuple(t for t in panels.tensors if t.role is Role.SHARED)
    nest = LoopNest(
        "kernel",
        (*inputs, *shared, output),
        (),
        (*panels.stages, stage, *halo_stage(output, lanes)),
    )
    return Kernel(nest, tuple((t.name, i) for i, t in enumerate(problem.inputs)))


def _replace_tensors(tensors: Sequence[Tensor], changed: Sequence[Tensor]) -> tuple[Tensor, ...]:
    by_name = {t.name: t for t in changed}
    return tuple(by_name.get(t.name, t) for t in tensors)


def _is_packed(found: Contraction, schedule: Schedule) -> bool:
    """Whether the streamed operand is read from panels; a window over an input is read in place."""
    if _is_weight(found.panel):
        return True
    if found.window:
        return False
    return bool(schedule["pack"]) if _can_stream_unpacked(found) else True


def _reduction_tiles(
    found: Contraction, unroll: int, static_taps: bool
) -> tuple[list[Tile], list[Tile]]:
    """Reduction loops, outermost first, and the reduction's points inside the register tile.

    Blocked channels: block, window, channel in the block. Otherwise: channel, window.
    """
    reduce: list[Tile] = []
    block = found.channel_block
    if block is not None and found.channel.extent > 1:
        reduce.append(Tile(found.channel, block))
    elif found.window and found.channel.extent > 1:
        reduce.append(Tile(found.channel, 1))
    for axis in found.window[:-1]:
        reduce.append(Tile(axis, 1))
    points: list[Tile] = []
    if found.window:
        reduce.append(Tile(found.window[-1], 1, unroll=static_taps))
    if found.channel.extent > 1 and (block is not None or not found.window):
        reduce.append(Tile(found.channel, min(unroll, block or unroll)))
        points.append(Tile(found.channel))
    return reduce, points


def _loops(found: Contraction, order: str, tile: int, width: int, peel: bool) -> list[Loop]:
    across = [Loop(found.lanes, width)]
    along = [Loop(found.tile, tile, peel=peel)] if found.tile else []
    outer = [Loop(axis) for axis in found.outer]
    batch = [Loop(axis) for axis in found.batch]
    match order:
        case "lanes-outer":
            return [*batch, *across, *outer, *along]
        case "lanes-middle":
            return [*batch, *outer, *across, *along]
        case _:
            return [*batch, *outer, *along, *across]


def _panels(found: Contraction, width: int, lanes: int, *, packed: bool) -> _Panels:
    """The streamed operand in panels of `width`: [width panels][reduction...][width]."""
    load = found.panel
    if load is None or not packed:
        body = found.streamed
        if isinstance(body, Load):
            return _Panels(body, (), ())
        raise ScheduleError("the streamed operand is an expression: pack it")
    dim = next(d for d, i in enumerate(load.index) if found.lanes in i.axes())
    if load.tensor.role is Role.WEIGHT:
        factors = _panel_factors(found, load, dim, width)
        tensor = replace(load.tensor, layout=Layout(factors), halo=())
        return _Panels(Load(tensor, load.index), (tensor,), ())
    return _packing_stage(found, load, width, lanes)


def _panel_factors(found: Contraction, load: Load, dim: int, width: int) -> tuple[Factor, ...]:
    """Outer to inner: panels, batch dimensions, channel blocks, window, channels, the panel."""
    others = [d for d in range(len(load.index)) if d != dim]
    channel = next((d for d in others if found.channel in load.index[d].axes()), None)
    plain = [d for d in others if d != channel]
    window = [d for d in plain if set(load.index[d].axes()) & set(found.window)]
    batch = [d for d in plain if d not in window]
    factors = [Factor(d) for d in batch] + [Factor(dim, width)]
    if channel is not None and found.channel_block is not None:
        block = found.channel_block
        factors += [Factor(channel, block), *map(Factor, window), Factor(channel, 1, block)]
    else:
        factors += [Factor(channel)] if channel is not None else []
        factors += [Factor(d) for d in window]
    return (*factors, Factor(dim, 1, width))


def _packing_stage(found: Contraction, load: Load, width: int, lanes: int) -> _Panels:
    """A stage that writes a run-time operand into panels: shared[batch][panel][k][width]."""
    if found.window:
        raise ScheduleError("packing at run time is for matrix products")
    batch = tuple(
        a for a in found.problem.axes if a != found.lanes and any(a in i.axes() for i in load.index)
    )
    shape = (*(a.extent for a in batch), found.channel.extent, found.lanes.extent)
    rank = len(shape)
    factors = (
        *map(Factor, range(len(batch))),
        Factor(rank - 1, width),
        Factor(rank - 2),
        Factor(rank - 1, 1, width),
    )
    tensor = Tensor("panels", shape, load.dtype, Layout(factors), role=Role.SHARED)
    target = Load(tensor, (*map(affine, batch), affine(found.channel), affine(found.lanes)))
    body: Expr = load
    if unit_stride(load, found.channel):
        compute = Compute(
            (Store(target, Accumulator(load.dtype)),),
            body,
            unroll=(Tile(found.lanes), Tile(found.channel, lanes)),
            vector=found.channel,
            store_vector=found.lanes,
        )
        loops = [Loop(found.lanes, width), Loop(found.channel, lanes), Loop(found.lanes, lanes)]
    else:
        compute = Compute(
            (Store(target, Accumulator(load.dtype)),),
            body,
            unroll=(Tile(found.lanes, lanes),),
            vector=found.lanes,
        )
        loops = [Loop(found.lanes, width), Loop(found.channel)]
    stage = parallel_stage("pack", [*(Loop(a) for a in batch), *loops], compute)
    return _Panels(target, (tensor,), (stage,))


def _packed_broadcast(found: Contraction, tile: int) -> tuple[Expr, tuple[Tensor, ...]]:
    """The broadcast operand; a weight is packed so that one tile's points lie side by side."""
    load = found.broadcast
    if not isinstance(load, Load) or load.tensor.role is not Role.WEIGHT or found.tile is None:
        return load, ()
    dim = next((d for d, i in enumerate(load.index) if i == affine(found.tile)), None)
    if dim is None:
        return load, ()
    factors = (
        Factor(dim, tile),
        *(Factor(d) for d in range(len(load.index)) if d != dim),
        Factor(dim, 1, tile),
    )
    tensor = replace(load.tensor, layout=Layout(factors))
    return Load(tensor, load.index), (tensor,)
