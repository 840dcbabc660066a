"""Row operators, such as softmax, layer norm, sums and means: passes that share the loops over
rows.

Each reduction in the expression is one pass, inner reductions first. Its result, such as the
maximum of a row, stays in a register. The last pass computes the output from these results. Vector
lanes run along the reduced axis if its elements are contiguous, otherwise along rows.

A row that fits one register tile is read once, and all passes use the loaded elements. For a longer
row, values that are costly to compute twice (softmax: e**(x - max)) are stored in the output while
they are summed, and the last pass reads them from the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Expr,
    Fold,
    Items,
    Load,
    Op,
    Reduce,
    Space,
    Tee,
    Tensor,
    finished,
    loads,
    walk,
)
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.nest import Compute, Node, Store, Tile
from tilewright.compiler.loops.rewriting import load_at, reindex, substitute
from tilewright.compiler.loops.semantics import items_of
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.merge import one_expression
from tilewright.compiler.schedule.problem import (
    Problem,
    anchor,
    axes_of,
)
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    kernel_of,
    needs_padding,
    nest,
    padded_axes,
    parallel_stage,
    reads_halo,
    unit_stride,
    vector_axis,
)
from tilewright.compiler.schedule.templates import FALLBACK, Template
from tilewright.compiler.sizes import always_less, typical


@dataclass(frozen=True, eq=False)
class Rows:
    """The roles of the axes of a row operator.

    Instances are compared by identity; `analyse` memoises them.

    Attributes:
        problem: the workload as one expression.
        outer: the output axes that number the rows; all passes share their loops.
        inner: the output axes within a row; only the last pass has them.
        lanes: the output's vector axis; it is in `outer` if lanes run along rows.
    """

    problem: Problem
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    lanes: Axis | None


@memo(256)
def analyse(workload: Workload) -> Rows | None:
    """Return the structure of a row operator; None for a workload without a reduction."""
    problem = one_expression(workload)
    if problem is None or not problem.reductions:
        return None
    shared = frozenset().union(*(_free(r) for r in problem.reductions))
    if not shared <= {*problem.axes}:
        return None  # a reduction depends on the steps of another: a product inside a row
    outer = tuple(a for a in problem.axes if a.moves and a in shared)
    inner = tuple(a for a in problem.axes if a.moves and a not in shared)
    return Rows(problem, outer, inner, vector_axis(problem.output, problem.axes))


def _free(reduction: Reduce) -> frozenset[Axis]:
    """Return the axes on which a reduction's value depends, without those that it reduces."""
    bound = {axis for node in _nested(reduction) for axis in node.axes}
    return axes_of(reduction) - bound


def _nested(expr: Expr) -> list[Reduce]:
    return [node for node in walk(expr) if isinstance(node, Reduce)]


def _preference(found: Rows, mode: Mode) -> float:
    node = anchor(found.problem.workload)
    rows = node is not None and ops.get(node.op).kind in (OpKind.ROW, OpKind.REDUCTION)
    # Preferred to windows, which accept any reduction, but not with lanes along the reduced axis.
    return 2.5 if rows else FALLBACK


def _knobs(found: Rows, mode: Mode) -> tuple[Knob, ...]:
    keep = (False,) if _kept(found) is None else (True, False)
    return Knob("unroll", (1, 2, 4, 8)), Knob("keep", keep)


def _default(found: Rows, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule:
    lanes = mode.target.lanes(DType.FLOAT32)
    along, tiny = _along(found, lanes), _tiny(found, lanes)
    unroll = 1 if tiny else 4 if along else 8
    one_tile = all(axis.extent <= unroll * lanes for axis in found.inner)
    # A masked load waits for the masked store before it, whose full width overlaps it.
    stalls = along is not None and along.extent < lanes
    worth = not tiny and not stalls and (along is not None or not one_tile)
    return Schedule.of("row", unroll=unroll, keep=worth and True in knobs[1].values)


def _along(found: Rows, lanes: int) -> Axis | None:
    """Return the axis of rows along which vector lanes run; None if they run along the reduced
    axis.
    """
    if _tiny(found, lanes):
        return found.outer[-1]
    along = found.lanes
    if along not in found.outer or along is None or along in padded_axes(found.problem):
        return None
    least = 4 * lanes if _expensive_rows(found) else lanes
    for reduction in found.problem.reductions:
        for load in loads(reduction.body):
            side_by_side = any(
                typical(a.extent) >= least and unit_stride(load, a) for a in reduction.axes
            )
            if side_by_side and not unit_stride(load, along):
                return None
    return along


def _expensive_rows(found: Rows) -> bool:
    """Whether much of the work is done once per row, not once per element.

    This holds if several operations follow the reductions, or if a reduction is a `Fold`, whose
    lanes are combined in several steps. If lanes run along the row, this work is scalar.
    """
    reductions = found.problem.reductions
    inside = {node for reduction in reductions for node in walk(reduction.body)}
    last = {node for node in walk(found.problem.expr) if isinstance(node, Op)} - inside
    return len(last) >= _DEAR or any(isinstance(r.combiner, Fold) for r in reductions)


def _tiny(found: Rows, lanes: int) -> bool:
    """Whether rows are so short, at most three quarters of a vector, that each lane processes a
    row.

    All loops over a row are then unrolled, so that each element is gathered once and all passes use
    it.
    """
    problem = found.problem
    lengths = [prod(a.extent for a in r.axes) for r in problem.reductions]
    if not found.inner or not found.outer or typical(found.outer[-1].extent) < lanes:
        return False
    if any(t.layout.factors for t in (*problem.inputs, problem.output.tensor)):
        return False
    lengths.append(prod(a.extent for a in found.inner))
    short = all(always_less(length, 3 * lanes // 4 + 1) for length in lengths)
    return short and found.lanes in found.inner and not padded_axes(problem)


@dataclass(frozen=True)
class _Kept:
    """A reduction whose terms are stored in the output's row, because the last pass needs them
    again.

    `target` is the output element from which the last pass reads a stored term.
    """

    reduction: Reduce
    target: Load
    again: Expr
    """The term of the reduction at an element of the last pass. There, it is replaced by a load
    from the output."""


def _kept(found: Rows) -> _Kept | None:
    """Return the outermost reduction whose terms are worth storing in the output's row, or None."""
    problem = found.problem
    for reduction in reversed(problem.reductions):
        body = reduction.body
        axes = tuple(a for a in reduction.axes if a.moves)
        extents = tuple(a.extent for a in axes)
        fits = extents == tuple(a.extent for a in found.inner)
        dear = sum(isinstance(node, Op) for node in walk(body)) >= _DEAR
        if not fits or not dear or body.dtype is not problem.output.dtype:
            continue
        again = reindex(body, dict(zip(axes, map(affine, found.inner), strict=True)))
        if again in walk(problem.expr):
            back = dict(zip(found.inner, map(affine, axes), strict=True))
            target = load_at(problem.output, back)
            return _Kept(reduction, target, again)
    return None


_DEAR = 6
"""Minimum number of operations in an expression for which storing and loading its value is cheaper
than computing it again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Reduced:
    """One reduction, before its loops are divided into steps.

    Attributes:
        reduction: the reduction.
        axes: the axes of the reduction with an extent above 1.
        body: the reduced expression, which reads the results of inner reductions.
        stores: the stores of the result, to the output or to a register.
        vector: the reduced axis along which the lanes run; None if they run along rows, or if the
            reduction is computed as scalars.
        skips_padding: whether taps in the padding are skipped, because zeros would change the
            result.
    """

    reduction: Reduce
    axes: tuple[Axis, ...]
    body: Expr
    stores: tuple[Store, ...]
    vector: Axis | None
    skips_padding: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Passes:
    """The passes of a row operator, independent of loop steps.

    Attributes:
        reduced: the reductions, inner ones first.
        last: the value that the last pass stores; None if the output has one element per row.
        along: the axis of rows along which the lanes run; None if they run along the reduced axis.
        tiny: whether rows are so short that their loops are unrolled.
    """

    reduced: tuple[_Reduced, ...]
    last: Expr | None
    along: Axis | None
    tiny: bool


@memo(256)
def _passes(found: Rows, keep: bool, lanes: int) -> _Passes:
    problem = found.problem
    along = _along(found, lanes)
    statistics: dict[Expr, Expr] = {}
    reduced: list[_Reduced] = []
    kept = _kept(found) if keep else None
    number = 0
    for reduction in problem.reductions:
        alone = not found.inner and reduction == problem.reductions[-1]
        body = substitute(reduction.body, statistics)
        if kept is not None and kept.reduction == reduction:
            body = Tee(body, kept.target)
        if alone:
            epilogue = substitute(problem.expr, {**statistics, reduction: finished(reduction)})
            stores: tuple[Store, ...] = (Store(problem.output, epilogue),)
        else:
            index: Affine = affine(along) if along else Affine()
            shape = (along.extent if along else 1,)
            values = items_of(finished(reduction))
            registers = tuple(
                Load(Tensor(f"row{number + i}", shape, v.dtype, space=Space.REGISTER), (index,))
                for i, v in enumerate(values)
            )
            number += len(values)
            statistics[reduction] = registers[0] if len(values) == 1 else Items(registers)
            stores = tuple(Store(r, v) for r, v in zip(registers, values, strict=True))
        reduced.append(_analysed(reduction, body, stores, along))
    last = None
    if found.inner:
        if kept is not None:
            statistics[kept.again] = problem.output
        last = substitute(problem.expr, statistics)
    return _Passes(tuple(reduced), last, along, _tiny(found, lanes))


def _analysed(
    reduction: Reduce, body: Expr, stores: tuple[Store, ...], along: Axis | None
) -> _Reduced:
    axes = tuple(a for a in reduction.axes if a.moves)
    reads = reads_halo(reduction)
    read = loads(body)
    vector = None
    if along is None and not any(needs_padding(load, with_halo=reads) for load in read):
        side_by_side = (a for a in reversed(axes) if any(unit_stride(load, a) for load in read))
        vector = next(side_by_side, None)
    return _Reduced(reduction, axes, body, stores, vector, not reads)


def _lower(found: Rows, schedule: Schedule, mode: Mode) -> Kernel:
    problem, unroll = found.problem, schedule.integer("unroll")
    lanes = mode.target.lanes(DType.FLOAT32)
    passes = _passes(found, bool(schedule["keep"]), lanes)
    along, tiny = passes.along, passes.tiny
    computes: list[Node] = [
        _reduction(each, along, unroll, lanes, tiny=tiny) for each in passes.reduced
    ]
    if passes.last is not None:
        computes += _final(found, passes.last, along, unroll, lanes, tiny=tiny)
    # A tile of several vectors may straddle the blocks of a layout; a single vector does not.
    plain = not any(t.layout.factors for t in (*problem.inputs, problem.output.tensor))
    width = unroll * lanes if plain else lanes
    loops = [LoopSpec(a, width if a == along else 1) for a in found.outer]
    return kernel_of(problem, (parallel_stage("main", loops, *computes),), mode)


def _reduction(
    reduced: _Reduced, along: Axis | None, unroll: int, lanes: int, *, tiny: bool
) -> Compute:
    stores, body, combiner = reduced.stores, reduced.body, reduced.reduction.combiner
    vector = reduced.vector
    if along is not None:
        apart = () if tiny else _apart(reduced.axes, along, unroll, lanes)
        outer = tuple(Tile(a, unroll=tiny) for a in reduced.axes if a not in apart)
        return Compute(
            stores,
            body,
            combiner,
            reduce=outer + tuple(Tile(a, _CHAINS) for a in apart),
            unroll=(*map(Tile, apart), Tile(along, lanes)),
            vector=along,
            partial=apart,
            skip_padding=reduced.skips_padding,
        )
    if vector is None:
        return Compute(
            stores,
            body,
            combiner,
            reduce=tuple(Tile(a) for a in reduced.axes),
            skip_padding=reduced.skips_padding,
        )
    others = [Tile(a) for a in reduced.axes if a != vector]
    return Compute(
        stores,
        body,
        combiner,
        reduce=(*others, Tile(vector, unroll * lanes)),
        unroll=(Tile(vector, lanes),),
        vector=vector,
        partial=(vector,),
    )


_CHAINS = 4
"""Number of independent accumulators that keep a core busy."""


def _apart(axes: Sequence[Axis], along: Axis, unroll: int, lanes: int) -> tuple[Axis, ...]:
    """Return the reduced axis whose unrolled steps get separate accumulators; () if none does.

    This is the last reduced axis, if it is long and there are so few rows that a tile would have
    only one accumulator. Each step would then wait for the previous one.
    """
    alone = always_less(along.extent, min(unroll, 2) * lanes)
    long = axes and always_less(4 * _CHAINS, axes[-1].extent)
    return tuple(axes[-1:]) if alone and long else ()


def _final(
    found: Rows, body: Expr, along: Axis | None, unroll: int, lanes: int, *, tiny: bool
) -> tuple[Node, ...]:
    vector = along or (found.lanes if found.lanes in found.inner else None)
    compute = Compute(
        (Store(found.problem.output, Accumulator(body.dtype)),),
        body,
        unroll=(Tile(vector, lanes),) if vector else (),
        vector=vector,
    )
    loops = [LoopSpec(a, unroll * lanes if a == vector else 1, unroll=tiny) for a in found.inner]
    return nest(loops, compute)


TEMPLATE = Template(
    algorithms=("row",),
    analyse=analyse,
    preference=_preference,
    knobs=_knobs,
    default=_default,
    lower=_lower,
)
