"""Depthwise convolution, pooling, and other reductions in which each vector lane has its own
window.

A small window is unrolled completely. Its weights stay in registers, and each input is read once
and added to all accumulators that need it. For a larger window, the outer window axes are loops,
whose ranges are clipped at padding. A depthwise convolution of 8-bit integers multiplies four taps
of a row by one dot-product instruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Expr, Load, Role, Tensor, loads
from tilewright.compiler.loops.index import Axis, FloorDiv, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import (
    Compute,
    Order,
    Stage,
    Store,
    Tile,
    dot_operands,
)
from tilewright.compiler.loops.rewriting import rewrite
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.edges import edge_parts
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.merge import one_expression
from tilewright.compiler.schedule.problem import Problem, axes_of
from tilewright.compiler.schedule.resources import useful_fraction
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    edges_are_static,
    kernel_of,
    needs_padding,
    padded_axes,
    parallel_stage,
    reads_halo,
    short_step,
    tile_edges,
    unit_stride,
    vector_axis,
)
from tilewright.compiler.schedule.templates import Template
from tilewright.compiler.sizes import always_less, is_dynamic
from tilewright.compiler.targets.target import Target

_ENOUGH_POINTS = 6
"""Minimum number of points of a register tile. If the weights of all taps leave too few registers
for these points, the weights of one row of taps are loaded at a time."""

_CROWDED_ROWS = 0.8
"""Score factor of a tile of several rows if the registers do not hold the tile together with the
weights of all taps. In a tile of one row, an input row is multiplied by the weights of one row of
taps; in a tile of several rows, by those of all. With 16 registers and 3x3 taps, seven outputs of
one row took 0.88 to 1.01 of the time of four rows of two outputs."""

_SPILLED_PIXELS = 0.6
"""Score factor of a tile that LLVM spills in its innermost loop. On a RISC-V with eight registers,
such a tile needs 43 instructions for twelve multiply-adds; a tile without spills needs 27 for
nine."""

_UNROLLED_TAPS = 25
"""Maximum number of elements of a window, or of one of its rows, that is unrolled completely."""


@dataclass(frozen=True)
class WindowReduction:
    """The structure of a window reduction in which each vector lane has its own window.

    Attributes:
        problem: the workload as one expression.
        lanes: the vector axis; None if elements are computed as scalars.
        tile: the first axis of the register tile.
        rows: the second axis of the register tile.
        outer: the other axes of the output.
        reads_halo: whether the reduction may read the zeros of a halo, which only sums may.
        dot: the window axis whose taps dot-product instructions may multiply; None for types other
            than 8-bit integers.
    """

    problem: Problem
    lanes: Axis | None
    tile: Axis | None
    rows: Axis | None
    outer: tuple[Axis, ...]
    reads_halo: bool
    padded: frozenset[Axis]
    """Output axes along which a window may extend beyond the edge of the tensor that it reads."""
    dot: Axis | None = None

    def dot_on(self, target: Target) -> Axis | None:
        """Return the axis `dot` if the target has dot-product instructions for 8-bit integers, else
        None.

        The result is also None if a vector may contain channels of two layout blocks.
        """
        lanes = target.lanes(DType.INT32)
        blocks = (f.mod or lanes for t in self.problem.inputs for f in t.layout.factors[-1:])
        whole = all(block % lanes == 0 for block in blocks)
        return self.dot if whole and target.has_int8_dot else None

    def steps(self, target: Target) -> int:
        """Return the number of multiplications or other operations for one output.

        Each tap of the window counts as one. Four taps count as one if a dot-product instruction
        multiplies them.
        """
        dot = self.dot_on(target)
        return _taps(self) if dot is None else _taps(self) // dot.extent * -(-dot.extent // GROUP)


GROUP = 4
"""Number of 8-bit taps that one lane of a dot-product instruction multiplies."""


@memo(256)
def analyse(workload: Workload) -> WindowReduction | None:
    """Return the structure of a window reduction; None for other workloads."""
    problem = one_expression(workload)
    if problem is None or len(problem.reductions) != 1:
        return None
    reduction = problem.reduction
    lanes = vector_axis(problem.output, problem.axes)
    if lanes is not None and not all(_has_lanes(load, lanes) for load in loads(reduction.body)):
        lanes = None
    if problem.product is not None and (
        lanes is None or not _is_depthwise(problem.product, lanes, problem.axes)
    ):
        return None
    padded = padded_axes(problem)
    if lanes in padded:
        lanes = None
    spatial = [a for a in problem.axes if a != lanes and a.moves]
    tile = spatial[-1] if spatial else None
    rows = spatial[-2] if len(spatial) > 1 else None
    outer = tuple(a for a in spatial if a not in (tile, rows))
    return WindowReduction(
        problem, lanes, tile, rows, outer, reads_halo(reduction), padded, _dot(problem, lanes)
    )


def _dot(problem: Problem, lanes: Axis | None) -> Axis | None:
    """Return the last window axis if dot-product instructions can multiply its taps, else None.

    Factors must be 8-bit integers, and no tap may be padding.
    """
    axes = [a for a in problem.reduction.axes if a.moves]
    operands = dot_operands(problem.reduction.body)
    if operands is None or problem.reduction.dtype is not DType.INT32 or not axes or lanes is None:
        return None
    (dot,) = axes[-1:]
    weights = [load for load in operands if load.tensor.role is Role.WEIGHT]
    images = [load for load in operands if load not in weights]
    if len(weights) != 1 or len(images) != 1 or operands[0].dtype.bytes != 1:
        return None
    (weight,), (image,) = weights, images
    apart = dot in axes_of(image) and not any({dot, lanes} <= {*i.axes()} for i in image.index)
    if not (apart and unit_stride(image, lanes)) or needs_padding(image):
        return None
    return dot if affine(dot) in weight.index and affine(lanes) in weight.index else None


def _is_depthwise(product: tuple[Expr, Expr], lanes: Axis, outputs: Sequence[Axis]) -> bool:
    """Whether the output axes of one factor include those of the other, as in a depthwise
    convolution.

    Register tiles of such a product reuse no operands, unlike those of a matrix product.
    """
    indices = [i for side in product for load in loads(side) for i in load.index]
    if any(isinstance(term, FloorDiv) for index in indices for term, _ in index.terms):
        return False  # a group of several filters
    first, second = (axes_of(side) & set(outputs) for side in product)
    return lanes in first | second and (first <= second or second <= first)


def _has_lanes(load: Load, lanes: Axis) -> bool:
    """Whether an operand can be read as vectors along the axis `lanes`.

    This holds for weights, which are packed. It also holds for inputs that are contiguous along the
    axis, or have a short stride: their vectors are loaded and permuted.
    """
    if lanes not in axes_of(load):
        return load.tensor.role is Role.WEIGHT  # one number for all lanes
    return load.tensor.role is Role.WEIGHT or unit_stride(load, lanes) or short_step(load, lanes)


def _has_splat_weights(found: WindowReduction) -> bool:
    """Whether any weight has the same value for all lanes."""
    return any(
        load.tensor.role is Role.WEIGHT and found.lanes not in axes_of(load)
        for load in loads(found.problem.reduction.body)
    )


def _taps(found: WindowReduction) -> int:
    return prod(a.extent for a in found.problem.reduction.axes)


def _padded_by(found: WindowReduction, taps: Axis) -> set[Axis]:
    """Return the output axes along which a window axis may move a load outside its tensor."""
    return {
        axis
        for load in loads(found.problem.reduction.body)
        for dim in needs_padding(load, with_halo=found.reads_halo)
        if taps in load.index[dim].axes()
        for axis in load.index[dim].axes()
        if axis in found.problem.axes
    }


def _has_static_row(found: WindowReduction) -> bool:
    """Whether the last window axis can be unrolled while the other window axes are loops.

    Taps in the padding must be skipped. Along the tile axis, unrolled taps are skipped separately
    for each output of the tile. Along any other output axis, only a loop over taps can be clipped,
    so that unrolling is not possible.
    """
    axes = _window_axes(found)
    few = always_less(_taps(found), _UNROLLED_TAPS + 1)
    if not axes or (found.tile in found.padded and not few):
        return False
    return always_less(axes[-1].extent, _UNROLLED_TAPS + 1) and _padded_by(found, axes[-1]) <= {
        found.tile
    }


def _window_axes(found: WindowReduction) -> list[Axis]:
    return [a for a in found.problem.reduction.axes if a.moves]


def _clips_tile(found: WindowReduction) -> bool:
    """Whether the first or last outputs of a row need a loop over fewer taps than the others.

    A tap is an element of the window. Near the border of the image, taps in the padding are skipped
    by shortening (clipping) the loop over the taps. Each output along the tile axis then needs
    other bounds of this loop. Outputs of one register tile share the loop, so the tile must have
    the width of one output, unless all taps are unrolled instead. The result is False if the loops
    over taps never meet padding along the tile axis.
    """
    axes = _window_axes(found)
    loops = axes[:-1] if _has_static_row(found) else axes
    return any(found.tile in _padded_by(found, axis) for axis in loops)


def _can_unroll_rows(found: WindowReduction) -> bool:
    return always_less(_taps(found), _UNROLLED_TAPS + 1) and found.padded <= {found.tile}


def _knobs(found: WindowReduction, mode: Mode) -> tuple[Knob, ...]:
    tile = found.tile.extent if found.tile else 1
    rows = found.rows.extent if found.rows else 1
    edge = tile_edges(found.problem.reduction, found.tile)
    tiles = tuple(
        t
        for t in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
        if t <= tile and edges_are_static(edge, tile, t)
    )
    unrolled = _can_unroll_rows(found)
    if _clips_tile(found) and not unrolled:
        tiles = (1,)
    # If lanes are pixels, rows are channels, and each keeps its own weights in registers.
    single = not unrolled or _has_splat_weights(found)
    heights = (1,) if single else tuple(r for r in (1, 2, 3, 4) if r <= rows)
    return (
        Knob("tile", tiles),
        Knob("rows", heights),
        Knob("taps", ("all", "row") if unrolled else ("row",)),
        Knob("order", ("greedy", "program")),
    )


def _lowers(found: WindowReduction, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    """Whether a choice of knob values can be lowered to a kernel.

    If the window is a loop, its range must be the same for all outputs of a tile. The unrolled code
    must be small enough to compile.
    """
    tile, rows = int(choice["tile"]), int(choice["rows"])
    if choice["taps"] == "row" and (rows > 1 or (tile > 1 and _clips_tile(found))):
        return False
    return tile * rows * max(1, found.steps(mode.target) if choice["taps"] == "all" else 1) <= 800


def _fits(found: WindowReduction, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    target = mode.target
    points = int(choice["tile"]) * int(choice["rows"])
    if points > target.vector_registers - 4:
        return False
    weights = (
        found.steps(target) if found.problem.product is not None and choice["taps"] == "all" else 0
    )
    return points + min(weights, 9) < target.vector_registers + 2


def _is_crowded(found: WindowReduction, target: Target) -> bool:
    """Whether the weights of all taps leave too few registers for the outputs of a tile.

    Loading the weights of one row of taps at a time then leaves registers for more outputs, and
    needs fewer loads in total.
    """
    weights = found.steps(target) if found.problem.product is not None else 0
    return bool(weights) and min(weights, 9) + _ENOUGH_POINTS > target.vector_registers


def _holds_pixels(target: Target, points: int) -> bool:
    """Whether LLVM would keep one pixel per output of a tile in registers, and therefore spill.

    `points` is the number of outputs of the tile. Pixels stay in registers on targets that multiply
    a vector by a scalar register: no multiply-add reads memory there, so that a loaded pixel is
    used for one weight after the other.
    """
    return target.has_vector_scalar_products and 2 * points + 1 > target.vector_registers


def _default(found: WindowReduction, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule:
    target = mode.target
    values = {knob.name: knob.values for knob in knobs}
    tile_extent = found.tile.extent if found.tile else 1
    row_extent = found.rows.extent if found.rows else 1
    best: tuple[float, Schedule] | None = None
    weights = found.steps(target) if found.problem.product is not None else 0
    taps = values["taps"][-1 if _is_crowded(found, target) else 0]
    for tile in values["tile"]:
        for rows in values["rows"]:
            choice: dict[str, Choice] = {
                "tile": tile,
                "rows": rows,
                "taps": taps,
                "order": "greedy",
            }
            useful = useful_fraction((tile_extent, int(tile)), (row_extent, int(rows)))
            score = useful * min(1.0, int(tile) * int(rows) / 12)
            if int(rows) > 1 and int(tile) * int(rows) + weights >= target.vector_registers:
                score *= _CROWDED_ROWS
            if weights and taps == "row" and _holds_pixels(target, int(tile)):
                score *= _SPILLED_PIXELS
            valid = _lowers(found, mode, choice) and _fits(found, mode, choice)
            score += 10.0 if valid else 0.0
            if best is None or score > best[0]:
                best = score, Schedule.of("window", **choice)
    assert best is not None
    return best[1]


def _lower(found: WindowReduction, schedule: Schedule, mode: Mode) -> Kernel:
    problem, target, tile = found.problem, mode.target, found.tile
    if tile is not None and tile in found.padded and is_dynamic(tile.extent):
        lowered = [
            _stage(
                f"main{number}",
                replace(
                    found, problem=part.problem, tile=part.axis, padded=padded_axes(part.problem)
                ),
                _CLIPPED if part.clipped else schedule,
                target,
            )
            for number, part in enumerate(edge_parts(problem, tile))
        ]
    else:
        lowered = [_stage("main", found, schedule, target)]
    return kernel_of(problem, [stage for stage, _ in lowered], mode, packed=lowered[0][1])


_CLIPPED = Schedule.of("window", tile=1, rows=1, taps="row", order="greedy")
"""Schedule for the outputs at the edges of an image. It computes one output at a time, and its
loops leave out the taps beyond the edge."""


def _stage(
    name: str, found: WindowReduction, schedule: Schedule, target: Target
) -> tuple[Stage, tuple[Tensor, ...]]:
    """Return the stage with the loops over all outputs, and the packed weights that it reads."""
    problem = found.problem
    lanes = target.lanes(DType.FLOAT32)
    reduction = problem.reduction
    axes = _window_axes(found)
    if schedule.text("taps") == "all":
        if any(is_dynamic(axis.extent) for axis in axes):
            raise ScheduleError("a window of open extents is not written out")
        reduce: list[Tile] = []
        points = [*map(Tile, axes)]
    else:
        static = _has_static_row(found) and schedule is not _CLIPPED
        reduce = [*map(Tile, axes[:-1] if static else axes)]
        points = [*map(Tile, axes[-1:])] if static else []
    dot = found.dot_on(target) if any(point.axis == found.dot for point in points) else None
    points = [replace(point, step=GROUP) if point.axis == dot else point for point in points]
    if dot is not None and dot.extent > GROUP:
        reduce.append(Tile(dot, GROUP, unroll=True))  # the last group may have fewer taps
    body, packed = _packed_weights(found, lanes, dot)
    spatial = [Tile(a) for a in (found.rows, found.tile) if a is not None]
    across = [Tile(found.lanes, lanes)] if found.lanes is not None else []
    compute = Compute(
        (Store(problem.output, problem.epilogue),),
        body,
        reduction.combiner,
        reduce=tuple(reduce),
        unroll=(*points, *spatial, *across),
        vector=found.lanes,
        order=_ORDERS[schedule.text("order")],
        skip_padding=not found.reads_halo,
        dot=dot,
    )
    loops = {a: LoopSpec(a) for a in found.outer}
    if found.lanes is not None:
        loops[found.lanes] = LoopSpec(found.lanes, lanes)
    if found.rows is not None:
        loops[found.rows] = LoopSpec(found.rows, schedule.integer("rows"))
    if found.tile is not None:
        peel = found.tile in found.padded and not is_dynamic(found.tile.extent)
        loops[found.tile] = LoopSpec(found.tile, schedule.integer("tile"), peel=peel)
    # In the order of the output's axes, so that the inputs of neighbours are still in the cache.
    ordered = [loops[a] for a in problem.axes if a in loops]
    return parallel_stage(name, ordered, compute), packed


_ORDERS = {"greedy": Order.GREEDY, "program": Order.PROGRAM}


def _packed_weights(
    found: WindowReduction, lanes: int, dot: Axis | None
) -> tuple[Expr, tuple[Tensor, ...]]:
    """Return the reduced expression with weights packed along the lanes, and the packed tensors.

    A weight (c, 1, kh, kw) becomes [c/lanes][kh][kw][lanes]. With groups of four taps along `dot`,
    it becomes [c/lanes][kh][kw/4][lanes][4].
    """
    body = found.problem.reduction.body
    if found.lanes is None:
        return body, ()
    changed: dict[Load, Load] = {}
    for load in loads(body):
        if load.tensor.role is not Role.WEIGHT:
            continue
        dim = next((d for d, i in enumerate(load.index) if found.lanes in i.axes()), None)
        if dim is None:
            continue
        grouped = [d for d, i in enumerate(load.index) if dot is not None and dot in i.axes()]
        factors = (
            Factor(dim, lanes),
            *(Factor(d, GROUP if d in grouped else 1) for d in range(len(load.index)) if d != dim),
            Factor(dim, 1, lanes),
            *(Factor(d, 1, GROUP) for d in grouped),
        )
        tensor = replace(load.tensor, layout=Layout(factors))
        changed[load] = Load(tensor, load.index)

    def change(node: Expr) -> Expr | None:
        return changed.get(node) if isinstance(node, Load) else None

    return rewrite(body, change), tuple(load.tensor for load in changed.values())


TEMPLATE = Template(
    algorithms=("window",),
    analyse=analyse,
    preference=lambda found, mode: 2.0,
    knobs=_knobs,
    default=_default,
    lower=_lower,
    form=_lowers,
    machine=_fits,
)
