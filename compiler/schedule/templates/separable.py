"""Pooling in two passes: a window is reduced along all but one of its axes, then along the last
one.

    for each row of outputs:
        line[i] = max over kh of x[h * s + kh - p, i]        lanes along i, taps outside left out
        y[w] = max over kw of line[w * s + kw]               lanes along w, or along the channels

The line is scratch memory for the results of the first pass. It has an element for each input
position along the last axis, and padding elements around them that do not change any result, such
as -inf for a maximum. Vectors therefore never read outside the image, along whichever axis their
lanes run. For a window of k by k taps, each output takes 2 k operations instead of k * k. The
longest chain of additions in a sum has 2 k steps instead of k * k, so that rounding errors are
smaller than with a single sum of all taps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Combiner,
    Const,
    Expr,
    IndexValue,
    Load,
    Reduce,
    Role,
    Tensor,
    loads,
    walk,
)
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, Node, Store, Tile
from tilewright.compiler.loops.rewriting import rewrite
from tilewright.compiler.loops.semantics import neutral
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.shapes import FEW_TAPS
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
    nest,
    padded_axes,
    parallel_stage,
    reads_halo,
    unit_stride,
    vector_axis,
)
from tilewright.compiler.schedule.templates import Template
from tilewright.compiler.sizes import always_less, bounds, is_dynamic

_WRITTEN_OUT = 32
"""Maximum number of taps for which the second pass is unrolled."""


@dataclass(frozen=True)
class Separable:
    """A reduction of a window in two passes, such as max pooling.

    The first pass reduces the window along all axes but one, and stores its results in scratch
    memory, the line. The second pass reduces along the last axis. Output w combines the elements
    `step * w + first + dilation * k` of the padded line, for all k.

    Attributes:
        problem: the workload as one expression.
        lanes: the vector axis of the output.
        along: the output axis whose window is `taps`.
        taps: the axis of the window that the second pass reduces.
        across: the other axes of the window, which the first pass reduces.
        body: the reduced expression, as a function of `column`.
        column: the axis that numbers the elements of the line.
        step: distance between the windows of adjacent outputs.
        dilation: distance between adjacent window elements.
        first: position in the padded line of the first element of output 0's window.
        before: elements of padding before the line.
        after: elements of padding after the line.
    """

    problem: Problem
    lanes: Axis
    along: Axis
    taps: Axis
    across: tuple[Axis, ...]
    body: Expr
    column: Axis
    step: int
    dilation: int
    first: int
    before: int
    after: int


@memo(256)
def analyse(workload: Workload) -> Separable | None:
    """Return a window reduction that can be computed in two passes; None for other workloads."""
    problem = one_expression(workload)
    if problem is None or len(problem.reductions) != 1 or problem.product is not None:
        return None
    reduction = problem.reduction
    if reduction.combiner not in (Combiner.SUM, Combiner.MAX, Combiner.MIN):
        return None
    if any(isinstance(node, IndexValue | Reduce) for node in walk(reduction.body)):
        return None
    if any(load.indirect for load in loads(reduction.body)):
        return None
    lanes = vector_axis(problem.output, problem.axes)
    if lanes is None:
        return None
    wanted = [lanes, *(a for a in reversed(problem.axes) if a != lanes and a.moves)]
    found = (_along(problem, lanes, along) for along in wanted)
    return next((each for each in found if each is not None), None)


def _along(problem: Problem, lanes: Axis, along: Axis) -> Separable | None:
    """Return a window reduction whose second pass runs along the output axis `along`.

    The result is None if the window does not extend along this axis, or if its passes cannot use
    vectors.
    """
    reduction = problem.reduction
    read = loads(reduction.body)
    moving = [a for a in reduction.axes if a.moves]
    lines = {_line(load, along, moving) for load in read}
    if len(lines) != 1 or (line := lines.pop()) is None:
        return None
    index, extent = line
    ((taps, dilation),) = [(a, index.coefficient(a)) for a in moving if a in index.axes()]
    step = index.coefficient(along)
    column = Axis("column", extent)
    after = bounds(index.bounds()[1] - (extent - 1))[1]
    if after == inf or is_dynamic(index.constant):
        return None
    before = max(0, -index.constant)
    body = rewrite(reduction.body, lambda node: _at_column(node, index, column))
    first = index.constant + before
    found = Separable(
        problem, lanes, along, taps, tuple(a for a in moving if a != taps), body, column,
        step, dilation, first, before, max(0, int(after)),
    )  # fmt: skip
    return found if _has_lanes(found) else None


def _line(load: Load, along: Axis, taps: Sequence[Axis]) -> tuple[Affine, int] | None:
    """Return the index expression of a load that contains the axis `along`, and the extent there.

    A pooling window is reduced in two passes, the second one along the output axis `along`. `taps`
    are the window axes. The index must consist of `along` and one window axis, such as `2 w + kw -
    1`. The extent is that of the tensor's dimension with this index. The result is None for any
    other index, or if several indices contain `along`.
    """
    dims = [dim for dim, index in enumerate(load.index) if along in index.axes()]
    if len(dims) != 1:
        return None
    index = load.index[dims[0]]
    (*others,) = (a for a in index.axes() if a != along)
    if len(others) != 1 or others[0] not in taps or len(index.terms) != 2:
        return None
    if any(others[0] in i.axes() for dim, i in enumerate(load.index) if dim != dims[0]):
        return None
    if any(is_dynamic(c) or c < 1 for _, c in index.terms):
        return None
    return index, load.tensor.shape[dims[0]]


def _at_column(node: Expr, index: Affine, column: Axis) -> Expr | None:
    """Return a load with `column` in place of each index that equals `index`.

    `index` is the position that depends on the window, such as `2 w + kw - 1`. The result is None
    for a node that is not a load.
    """
    if not isinstance(node, Load):
        return None
    return Load(node.tensor, tuple(affine(column) if i == index else i for i in node.index))


def _has_lanes(found: Separable) -> bool:
    """Whether both passes of the reduction can read whole vectors that lie inside their tensors.

    An index may lie outside its tensor only along the axes that the first pass reduces. The loops
    over these axes skip padding.
    """
    first = found.column if found.lanes == found.along else found.lanes
    for load in loads(found.body):
        if first in axes_of(load) and not unit_stride(load, first):
            return False
        for dim in needs_padding(load, with_halo=reads_halo(found.problem.reduction)):
            axes = {*load.index[dim].axes()}
            if {first, found.column} & axes or not axes & {*found.across}:
                return False
    return True


def _is_less_work(found: Separable) -> bool:
    """Whether two passes are expected to be faster than one.

    This holds for large windows, and for lanes that may read outside the tensor.
    """
    taps = prod(a.extent for a in found.problem.reduction.axes)
    leaves = found.lanes in padded_axes(found.problem)
    return leaves or not always_less(taps, FEW_TAPS + 1)


def _knobs(found: Separable, mode: Mode) -> tuple[Knob, ...]:
    vectors = (1, 2, 4, 8) if _is_less_work(found) else ()
    return Knob("lines", vectors), Knob("tile", vectors)


def _fits(found: Separable, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    return all(int(value) < mode.target.vector_registers - 4 for value in choice.values())


def _lower(found: Separable, schedule: Schedule, mode: Mode) -> Kernel:
    problem, lanes = found.problem, mode.target.lanes(DType.FLOAT32)
    line = _scratch(found, lanes)
    body = [
        *_around(found, line, lanes),
        *_first_pass(found, line, schedule.integer("lines"), lanes),
        *_second_pass(found, line, schedule.integer("tile"), lanes),
    ]
    outer = [a for a in problem.axes if a.moves and a != found.along]
    loops = [LoopSpec(a, lanes if a == found.lanes else 1) for a in outer]
    return kernel_of(problem, (parallel_stage("main", loops, *body),), mode, scratch=(line,))


def _scratch(found: Separable, lanes: int) -> Tensor:
    """Return the scratch tensor for the results of the first pass, with its padding elements.

    These results form a line with one element per input position along the axis of the second pass.
    If vectors run along the channels, each element of the line is one vector of channels.
    """
    dtype = found.problem.reduction.dtype
    length = found.before + found.column.extent + found.after
    if found.lanes == found.along:
        return Tensor("line", (length,), dtype, role=Role.SCRATCH)
    held = Layout((Factor(0), Factor(1, 1, lanes)))
    return Tensor("line", (length, found.lanes.extent), dtype, held, role=Role.SCRATCH)


def _element(found: Separable, line: Tensor, position: Affine) -> Load:
    if found.lanes == found.along:
        return Load(line, (position,))
    return Load(line, (position, affine(found.lanes)))


def _tile(found: Separable, axis: Axis, vectors: int, lanes: int) -> tuple[LoopSpec, list[Tile]]:
    """Return the loop over `axis` in steps of `vectors` vectors, and the unrolled axes of one step.

    In the first pass of the reduction, `axis` numbers the intermediate results; in the second pass,
    the outputs.
    """
    if found.lanes == found.along:
        return LoopSpec(axis, vectors * lanes), [Tile(axis, lanes)]
    return LoopSpec(axis, vectors), [Tile(axis), Tile(found.lanes, lanes)]


def _around(found: Separable, line: Tensor, lanes: int) -> tuple[Node, ...]:
    """Return loops that write the padding before and after the results of the first pass.

    The padding has the neutral element of the reduction as its value, such as -inf for a maximum.
    `line` is the scratch tensor of the results.
    """
    reduction = found.problem.reduction
    assert isinstance(reduction.combiner, Combiner)
    value = Const(neutral(reduction.combiner, reduction.dtype).item(), reduction.dtype)
    nodes: list[Node] = []
    behind = affine(found.before) + found.column.extent
    for name, start, extent in (
        ("before", affine(0), found.before),
        ("after", behind, found.after),
    ):
        if extent:
            axis = Axis(name, extent)
            loop, points = _tile(found, axis, 1, lanes)
            vector = axis if found.lanes == found.along else found.lanes
            target = _element(found, line, start + axis)
            compute = Compute((Store(target, value),), value, unroll=(*points,), vector=vector)
            nodes += nest([loop], compute)
    return tuple(nodes)


def _first_pass(found: Separable, line: Tensor, vectors: int, lanes: int) -> tuple[Node, ...]:
    """Return the loops of the first pass, which reduces the window along the axes `across`.

    They write the results into the scratch tensor `line`, in steps of `vectors` vectors.
    """
    reduction = found.problem.reduction
    loop, points = _tile(found, found.column, vectors, lanes)
    target = _element(found, line, affine(found.column) + found.before)
    compute = Compute(
        (Store(target, Accumulator(reduction.dtype)),),
        found.body,
        reduction.combiner if found.across else None,
        reduce=tuple(map(Tile, found.across)),
        unroll=(*points,),
        vector=found.column if found.lanes == found.along else found.lanes,
        skip_padding=bool(found.across) and not reads_halo(reduction),
    )
    return nest([loop], compute)


def _second_pass(found: Separable, line: Tensor, vectors: int, lanes: int) -> tuple[Node, ...]:
    """Return the loops of the second pass, which reduces along the window axis `taps`.

    They read the results of the first pass from the scratch tensor `line`, and write the outputs in
    steps of `vectors` vectors.
    """
    problem = found.problem
    loop, points = _tile(found, found.along, vectors, lanes)
    place = affine(found.along) * found.step + affine(found.taps) * found.dilation + found.first
    few = always_less(found.taps.extent, _WRITTEN_OUT + 1)
    compute = Compute(
        (Store(problem.output, problem.epilogue),),
        _element(found, line, place),
        problem.reduction.combiner,
        reduce=() if few else (Tile(found.taps),),
        unroll=(*([Tile(found.taps)] if few else []), *points),
        vector=found.lanes,
    )
    return nest([loop], compute)


TEMPLATE = Template(
    algorithms=("separable",),
    analyse=analyse,
    preference=lambda found, mode: 2.25,  # before windows
    knobs=_knobs,
    default=lambda found, mode, knobs: Schedule.of("separable", lines=4, tile=4),
    lower=_lower,
    machine=_fits,
)
