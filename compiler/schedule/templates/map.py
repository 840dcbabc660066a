"""Elementwise chains, data movement and relayouts: one output element is one expression.

Where the output's lanes are not the input's (transposition, relayout), square tiles are transposed
in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Accumulator, Expr, Load, Op, loads, walk
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, LoopNest, Stage, Store, Tile
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.merge import merge_axes
from tilewright.compiler.schedule.problem import Problem, compose, is_one_expression
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob, SubSpace
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    aligned,
    parallel_stage,
    unit_stride,
    vector_axis,
    with_halo,
)
from tilewright.compiler.targets.target import Target


@memo(256)
def analyse(workload: Workload) -> Problem | None:
    """The expression of each element; None where something is reduced or put together."""
    if not is_one_expression(workload):
        return None
    problem = merge_axes(compose(workload))
    return None if problem.reductions else problem


class _Template:
    algorithms = ("map",)

    def preference(self, workload: Workload, target: Target) -> float:
        return 1.0

    def space(self, workload: Workload, mode: Mode) -> SubSpace | None:
        problem = analyse(workload)
        if problem is None:
            return None
        lanes = mode.target.lanes(DType.FLOAT32)
        turned = transposed_axis(problem.output, problem.expr, problem.axes, lanes)
        wide = turned is not None and turned.extent >= 4
        knobs = (
            Knob("unroll", (1, 2, 4, 8)),
            Knob("transpose", (True, False) if wide else (False,)),
        )

        def valid(choice: Mapping[str, Choice]) -> bool:
            if choice["transpose"]:
                return choice["unroll"] == 1
            tiles = _plain(problem.output, problem.axes, int(choice["unroll"]), lanes)
            return tiles is None or tiles.fits(problem.output, problem.expr)

        # A long expression keeps the core busy by itself.
        long = sum(isinstance(node, Op) for node in walk(problem.expr)) > _LONG
        for unroll in (1,) if wide or long else (4, 2, 1):
            default = Schedule.of("map", unroll=unroll, transpose=wide)
            if valid(dict(default.choices)):
                return SubSpace("map", knobs, valid, default)
        return None  # vectors along the output would straddle the blocks of an operand

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        problem = analyse(workload)
        if problem is None:
            raise ScheduleError("'map' does not apply to this workload")
        lanes = target.lanes(DType.FLOAT32)
        stage = map_stage("main", problem.output, problem.expr, problem.axes, schedule, lanes)
        output = problem.output.tensor
        stages = with_halo((stage,), output, lanes)
        nest = LoopNest("kernel", (*problem.inputs, output), (), stages)
        return Kernel(nest, tuple((t.name, i) for i, t in enumerate(problem.inputs)))


TEMPLATE = _Template()

_LONG = 48
"""Operations in an expression from which on unrolling gains nothing, and costs compile time."""


def transposed_axis(target: Load, expr: Expr, axes: Sequence[Axis], lanes: int) -> Axis | None:
    """The axis along which a load has its lanes, where the store has them along another.

    None also where square tiles of both straddle the blocks of a layout.
    """
    along = vector_axis(target, axes)
    if along is None or along.extent == 1:
        return None
    for load in loads(expr):
        used = {a for index in load.index for a in index.axes()}
        other = vector_axis(load, axes)
        if along in used and not unit_stride(load, along) and other is not None:
            tiles = _turned(target, along, other, lanes)
            return other if tiles.fits(target, expr) else None
    return None


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The steps of loops, the points that they hold, and the axes along vectors."""

    steps: Mapping[Axis, int]
    points: tuple[Tile, ...]
    vector: Tile
    store_vector: Axis | None = None

    def fits(self, target: Load, expr: Expr) -> bool:
        """Whether no tile straddles the blocks of a layout."""
        return all(aligned(load, self.steps, self.vector) for load in (target, *loads(expr)))


def _turned(target: Load, along: Axis, turned: Axis, lanes: int) -> _Tiles:
    """Square tiles, read along one axis and stored along the other."""
    width = _tile_width(target, lanes)
    return _Tiles(
        {along: width, turned: width},
        (Tile(along), Tile(turned, width)),
        Tile(turned, width),
        along,
    )


def _plain(target: Load, axes: Sequence[Axis], unroll: int, lanes: int) -> _Tiles | None:
    """Vectors along the axis that the output lies along; None where there is no such axis."""
    along = vector_axis(target, axes)
    if along is None:
        return None
    last = [axis for axis in axes if axis.moves][-1]
    # With blocked channels, vectors do not run along the innermost loop, but unrolling does.
    if last == along:
        return _Tiles({along: lanes * unroll}, (Tile(along, lanes),), Tile(along, lanes))
    return _Tiles(
        {along: lanes, last: unroll}, (Tile(last), Tile(along, lanes)), Tile(along, lanes)
    )


def _tile_width(target: Load, lanes: int) -> int:
    """Elements that a store writes side by side: a vector, or a narrower block of the layout."""
    factors = target.tensor.layout.factors
    block = factors[-1].mod if factors else None
    return min(lanes, block or lanes)


def map_stage(
    name: str,
    target: Load,
    expr: Expr,
    axes: Sequence[Axis],
    schedule: Schedule,
    lanes: int,
) -> Stage:
    """`target = expr` over all axes, the first of them parallel."""
    turned = transposed_axis(target, expr, axes, lanes) if schedule["transpose"] else None
    along = vector_axis(target, axes)
    if turned is not None and along is not None:
        tiles: _Tiles | None = _turned(target, along, turned, lanes)
    else:
        tiles = _plain(target, axes, schedule.integer("unroll"), lanes)
    store = Store(target, Accumulator(expr.dtype))
    moving = [a for a in axes if a.moves]
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
