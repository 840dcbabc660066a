"""Elementwise chains, data movement and relayouts: one output element is one expression.

Where the output's lanes are not the input's (transposition, relayout), square tiles are transposed
in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.loops.expr import Accumulator, Expr, Load, Op, loads, walk
from compiler.loops.index import Axis
from compiler.loops.nest import Compute, LoopNest, Stage, Store, Tile
from compiler.schedule.kernel import Kernel
from compiler.schedule.merge import merge_axes
from compiler.schedule.problem import Problem, compose, is_one_expression
from compiler.schedule.schedule import Choice, Schedule
from compiler.schedule.space import Knob, SubSpace
from compiler.schedule.structure import (
    LoopSpec,
    halo_stage,
    parallel_stage,
    unit_stride,
    vector_axis,
)
from compiler.target import Target
from compiler.workload import Workload


@lru_cache(maxsize=256)
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

    def space(
        self, workload: Workload, target: Target, *, threads: int, numerics: str
    ) -> SubSpace | None:
        problem = analyse(workload)
        if problem is None:
            return None
        turned = transposed_axis(problem.output, problem.expr, problem.axes)
        wide = turned is not None and turned.extent >= 4
        knobs = (
            Knob("unroll", (1, 2, 4, 8)),
            Knob("transpose", (True, False) if wide else (False,)),
        )

        def valid(choice: Mapping[str, Choice]) -> bool:
            return not choice["transpose"] or choice["unroll"] == 1

        # a long expression keeps the machine busy by itself
        long = sum(isinstance(node, Op) for node in walk(problem.expr)) > _LONG
        default = Schedule.of("map", unroll=1 if wide or long else 4, transpose=wide)
        return SubSpace("map", knobs, valid, default)

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        problem = analyse(workload)
        if problem is None:
            raise ScheduleError("'map' does not apply to this workload")
        lanes = target.lanes(DType.FLOAT32)
        stage = map_stage("main", problem.output, problem.expr, problem.axes, schedule, lanes)
        output = problem.output.tensor
        stages = (stage, *halo_stage(output, lanes))
        nest = LoopNest("kernel", (*problem.inputs, output), (), stages)
        return Kernel(nest, tuple((t.name, i) for i, t in enumerate(problem.inputs)))


TEMPLATE = _Template()

_LONG = 48
"""Operations in an expression from which on unrolling gains nothing, and costs compile time."""


def transposed_axis(target: Load, expr: Expr, axes: Sequence[Axis]) -> Axis | None:
    """The axis along which a load has its lanes, where the store has them along another."""
    along = vector_axis(target, axes)
    if along is None or along.extent == 1:
        return None
    for load in loads(expr):
        used = {a for index in load.index for a in index.axes()}
        other = vector_axis(load, axes)
        if along in used and not unit_stride(load, along) and other is not None:
            return other
    return None


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
    along = vector_axis(target, axes)
    store = Store(target, Accumulator(expr.dtype))
    unroll = schedule.integer("unroll")
    moving = [a for a in axes if a.extent > 1]
    turned = transposed_axis(target, expr, axes) if schedule["transpose"] else None
    if turned is not None and along is not None:
        width = _tile_width(target, lanes)
        compute = Compute(
            (store,),
            expr,
            unroll=(Tile(along), Tile(turned, width)),
            vector=turned,
            store_vector=along,
        )
        steps = {along: width, turned: width}
        order = [a for a in moving if a not in steps] + [a for a in moving if a in steps]
        return parallel_stage(name, [LoopSpec(a, steps.get(a, 1)) for a in order], compute)
    if along is None:
        return parallel_stage(name, [LoopSpec(a) for a in moving], Compute((store,), expr))
    # Blocked channels are not the innermost loop: unrolling then runs along the innermost one.
    last = moving[-1]
    points = () if last == along else (Tile(last),)
    compute = Compute((store,), expr, unroll=(*points, Tile(along, lanes)), vector=along)
    steps = {along: lanes * (unroll if last == along else 1)}
    if last != along:
        steps[last] = unroll
    return parallel_stage(name, [LoopSpec(a, steps.get(a, 1)) for a in moving], compute)
