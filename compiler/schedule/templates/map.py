"""Elementwise chains, data movement and relayouts: one expression per output element.

If an input is contiguous along another axis than the output (transposition, relayout), square tiles
are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Accumulator, Expr, Load, Op, loads, walk
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, Stage, Store, Tile
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.merge import one_expression
from tilewright.compiler.schedule.problem import Problem
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    aligned,
    kernel_of,
    parallel_stage,
    unit_stride,
    vector_axis,
)
from tilewright.compiler.schedule.templates import Template

UNROLLS = (1, 2, 4, 8)

_LONG = 48
"""Number of operations in an expression beyond which unrolling gains nothing, and costs compile
time."""


def analyse(workload: Workload) -> Problem | None:
    """Return a workload as one expression without reductions; None for any other workload."""
    problem = one_expression(workload)
    return None if problem is None or problem.reductions else problem


def _is_wide(problem: Problem, lanes: int) -> bool:
    """Whether an input is contiguous along another axis than the output, and this axis has at
    least four elements.

    Tiles that are transposed in registers are then wide enough to be worthwhile.
    """
    turned = transposed_axis(problem, lanes)
    return turned is not None and turned.extent >= 4


def _knobs(problem: Problem, mode: Mode) -> tuple[Knob, ...]:
    wide = _is_wide(problem, mode.target.lanes(DType.FLOAT32))
    return Knob("unroll", UNROLLS), Knob("transpose", (True, False) if wide else (False,))


def _lowers(problem: Problem, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    if choice["transpose"]:
        return choice["unroll"] == 1
    tiles = _plain(problem, int(choice["unroll"]), mode.target.lanes(DType.FLOAT32))
    return tiles is None or tiles.fits(problem.output, problem.expr)


def _default(problem: Problem, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule | None:
    """Return the default schedule.

    The result is None if vectors along the output's contiguous axis would cross the blocks of a
    tensor's layout.
    """
    wide = True in knobs[1].values
    # A long expression keeps the core busy without unrolling.
    long = sum(isinstance(node, Op) for node in walk(problem.expr)) > _LONG
    tried = (
        Schedule.of("map", unroll=unroll, transpose=wide)
        for unroll in ((1,) if wide or long else (4, 2, 1))
    )
    return next((each for each in tried if _lowers(problem, mode, dict(each.choices))), None)


def _lower(problem: Problem, schedule: Schedule, mode: Mode) -> Kernel:
    unroll, transpose = schedule.integer("unroll"), bool(schedule["transpose"])
    stage = map_stage("main", problem, mode.target.lanes(DType.FLOAT32), unroll, transpose)
    return kernel_of(problem, (stage,), mode)


TEMPLATE = Template(
    algorithms=("map",),
    analyse=analyse,
    preference=lambda problem, mode: 1.0,
    knobs=_knobs,
    default=_default,
    lower=_lower,
    form=_lowers,
)


def transposed_axis(problem: Problem, lanes: int) -> Axis | None:
    """Return the axis along which a load is contiguous, if the store is contiguous along another.

    Returns None if no load differs from the store, or if square tiles of both axes would cross the
    blocks of a layout.
    """
    target, axes = problem.output, problem.axes
    along = vector_axis(target, axes)
    if along is None or along.extent == 1:
        return None
    for load in loads(problem.expr):
        used = {a for index in load.index for a in index.axes()}
        other = vector_axis(load, axes)
        if along in used and not unit_stride(load, along) and other is not None:
            tiles = _turned(target, along, other, lanes)
            return other if tiles.fits(target, problem.expr) else None
    return None


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The tiles of an elementwise computation: their sizes, and how one tile is computed.

    Attributes:
        steps: the tile size along each axis.
        points: the axes of the register tile, which are unrolled.
        vector: the axis whose elements form a vector, with the number of elements per step.
        store_vector: the axis along which transposed tiles are stored; None if tiles are not
            transposed.
    """

    steps: Mapping[Axis, int]
    points: tuple[Tile, ...]
    vector: Tile
    store_vector: Axis | None = None

    def fits(self, target: Load, expr: Expr) -> bool:
        """Whether every tile lies within the blocks of the layouts of `target` and of the loads in
        `expr`.
        """
        return all(aligned(load, self.steps, self.vector) for load in (target, *loads(expr)))


def _turned(target: Load, along: Axis, turned: Axis, lanes: int) -> _Tiles:
    """Return square tiles that are loaded along the axis `turned` and stored along `along`."""
    width = _tile_width(target, lanes)
    return _Tiles(
        {along: width, turned: width},
        (Tile(along), Tile(turned, width)),
        Tile(turned, width),
        along,
    )


def _plain(problem: Problem, unroll: int, lanes: int) -> _Tiles | None:
    """Return tiles of `unroll` vectors along the contiguous axis of the output.

    If this axis is not the innermost loop (blocked channels), a tile has one vector at each of
    `unroll` steps of the innermost loop. The result is None if the output has no contiguous axis.
    """
    along = vector_axis(problem.output, problem.axes)
    if along is None:
        return None
    last = [axis for axis in problem.axes if axis.moves][-1]
    # With blocked channels, vectors do not run along the innermost loop, but unrolling does.
    if last == along:
        return _Tiles({along: lanes * unroll}, (Tile(along, lanes),), Tile(along, lanes))
    return _Tiles(
        {along: lanes, last: unroll}, (Tile(last), Tile(along, lanes)), Tile(along, lanes)
    )


def _tile_width(target: Load, lanes: int) -> int:
    """Return the number of contiguous elements per store: a vector, or a narrower block of the
    layout.
    """
    factors = target.tensor.layout.factors
    block = factors[-1].mod if factors else None
    return min(lanes, block or lanes)


def map_stage(name: str, problem: Problem, lanes: int, unroll: int, transpose: bool) -> Stage:
    """Return a stage that computes the problem's expression for every element of the output.

    Args:
        name: name of the stage.
        problem: the problem, without reductions.
        lanes: lanes of a vector.
        unroll: vectors per step of the innermost loop.
        transpose: whether to transpose square tiles in registers, if `transposed_axis` finds an
            axis.
    """
    target, expr = problem.output, problem.expr
    turned = transposed_axis(problem, lanes) if transpose else None
    along = vector_axis(target, problem.axes)
    if turned is not None and along is not None:
        tiles: _Tiles | None = _turned(target, along, turned, lanes)
    else:
        tiles = _plain(problem, unroll, lanes)
    store = Store(target, Accumulator(expr.dtype))
    moving = [a for a in problem.axes if a.moves]
    if tiles is None:
        return parallel_stage(name, [LoopSpec(a) for a in moving], Compute((store,), expr))
    if turned is not None:
        moving.sort(key=lambda axis: axis in tiles.steps)
    compute = Compute(
        (store,),
        expr,
        unroll=tiles.points,
        vector=tiles.vector.axis,
        store_vector=tiles.store_vector,
    )
    return parallel_stage(name, [LoopSpec(a, tiles.steps.get(a, 1)) for a in moving], compute)
