"""Scalar loops over all elements: a schedule for every workload.

One element of the output is computed at a time. Each reduction is a separate loop, inner ones
first. If an outer reduction needs an inner one at each of its steps (a product inside a softmax),
the inner results are first stored in scratch memory for all steps.

    out[i, j] = sum[k] x[i, k] * w[k, j], elementwise operators around it:
        for i: for j:
          s = sum[k] x[i, k] * w[k, j]
          out[i, j] = relu(s + b[j])

Without vectors and tiles, the schedule fits every layout. It is used if all other templates fail.
"""

from __future__ import annotations

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Expr,
    Items,
    Load,
    Reduce,
    Role,
    Space,
    Tensor,
    finished,
    walk,
)
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.nest import Compute, Node, Stage, Store, Tile
from tilewright.compiler.loops.rewriting import substitute
from tilewright.compiler.loops.semantics import items_of
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.merge import one_expression
from tilewright.compiler.schedule.problem import Problem, axes_of, boundaries
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    kernel_of,
    nest,
    parallel_stage,
    reads_halo,
)
from tilewright.compiler.schedule.templates import LAST, Template, pieces


def analyse(workload: Workload) -> tuple[Problem, ...] | None:
    """Return the expressions that compute the output: one for each box, or a single one.

    The result is None if the workload is neither one expression nor a concatenation or padding.
    """
    problem = one_expression(workload)
    return pieces.analyse(workload) if problem is None else (problem,)


def _lower(problems: tuple[Problem, ...], schedule: Schedule, mode: Mode) -> Kernel:
    made = [_element(number, problem) for number, problem in enumerate(problems)]
    whole = None if len(problems) == 1 else boundaries(problems[0].workload)[1]
    scratch = [tensor for _, tensors in made for tensor in tensors]
    stages = [stage for stage, _ in made]
    return kernel_of(problems[0], stages, mode, scratch=scratch, output=whole)


TEMPLATE = Template(
    algorithms=("scalar",),
    analyse=analyse,
    preference=lambda problems, mode: LAST,
    knobs=lambda problems, mode: (),
    default=lambda problems, mode, knobs: Schedule.of("scalar"),
    lower=_lower,
)


def _element(number: int, problem: Problem) -> tuple[Stage, list[Tensor]]:
    """Return the stage that computes a box of the output element by element, and its scratch
    tensors.

    `number` makes the names of stage and tensors unique.
    """
    known: dict[Expr, Expr] = {}
    nodes: list[Node] = []
    scratch: list[Tensor] = []
    for reduction in problem.reductions:
        steps = _steps(reduction, problem)
        targets = tuple(
            _kept(f"part{number}_{len(known)}_{item}", value.dtype, steps)
            for item, value in enumerate(items_of(finished(reduction)))
        )
        scratch += [t.tensor for t in targets if t.tensor.space is Space.MEMORY]
        values = items_of(finished(reduction))
        compute = Compute(
            tuple(Store(target, value) for target, value in zip(targets, values, strict=True)),
            substitute(reduction.body, known),
            reduction.combiner,
            reduce=tuple(Tile(axis) for axis in reduction.axes if axis.moves),
            skip_padding=not reads_halo(reduction),
        )
        nodes += nest([LoopSpec(axis) for axis in steps], compute)
        known[reduction] = targets[0] if len(targets) == 1 else Items(targets)
    value = substitute(problem.expr, known)
    nodes.append(Compute((Store(problem.output, Accumulator(value.dtype)),), value))
    loops = [LoopSpec(axis) for axis in problem.axes if axis.moves]
    return parallel_stage(f"main{number}", loops, *nodes), scratch


def _steps(reduction: Reduce, problem: Problem) -> list[Axis]:
    """Return the axes of enclosing reductions that a reduction's value depends on, sorted by
    name."""
    own = {axis for node in walk(reduction) if isinstance(node, Reduce) for axis in node.axes}
    free = axes_of(reduction) - own - {*problem.axes}
    return sorted((axis for axis in free if axis.moves), key=lambda axis: axis.name)


def _kept(name: str, dtype: DType, steps: list[Axis]) -> Load:
    """Return the destination of a reduction's value.

    It is a register, or an element of a scratch tensor with the axes `steps`.
    """
    if not steps:
        return Load(Tensor(name, (1,), dtype, space=Space.REGISTER), (Affine(),))
    shape = tuple(axis.extent for axis in steps)
    return Load(Tensor(name, shape, dtype, role=Role.SCRATCH), tuple(map(affine, steps)))
