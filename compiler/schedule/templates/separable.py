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
    """A window reduction in two passes: first along `across` into a line, then along `taps`.

    Output w reduces the elements `step * w + first + dilation * k` of the padded line, over the
    taps k.

    Attributes:
        problem: the workload as one expression.
        lanes: the vector axis of the output.
        along: the output axis whose window is `taps`.
        taps: the axis of the window that the second pass reduces.
        across: the other axes of the window, which the first pass reduces.
        body: the reduced expression, as a function of `column`.
        column: the axis of the line.
        step: distance between the windows of adjacent outputs.
        dilation: distance between adjacent taps.
        first: position of the first tap of output 0 in the padded line.
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
    """Return the index at which a load reads along the axis of the second pass, and the extent
    there.

    The second pass runs along the output axis `along`, and `taps` are the window axes. The result
    is None unless exactly one index of the load contains `along`, and this index consists of
    `along` and one window axis, such as `2 w + kw - 1`.
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
    """Replace `index`, by which a load reads along the axis of the second pass, by `column`.

    The result is None for a node that is not a load.
    """
    if not isinstance(node, Load):
        return None
    return Load(node.tensor, tuple(affine(column) if i == index else i for i in node.index))


def _has_lanes(found: Separable) -> bool:
    """Whether both passes can read whole vectors and never leave their tensors along the lanes.

    A load may leave its tensor only along the axes that the first pass reduces, whose loops skip
    padding.
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
    """Return the scratch tensor of the line, padding elements included.

    If the lanes are channels, each element of the line is one vector of channels.
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

    The first pass has such a loop over the elements of the line, the second pass over the outputs.
    """
    if found.lanes == found.along:
        return LoopSpec(axis, vectors * lanes), [Tile(axis, lanes)]
    return LoopSpec(axis, vectors), [Tile(axis), Tile(found.lanes, lanes)]


def _around(found: Separable, line: Tensor, lanes: int) -> tuple[Node, ...]:
    """Return loops that write the padding elements before and after the line.

    Their value is the neutral element of the reduction.
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
    """Return the first pass, which reduces the window along the axes `across` and writes the
    line.
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
    """Return the second pass, which reads the line, reduces along the axis `taps` and writes the
    outputs.
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
