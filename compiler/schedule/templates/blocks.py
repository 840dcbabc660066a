"""Matrix products with block-scaled weights, which are unpacked and scaled in registers.

    y[m, n] = sum over blocks b of scale[n, b] * sum over k in b of x[m, k] * unpacked(w[n, b, k])

The template `contraction` requires a single load as its weight. Here, the weight may be any
expression of weight tensors. It is evaluated once for each vector of columns and used for all rows
of the register tile. Each weight tensor is packed into its own panels. A product with one row reads
each of these tensors once, sequentially.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Cast,
    Combiner,
    Expr,
    Load,
    Op,
    Role,
    Tensor,
    children,
    loads,
    walk,
)
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, Order, Store, Tile
from tilewright.compiler.loops.rewriting import substitute
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.merge import one_expression
from tilewright.compiler.schedule.parallel_loops import parallel_balance
from tilewright.compiler.schedule.problem import Problem, axes_of
from tilewright.compiler.schedule.resources import useful_fraction
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    kernel_of,
    needs_padding,
    parallel_stage,
    vector_axis,
)
from tilewright.compiler.schedule.templates import Template

_TILES = (*range(1, 17), 18, 20)
_VECTORS = (1, 2, 3, 4, 6, 8)
_UNROLLS = (1, 2, 4, 8)
_PREFETCHES = (0, 2048)

_LOOP = 3
"""Number of operations that one iteration of a run-time loop adds to its body."""

_LONGEST = 4000
"""Number of consecutive operations at which the score of a schedule is 0. A core fetches code no
faster than data."""

_PREFETCHED = 1.1
"""Score factor of prefetching panels that several rows use; measured: 1.15 to 1.3. A single row
reads the panels as one stream, which the hardware prefetches."""

_INTERLEAVED = 0.85
"""Score factor of a single row with several vectors of sums, each of which reads several vectors of
packed weights per step. In a panel, the weights of these vectors alternate. Measured: 0.6 from
memory, 0.95 from L2."""

_WRITTEN_OUT = 3000
"""Maximum number of operations in the innermost loop. More code takes too long to compile and to
fetch."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Operation counts for each step of a sum.

    Attributes:
        weights: operations that depend on weights only.
        rows: operations that depend on the rows (the other factor) only.
        both: operations that combine weights and rows.
    """

    weights: int
    rows: int
    both: int


@dataclass(frozen=True)
class Blocks:
    """The roles of the axes of a block-scaled sum.

    Attributes:
        problem: the workload as one expression.
        lanes: the output axis along the vectors.
        tile: the axis of the rows of the register tile.
        outer: the other axes of the output.
        reduced: the axes of the sum, the last of which is unrolled.
        unpacked: number of values per step that are computed from weights only, and combined with
            each row.
        work: operations at each step of the sum.
    """

    problem: Problem
    lanes: Axis
    tile: Axis | None
    outer: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    unpacked: int
    work: StepWork
    interleaved: bool
    """Whether each vector of sums reads several vectors of one weight tensor in a step of the
    sum."""

    @property
    def rows(self) -> int:
        return self.tile.extent if self.tile else 1

    @property
    def steps(self) -> int:
        """Extent of the innermost axis of the sum, which is unrolled."""
        return self.reduced[-1].extent if self.reduced else 1

    def registers(self, tile: int, vectors: int) -> int:
        """Return the number of vector registers for a tile of `tile` rows by `vectors` vectors.

        They hold the sums, the unpacked weights, and two further vectors. If several rows share the
        unpacked weights, all weights of a step stay in registers. A single row uses each weight
        immediately, and needs one register per vector for it.
        """
        shared = self.unpacked if tile > 1 else 0
        return tile * vectors + max(shared, vectors) + 2


@memo(256)
def analyse(workload: Workload) -> Blocks | None:
    """Return the structure of a product with block-scaled weights; None for other workloads.

    In block-scaled weights, the elements of each block share a scale factor.
    """
    problem = one_expression(workload)
    if problem is None or problem.product is None or problem.reduction.dtype is not DType.FLOAT32:
        return None
    lanes = vector_axis(problem.output, problem.axes)
    if lanes is None or not all(lanes in axes_of(factor) for factor in problem.product):
        return None
    body = problem.reduction.body
    for load in loads(body):
        if needs_padding(load) or load.indirect:
            return None
        if (lanes in axes_of(load)) != (load.tensor.role is Role.WEIGHT):
            return None
        if load.tensor.role is Role.WEIGHT and affine(lanes) not in load.index:
            return None
    outputs = [a for a in problem.axes if a != lanes and a.moves]
    tile = outputs[-1] if outputs else None
    if tile is not None and any(tile in axes_of(e) for e in loads(body) if lanes in axes_of(e)):
        return None
    reduced = tuple(a for a in problem.reduction.axes if a.moves)
    unpacked, work = _counts(body)
    if not unpacked:
        return None
    read = Counter(one.tensor for one in set(loads(body)) if one.tensor.role is Role.WEIGHT)
    several = any(count > 1 for count in read.values())
    return Blocks(problem, lanes, tile, tuple(outputs[:-1]), reduced, unpacked, work, several)


def _counts(body: Expr) -> tuple[int, StepWork]:
    """Count the operations of each step of a sum.

    `body` is the expression that is summed. The result has the number of values per step that are
    computed from weights only and combined with each row, and the operation counts.
    """
    roles = {node: {load.tensor.role for load in loads(node)} for node in walk(body)}
    computed = [node for node in roles if isinstance(node, Op | Cast)]
    alone = [node for node in computed if roles[node] == {Role.WEIGHT}]
    both = [node for node in computed if {Role.WEIGHT} < roles[node]]
    used = {arg for node in both for arg in children(node)} & {*alone}
    return len(used), StepWork(len(alone), len(computed) - len(alone) - len(both), len(both))


def _knobs(found: Blocks, mode: Mode) -> tuple[Knob, ...]:
    whole = -(-found.lanes.extent // mode.target.lanes(DType.FLOAT32))
    return (
        Knob("tile", tuple(t for t in _TILES if t <= found.rows)),
        Knob("vectors", tuple(v for v in _VECTORS if v <= whole)),
        Knob("unroll", tuple(u for u in _UNROLLS if found.steps % u == 0)),
        Knob("prefetch", _PREFETCHES),
    )


def _lowers(found: Blocks, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    points = int(choice["tile"]) * int(choice["vectors"]) * int(choice["unroll"])
    return points * found.work.both <= _WRITTEN_OUT or points == 1


def _fits(found: Blocks, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    tile, vectors = int(choice["tile"]), int(choice["vectors"])
    return found.registers(tile, vectors) <= mode.target.vector_registers


def _default(found: Blocks, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule:
    """Return the default schedule: the valid choice of knob values with the best score."""
    names = [knob.name for knob in knobs]
    every = (dict(zip(names, v, strict=True)) for v in product(*(knob.values for knob in knobs)))
    valid = [each for each in every if _lowers(found, mode, each) and _fits(found, mode, each)]
    return Schedule.of("blocks", **max(valid, key=lambda choice: _score(found, mode, choice)))


def _score(found: Blocks, mode: Mode, choice: Mapping[str, Choice]) -> float:
    """Estimate the efficiency of a choice of knob values: useful operations per executed operation.

    Operations on weights only are executed once for all rows of a tile. Operations on rows only are
    executed once for all vectors. Long code reduces the score slightly.
    """
    tile, vectors, unroll = (int(choice[key]) for key in ("tile", "vectors", "unroll"))
    work = found.work
    points = tile * vectors
    taken = work.both + work.weights / tile + work.rows / vectors + _LOOP / (unroll * points)
    length = unroll * (points * work.both + vectors * work.weights + tile * work.rows)
    width = vectors * mode.target.lanes(DType.FLOAT32)
    used = useful_fraction((found.rows, tile), (found.lanes.extent, width))
    balance = parallel_balance([LoopSpec(found.lanes, width)], mode.threads)
    prefetch = 1.0
    if choice["prefetch"]:
        prefetch = _PREFETCHED if found.rows > 1 else 1 / _PREFETCHED
    order = _INTERLEAVED if found.interleaved and found.rows == 1 and vectors > 1 else 1.0
    return used * balance * prefetch * order * work.both / taken * (1 - length / _LONGEST)


def _lower(found: Blocks, schedule: Schedule, mode: Mode) -> Kernel:
    problem = found.problem
    lanes = mode.target.lanes(DType.FLOAT32)
    tile, width = schedule.integer("tile"), schedule.integer("vectors") * lanes
    packed = {
        load.tensor.name: _panels(load, found.lanes, width)
        for load in loads(problem.reduction.body)
        if load.tensor.role is Role.WEIGHT
    }
    body = substitute(
        problem.reduction.body,
        {
            load: Load(packed[load.tensor.name], load.index)
            for load in loads(problem.reduction.body)
            if load.tensor.name in packed
        },
    )
    reduce = [Tile(axis) for axis in found.reduced[:-1]]
    points: list[Tile] = []
    if found.reduced:
        reduce.append(Tile(found.reduced[-1], schedule.integer("unroll")))
        points.append(Tile(found.reduced[-1]))
    points.append(Tile(found.lanes, lanes))
    if found.tile is not None:
        points.append(Tile(found.tile))
    compute = Compute(
        (Store(problem.output, problem.epilogue),),
        body,
        Combiner.SUM,
        reduce=tuple(reduce),
        unroll=tuple(points),
        vector=found.lanes,
        order=Order.PROGRAM,
        prefetch=schedule.integer("prefetch"),
    )
    loops = [LoopSpec(found.lanes, width), *map(LoopSpec, found.outer)]
    if found.tile is not None:
        loops.append(LoopSpec(found.tile, tile))
    stage = parallel_stage("main", loops, compute)
    return kernel_of(problem, (stage,), mode, packed=tuple(packed.values()))


def _panels(load: Load, lanes: Axis, width: int) -> Tensor:
    """Return a weight tensor in panels of columns: [panels][all other dimensions][width]."""
    dim = load.index.index(affine(lanes))
    others = (Factor(d) for d in range(len(load.index)) if d != dim)
    layout = Layout((Factor(dim, width), *others, Factor(dim, 1, width)))
    return replace(load.tensor, layout=layout, halo=())


TEMPLATE = Template(
    algorithms=("blocks",),
    analyse=analyse,
    preference=lambda found, mode: 1.0,
    knobs=_knobs,
    default=_default,
    lower=_lower,
    form=_lowers,
    machine=_fits,
)
