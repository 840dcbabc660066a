"""Normalisations and reductions: several computes that share the loops over rows.

softmax, layer norm, sums and means along any axes. Every reduction inside the expression becomes a
row statistic in a register, inner ones first; the last compute is the expression over them. Lanes
run along the reduced axis where its elements lie side by side, else along rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from compiler import ops
from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.loops.expr import (
    Accumulator,
    Combiner,
    Expr,
    Load,
    Reduce,
    Space,
    Tensor,
    loads,
    rebuild,
    walk,
)
from compiler.loops.index import Affine, Axis, affine
from compiler.loops.nest import Compute, LoopNest, Node, Store, Tile
from compiler.ops.registry import OpKind
from compiler.schedule.kernel import Kernel
from compiler.schedule.merge import merge_axes
from compiler.schedule.problem import Problem, anchor, axes_of, compose, is_one_expression
from compiler.schedule.schedule import Choice, Schedule
from compiler.schedule.space import Knob, SubSpace
from compiler.schedule.structure import (
    Loop,
    halo_stage,
    needs_padding,
    nest,
    parallel_stage,
    unit_stride,
    vector_axis,
)
from compiler.schedule.templates import FALLBACK
from compiler.target import Target
from compiler.workload import Workload


@dataclass(frozen=True)
class Rows:
    """`outer` axes are shared by all computes; `inner` ones belong to the last compute alone.

    `lanes` is the output's vector axis; it is in `outer` when lanes run along rows.
    """

    problem: Problem
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    lanes: Axis | None


def analyse(workload: Workload) -> Rows | None:
    """The row structure of a workload; None where nothing is reduced."""
    if not is_one_expression(workload):
        return None
    problem = merge_axes(compose(workload))
    if not problem.reductions:
        return None
    shared = frozenset().union(*(_free(r) for r in problem.reductions))
    outer = tuple(a for a in problem.axes if a.extent > 1 and a in shared)
    inner = tuple(a for a in problem.axes if a.extent > 1 and a not in shared)
    return Rows(problem, outer, inner, vector_axis(problem.output, problem.axes))


def _free(reduction: Reduce) -> frozenset[Axis]:
    """The axes that a reduction's value depends on."""
    bound = {axis for node in _nested(reduction) for axis in node.axes}
    return axes_of(reduction) - bound


def _nested(expr: Expr) -> list[Reduce]:
    return [node for node in walk(expr) if isinstance(node, Reduce)]


@lru_cache(maxsize=256)
def _analyse(workload: Workload) -> Rows | None:
    return analyse(workload)


class _Template:
    algorithms = ("row",)

    def preference(self, workload: Workload) -> float:
        node = anchor(workload)
        rows = node is not None and ops.get(node.op).kind in (OpKind.ROW, OpKind.REDUCTION)
        return 0.5 if rows else FALLBACK

    def space(
        self, workload: Workload, target: Target, *, threads: int, strict: bool
    ) -> SubSpace | None:
        if _analyse(workload) is None:
            return None
        knobs = (Knob("unroll", (1, 2, 4, 8)),)

        def valid(choice: Mapping[str, Choice]) -> bool:
            return True

        return SubSpace("row", knobs, valid, Schedule.of("row", unroll=4))

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        found = _analyse(workload)
        if found is None:
            raise ScheduleError("'row' does not apply to this workload")
        return _lower(found, schedule.integer("unroll"), target)


TEMPLATE = _Template()


def _lower(found: Rows, unroll: int, target: Target) -> Kernel:
    problem = found.problem
    lanes = target.lanes(DType.FLOAT32)
    along = found.lanes if found.lanes in found.outer else None
    if along is not None and along in _padded_axes(problem):
        along = None
    statistics: dict[Reduce, Load] = {}
    computes: list[Node] = []
    last = problem.reductions[-1]
    for number, reduction in enumerate(problem.reductions):
        alone = not found.inner and reduction == last
        body = _resolve(reduction.body, statistics)
        if alone:
            epilogue = _resolve(
                problem.expr, {**statistics, reduction: Accumulator(reduction.dtype)}
            )
            store = Store(problem.output, epilogue)
        else:
            index: Affine = affine(along) if along else Affine()
            shape = (along.extent if along else 1,)
            register = Tensor(f"row{number}", shape, reduction.dtype, space=Space.REGISTER)
            statistics[reduction] = Load(register, (index,))
            store = Store(Load(register, (index,)), Accumulator(reduction.dtype))
        computes.append(_reduction(reduction, body, store, along, unroll, lanes))
    if found.inner:
        computes += _final(found, _resolve(problem.expr, statistics), along, unroll, lanes)
    loops = [Loop(a, lanes if a == along else 1) for a in found.outer]
    stage = parallel_stage("main", loops, *computes)
    output = problem.output.tensor
    nest_ = LoopNest("kernel", (*problem.inputs, output), (), (stage, *halo_stage(output, lanes)))
    return Kernel(nest_, tuple((t.name, i) for i, t in enumerate(problem.inputs)))


def _resolve(expr: Expr, values: Mapping[Reduce, Expr]) -> Expr:
    """Put known values in place of reductions, outermost first."""
    memo: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if isinstance(node, Reduce) and node in values:
            return values[node]
        if node not in memo:
            memo[node] = rebuild(node, visit)
        return memo[node]

    return visit(expr)


def _padded_axes(problem: Problem) -> frozenset[Axis]:
    """Output axes along which a load may leave its tensor: their windows are clipped one by one."""
    return frozenset(
        axis
        for reduction in problem.reductions
        for load in loads(reduction.body)
        for dim in needs_padding(load, with_halo=reduction.combiner is Combiner.SUM)
        for axis in load.index[dim].axes()
        if axis in problem.axes
    )


def _reduction(
    reduction: Reduce, body: Expr, store: Store, along: Axis | None, unroll: int, lanes: int
) -> Compute:
    axes = [a for a in reduction.axes if a.extent > 1]
    # The zeros of a halo are wrong in anything but a sum.
    never = reduction.combiner is not Combiner.SUM
    padded = any(needs_padding(load, with_halo=not never) for load in loads(body))
    if along is not None:
        return Compute(
            (store,),
            body,
            reduction.combiner,
            reduce=tuple(Tile(a) for a in axes),
            unroll=(Tile(along, lanes),),
            vector=along,
            skip_padding=never,
        )
    vector = next(
        (
            a
            for a in reversed(axes)
            if not padded and any(unit_stride(load, a) for load in loads(body))
        ),
        None,
    )
    if vector is None:
        return Compute(
            (store,),
            body,
            reduction.combiner,
            reduce=tuple(Tile(a) for a in axes),
            skip_padding=never,
        )
    others = [Tile(a) for a in axes if a != vector]
    return Compute(
        (store,),
        body,
        reduction.combiner,
        reduce=(*others, Tile(vector, unroll * lanes)),
        unroll=(Tile(vector, lanes),),
        vector=vector,
        partial=(vector,),
    )


def _final(
    found: Rows, body: Expr, along: Axis | None, unroll: int, lanes: int
) -> tuple[Node, ...]:
    vector = along or (found.lanes if found.lanes in found.inner else None)
    compute = Compute(
        (Store(found.problem.output, Accumulator(body.dtype)),),
        body,
        unroll=(Tile(vector, lanes),) if vector else (),
        vector=vector,
    )
    loops = [Loop(a, unroll * lanes if a == vector else 1) for a in found.inner]
    return nest(loops, compute)
