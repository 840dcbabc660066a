"""Products of a matrix, contiguous along the sum, with one vector or a few.

Such a product is y[i] = sum_k A[i, k] x[k]. Vector lanes run along k, and are added up at the end
of the sum. The matrix is therefore read once, in place, whereas `gemv` would have to transpose it
first. Attention with one query reads its keys in this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Combiner, Expr, Load, Role
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, Store, Tile
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.merge import one_expression
from tilewright.compiler.schedule.problem import Problem, axes_of
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    kernel_of,
    needs_padding,
    parallel_stage,
    short_step,
    unit_stride,
)
from tilewright.compiler.schedule.templates import Template
from tilewright.compiler.sizes import always_less, typical

_MOST_VECTORS = 8
"""Maximum number of vectors by which a matrix is multiplied without being packed. With more
vectors, packing it is worthwhile."""

_ACCUMULATORS = 8
"""Minimum number of accumulators that hide the latency of multiply-adds: a core starts two per
cycle, and each takes four cycles."""


@dataclass(frozen=True)
class Dot:
    """The structure of a product of a matrix with one vector or a few.

    Attributes:
        problem: the workload as one expression.
        matrix: the load of the matrix.
        rows: the output axis along the rows of the matrix.
        vectors: the axis of the vectors; None for a single one.
        batch: axes that index both operands.
        depth: the axis of the sum.
    """

    problem: Problem
    matrix: Load
    rows: Axis
    vectors: Axis | None
    batch: tuple[Axis, ...]
    depth: Axis

    @property
    def count(self) -> int:
        """Number of vectors by which the matrix is multiplied."""
        return self.vectors.extent if self.vectors else 1


@memo(256)
def analyse(workload: Workload) -> Dot | None:
    """Return the structure of a product whose operands are contiguous along the sum; None for
    others.
    """
    problem = one_expression(workload)
    if problem is None or problem.product is None:
        return None
    reduced = [a for a in problem.reduction.axes if a.moves]
    if len(reduced) != 1 or not all(_along(e, reduced[0]) for e in problem.product):
        return None
    outputs = [a for a in problem.axes if a.moves]
    used = [axes_of(e) & set(outputs) for e in problem.product]
    own = [[a for a in outputs if a in used[i] and a not in used[1 - i]] for i in range(2)]
    large = max(range(2), key=lambda i: max((typical(a.extent) for a in own[i]), default=0))
    matrix = problem.product[large]
    if len(own[large]) != 1 or len(own[1 - large]) > 1 or not isinstance(matrix, Load):
        return None
    vectors = own[1 - large][0] if own[1 - large] else None
    if vectors is not None and not always_less(vectors.extent, _MOST_VECTORS + 1):
        return None
    batch = tuple(a for a in outputs if a not in (own[large][0], vectors))
    return Dot(problem, matrix, own[large][0], vectors, batch, reduced[0])


def _along(expr: Expr, axis: Axis) -> bool:
    """Whether an operand is a load of contiguous elements along an axis, all inside its tensor."""
    return isinstance(expr, Load) and unit_stride(expr, axis) and not needs_padding(expr)


def _preference(found: Dot, mode: Mode) -> float:
    # A matrix that moves by short steps is a window: with lanes along the rows, nothing is
    # combined.
    joins = found.matrix.tensor.role is Role.WEIGHT or short_step(found.matrix, found.rows)
    return 0.9 if joins else 1.5


def _knobs(found: Dot, mode: Mode) -> tuple[Knob, ...]:
    whole = -(-found.depth.extent // mode.target.lanes(DType.FLOAT32))
    return (
        Knob("tile", tuple(t for t in (1, 2, 4, 8) if t <= found.rows.extent)),
        Knob("unroll", tuple(u for u in (1, 2, 4, 8) if u <= whole)),
    )


def _fits(found: Dot, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    tile, unroll = int(choice["tile"]), int(choice["unroll"])
    accumulators = tile * found.count * unroll
    return accumulators + max(tile, found.count) + 1 <= mode.target.vector_registers


def _default(found: Dot, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule:
    """Return the default schedule: at least eight accumulators, which hide the latency of
    multiply-adds.

    With one vector, two rows of the matrix are read at a time, as two streams for the hardware
    prefetcher. With several vectors, the tile has enough rows for eight accumulators without
    unrolling. Unrolled steps would need separate accumulators, which must be added at the end.
    """
    tiles, unrolls = ([int(value) for value in knob.values] for knob in knobs)
    rows = 2 if found.count == 1 else max(2, -(-_ACCUMULATORS // found.count))
    tile = _at_least(rows, tiles)
    unroll = _at_least(-(-_ACCUMULATORS // (tile * found.count)), unrolls)
    return Schedule.of("dot", tile=tile, unroll=unroll)


def _at_least(wanted: int, values: list[int]) -> int:
    """Return the smallest value that is at least `wanted`; the last value if there is none.

    `values` is sorted.
    """
    return next((v for v in values if v >= wanted), values[-1])


def _lower(found: Dot, schedule: Schedule, mode: Mode) -> Kernel:
    problem = found.problem
    lanes = mode.target.lanes(DType.FLOAT32)
    points = [Tile(found.depth, lanes), Tile(found.rows)]
    if found.vectors is not None:
        points.append(Tile(found.vectors))
    compute = Compute(
        (Store(problem.output, problem.epilogue),),
        problem.reduction.body,
        Combiner.SUM,
        reduce=(Tile(found.depth, schedule.integer("unroll") * lanes),),
        unroll=tuple(points),
        vector=found.depth,
        partial=(found.depth,),
    )
    loops = [*map(LoopSpec, found.batch), LoopSpec(found.rows, schedule.integer("tile"))]
    return kernel_of(problem, (parallel_stage("main", loops, compute),), mode)


TEMPLATE = Template(
    algorithms=("dot",),
    analyse=analyse,
    preference=_preference,
    knobs=_knobs,
    default=_default,
    lower=_lower,
    machine=_fits,
)
