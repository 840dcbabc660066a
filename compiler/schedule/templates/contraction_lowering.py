"""Lowering of a contraction: loops around one register tile, with operands packed in panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Accumulator, Combiner, Expr, Load, Role, Tensor
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, Stage, Store, Tile
from tilewright.compiler.loops.rewriting import reindex
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.edges import EdgePart, edge_parts
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    kernel_of,
    parallel_stage,
    unit_stride,
    with_halo,
)
from tilewright.compiler.schedule.templates.contraction_analysis import (
    Contraction,
    can_stream_unpacked,
    is_weight,
    needs_static_taps,
)
from tilewright.compiler.schedule.templates.contraction_split import partial_sums_stage, split_sum
from tilewright.compiler.sizes import exact_quotient, is_dynamic
from tilewright.compiler.targets.target import Target

TILES, MATRICES, GROUPS = "tiles", "matrices", "groups"
"""Values of the knob `products`, which selects the instructions for multiplication: tile registers
(AMX), matrix instructions of two rows by two columns (`smmla`), or products of a vector by one
element of 32 bits."""

NEXT_PANEL = "panel"
"""Value of the knob `prefetch` with which each tile prefetches a part of the next panel while it
reads a panel."""

ENOUGH_ACCUMULATORS = 8
"""Minimum number of accumulators that hide the latency of multiply-adds: a core starts two per
cycle, and each takes four cycles."""


@dataclass(frozen=True, slots=True)
class _Panels:
    """The buffers with a packed operand, and the kernel functions (stages) that write them.

    `load` reads an element of the operand. `stages` is empty for weights, which are packed at
    compile time, and for an operand that is read in place.
    """

    load: Load
    tensors: tuple[Tensor, ...]
    stages: tuple[Stage, ...]


def lower(found: Contraction, schedule: Schedule, mode: Mode) -> Kernel:
    """Return the kernel of a product or a convolution.

    Raises:
        ScheduleError: in three cases. The target lacks the instructions that the schedule selects.
            The sum does not divide evenly into the number of parts that the schedule requests. The
            schedule both divides the sum and packs an operand at run time: each needs a shared
            buffer, and a kernel has only one.
    """
    choices, target = dict(schedule.choices), mode.target
    if choices.get("products") == MATRICES:
        wide = found.with_matrix_instructions(target)
        if wide is None:
            raise ScheduleError("the target has no matrix instruction for these factors")
        found = wide
    if choices.get("products") == TILES:
        return _lower(with_tile_registers(found, target), schedule, mode)
    count = int(choices.get("split", 1))
    if count == 1:
        return _lower(found, schedule, mode)
    parts = exact_quotient(found.channel.extent, count * (found.channel_block or found.group))
    if found.window or parts is None:
        raise ScheduleError(f"the sum does not divide into {count} parts")
    if not is_weight(found.panel) and _is_packed(found, schedule):
        raise ScheduleError("a sum in parts is not read from panels made at run time")
    lanes = target.lanes(DType.FLOAT32)
    split = split_sum(found, count)
    kernel = _lower(split, schedule, mode)
    join = partial_sums_stage(found, split.problem.output, lanes)
    output = found.problem.output.tensor
    nest = replace(
        kernel.nest,
        buffers=(*kernel.nest.buffers, output),
        stages=with_halo((*kernel.nest.stages, join), output, lanes),
    )
    return replace(kernel, nest=nest)


def with_tile_registers(found: Contraction, target: Target) -> Contraction:
    """Return the contraction in steps that fill tile registers (AMX).

    Raises:
        ScheduleError: if the target has no tile registers for these factors.
    """
    depth = found.matrix_depth(target)
    if depth is None:
        raise ScheduleError("the target has no matrix registers for these factors")
    block = depth if found.window and found.channel_block is None else found.channel_block
    return replace(found, channel_block=block, depth=depth)


def _lower(found: Contraction, schedule: Schedule, mode: Mode) -> Kernel:
    problem, target = found.problem, mode.target
    lanes = target.lanes(DType.FLOAT32)
    tile, width = schedule.integer("tile"), schedule.integer("vectors") * lanes
    panels = _panels(found, width, lanes, packed=_is_packed(found, schedule))
    broadcast = _packed_broadcast(found, tile)
    found = replace(found, broadcast=broadcast[0], streamed=panels.load)
    if found.tile is not None and is_dynamic(found.tile.extent) and needs_static_taps(found):
        stages = tuple(
            _part_stage(f"main{number}", found, part, schedule, target)
            for number, part in enumerate(edge_parts(problem, found.tile))
        )
    else:
        static_taps = bool(found.window) and schedule.text("taps") == "unroll"
        stages = (_stage("main", found, schedule, target, tile, static_taps),)
    packed = (*panels.tensors, *broadcast[1])
    shared = [t for t in panels.tensors if t.role is Role.SHARED]
    return kernel_of(problem, (*panels.stages, *stages), mode, packed=packed, shared=shared)


def _part_stage(
    name: str, found: Contraction, part: EdgePart, schedule: Schedule, target: Target
) -> Stage:
    """Return the stage (a function of the kernel) that computes one part of the outputs.

    The outputs are divided along one axis into a first, a middle and a last part, because windows
    at both ends reach into padding. If `part.clipped` is true, the loops over the window are
    shortened at the padding, and the stage computes one output at a time. Otherwise, the stage
    computes register tiles.
    """
    own = replace(
        found,
        problem=part.problem,
        tile=part.axis,
        broadcast=reindex(found.broadcast, part.places),
        streamed=reindex(found.streamed, part.places),
    )
    if part.clipped:
        return _stage(name, own, schedule, target, 1, False)
    static_taps = schedule.text("taps") == "unroll"
    return _stage(name, own, schedule, target, schedule.integer("tile"), static_taps)


def _stage(
    name: str,
    found: Contraction,
    schedule: Schedule,
    target: Target,
    tile: int,
    static_taps: bool,
) -> Stage:
    """Return the stage (a function of the kernel) with the loops over register tiles.

    The factors are already packed. A register tile has `tile` rows. If `static_taps` is true, the
    last axis of the convolution window is unrolled.
    """
    problem = found.problem
    lanes = target.lanes(DType.FLOAT32)
    vectors = schedule.integer("vectors")
    unroll = found.depth // found.group if found.depth else schedule.integer("unroll")
    body = found.product(found.broadcast, found.streamed)
    reduce, points = reduction_tiles(found, unroll, static_taps)
    if found.tile is not None:
        points.append(Tile(found.tile))
    rows = [*map(LoopSpec, found.outer), *([LoopSpec(found.tile, tile)] if found.tile else [])]
    ahead, passes = weight_prefetch(found, schedule, target, rows)
    compute = Compute(
        (Store(problem.output, problem.epilogue),),
        body,
        Combiner.SUM,
        reduce=tuple(reduce),
        unroll=(*points, Tile(found.lanes, lanes * _joined(found, target, vectors))),
        vector=found.lanes,
        partial=() if found.depth else _partial(found, target, tile, vectors, unroll),
        skip_padding=static_taps,
        prefetch=ahead,
        passes=passes,
        dot=found.channel if found.group > 1 else None,
        rows=found.tile if found.depth else None,
    )
    peel = static_taps and needs_static_taps(found)
    loops = loops_around(found, schedule.text("order"), tile, vectors * lanes, peel)
    return parallel_stage(name, loops, compute)


def _joined(found: Contraction, target: Target, vectors: int) -> int:
    """Return how many adjacent vectors of a tile one instruction processes (RISC-V register
    groups).

    The result is above 1 only for 32-bit sums without dot-product groups, and only if the output's
    extent along the lanes is a multiple of half a vector. Any other extent requires a mask, which
    would occupy a register.
    """
    extent, half = found.lanes.extent, target.lanes(DType.FLOAT32) // 2
    if found.problem.reduction.dtype.bytes != 4 or found.group > 1:
        return 1
    return target.joined(vectors) if not is_dynamic(extent) and extent % half == 0 else 1


def weight_prefetch(
    found: Contraction, schedule: Schedule, target: Target, loops: Sequence[LoopSpec]
) -> tuple[int, tuple[Tile, ...]]:
    """Return how far ahead a schedule prefetches weights, and the loops that share the work.

    The knob `prefetch` is either a distance in bytes or NEXT_PANEL. For a distance in bytes, the
    tuple of loops is empty. For NEXT_PANEL, the result is the distance in bytes to the next panel
    (packed block of columns), and `loops`. All register tiles of these loops read the same panel,
    and each prefetches a part of the next one. The result is (0, ()) if the factor `streamed` is
    not a weight.

    Raises:
        ScheduleError: if the distance to the next panel depends on dynamic sizes.
    """
    if not is_weight(found.panel):
        return 0, ()
    if schedule["prefetch"] != NEXT_PANEL:
        return schedule.integer("prefetch"), ()
    ahead = found.pass_bytes(target, schedule.integer("vectors"))
    if is_dynamic(ahead):
        raise ScheduleError("it is not known where the next panel is")
    return ahead, tuple(Tile(loop.axis, loop.step) for loop in loops if loop.axis.moves)


def _partial(
    found: Contraction, target: Target, rows: int, vectors: int, unroll: int
) -> tuple[Axis, ...]:
    """Return the reduction axes whose unrolled steps get separate accumulators.

    Consecutive multiply-adds into one accumulator wait for each other. Separate accumulators avoid
    the wait. They are used if the tile has few vectors and enough registers are free.
    """
    tile = rows * vectors
    spare = target.vector_registers - found.registers(target, rows, vectors)
    few = tile < ENOUGH_ACCUMULATORS and tile * (unroll - 1) <= spare
    return (found.channel,) if few and not found.window and found.channel.moves else ()


def _is_packed(found: Contraction, schedule: Schedule) -> bool:
    """Whether the streamed operand is read from panels.

    In a convolution, an operand that is not a weight is always read in place.
    """
    if is_weight(found.panel):
        return True
    if found.window:
        return False
    return bool(schedule["pack"]) if can_stream_unpacked(found) else True


def reduction_tiles(
    found: Contraction, unroll: int, static_taps: bool
) -> tuple[list[Tile], list[Tile]]:
    """Return the loops over the reduction, and the steps that the innermost loop unrolls.

    The loops are ordered from the outermost to the innermost. If channels are stored in blocks, the
    order is: block, window, channel in the block. A convolution whose channels are not stored in
    blocks uses this order too, if it has dot-product groups; each group is then a block. In all
    other cases, the order is: channel, window.

    Args:
        found: the contraction.
        unroll: number of unrolled dot-product groups (adjacent channels that one instruction
            multiplies), or of channels without such groups.
        static_taps: whether the last axis of the window is unrolled.
    """
    reduce: list[Tile] = []
    block, group = found.channel_block, found.group
    if found.window and block is None and group > 1:
        block = group
    if block is not None and found.channel.moves:
        reduce.append(Tile(found.channel, block))
    elif found.window and found.channel.moves:
        reduce.append(Tile(found.channel, 1))
    for axis in found.window[:-1]:
        reduce.append(Tile(axis, 1))
    points: list[Tile] = []
    if found.window:
        reduce.append(Tile(found.window[-1], 1, unroll=static_taps))
    if found.channel.moves and (block is not None or not found.window):
        step = unroll * group
        reduce.append(Tile(found.channel, min(step, block or step)))
        points.append(Tile(found.channel, group))
    return reduce, points


def loops_around(
    found: Contraction, order: str, tile: int, width: int, peel: bool
) -> list[LoopSpec]:
    """Return the loops over register tiles of `tile` rows by `width` lanes, outermost first.

    `order` is the value of the knob `order`. If `peel` is true, the first and the last full tile of
    the loop over rows are emitted as static code.
    """
    across = [LoopSpec(found.lanes, width)]
    along = [LoopSpec(found.tile, tile, peel=peel)] if found.tile else []
    outer = [LoopSpec(axis) for axis in found.outer]
    batch = [LoopSpec(axis) for axis in found.batch]
    match order:
        case "lanes-outer":
            return [*batch, *across, *outer, *along]
        case "lanes-middle":
            return [*batch, *outer, *across, *along]
        case _:
            return [*batch, *outer, *along, *across]


def _panels(found: Contraction, width: int, lanes: int, *, packed: bool) -> _Panels:
    """Return the streamed operand in panels of `width` lanes, in the layout
    [panels][reduction...][width].

    If `packed` is false, the operand is read in place.

    Raises:
        ScheduleError: if the operand is not a load, so that it cannot be read in place.
    """
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
    """Return the layout of a weight in panels.

    From the outermost to the innermost dimension: batch, panels, channel blocks, window, channels,
    the lanes of a panel, and the channels of a dot-product group.
    """
    others = [d for d in range(len(load.index)) if d != dim]
    channel = next((d for d in others if found.channel in load.index[d].axes()), None)
    plain = [d for d in others if d != channel]
    window = [d for d in plain if set(load.index[d].axes()) & set(found.window)]
    batch = [d for d in plain if d not in window]
    factors = [Factor(d) for d in batch] + [Factor(dim, width)]
    block, group = found.channel_block, found.group
    if channel is not None and block is not None:
        inner = Factor(channel, group, block // group)
        factors += [Factor(channel, block), *map(Factor, window), inner]
    else:
        factors += [Factor(channel, group)] if channel is not None else []
        factors += [Factor(d) for d in window]
    factors.append(Factor(dim, 1, width))
    return (
        (*factors, Factor(channel, 1, group)) if channel is not None and group > 1 else (*factors,)
    )


def _packing_stage(found: Contraction, load: Load, width: int, lanes: int) -> _Panels:
    """Return panels of an operand that is known only at run time, and the stage that writes them.

    The stage packs the operand into the buffer shared[batch][panel][k][width]: panels of `width`
    columns, with all steps `k` of the sum. For dot-product instructions, which multiply groups of
    adjacent elements, it is shared[batch][panel][dot-product group][width][k in the group].

    Args:
        found: the contraction.
        load: the operand to pack.
        width: the columns of a panel.
        lanes: the columns that one vector of the stage copies.

    Raises:
        ScheduleError: if the contraction is a convolution with a window of several taps.
    """
    if found.window:
        raise ScheduleError("packing at run time is for matrix products")
    batch = tuple(
        a for a in found.problem.axes if a != found.lanes and any(a in i.axes() for i in load.index)
    )
    shape = (*(a.extent for a in batch), found.channel.extent, found.lanes.extent)
    rank, group = len(shape), found.group
    factors = (
        *map(Factor, range(len(batch))),
        Factor(rank - 1, width),
        Factor(rank - 2, group),
        Factor(rank - 1, 1, width),
        *([Factor(rank - 2, 1, group)] if group > 1 else []),
    )
    tensor = Tensor("panels", shape, load.dtype, Layout(factors), role=Role.SHARED)
    target = Load(tensor, (*map(affine, batch), affine(found.channel), affine(found.lanes)))
    body: Expr = load
    if group > 1:
        compute = Compute(
            (Store(target, Accumulator(load.dtype)),),
            body,
            unroll=(Tile(found.channel, group), Tile(found.lanes, lanes)),
            vector=found.lanes,
            dot=found.channel,
        )
        loops = [LoopSpec(found.lanes, width), LoopSpec(found.channel, group)]
    elif unit_stride(load, found.channel):
        compute = Compute(
            (Store(target, Accumulator(load.dtype)),),
            body,
            unroll=(Tile(found.lanes), Tile(found.channel, lanes)),
            vector=found.channel,
            store_vector=found.lanes,
        )
        # The reduction is innermost: hardware can prefetch the streams, one for each lane.
        loops = [
            LoopSpec(found.lanes, width),
            LoopSpec(found.lanes, lanes),
            LoopSpec(found.channel, lanes),
        ]
    else:
        compute = Compute(
            (Store(target, Accumulator(load.dtype)),),
            body,
            unroll=(Tile(found.lanes, lanes),),
            vector=found.lanes,
        )
        loops = [LoopSpec(found.lanes, width), LoopSpec(found.channel)]
    stage = parallel_stage("pack", [*(LoopSpec(a) for a in batch), *loops], compute)
    return _Panels(target, (tensor,), (stage,))


def _packed_broadcast(found: Contraction, tile: int) -> tuple[Expr, tuple[Tensor, ...]]:
    """Return the broadcast operand and its packed tensors, if any.

    A weight is packed so that the factors of a register tile's rows are contiguous.
    """
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
