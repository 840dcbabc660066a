"""Concatenation and padding: the output consists of boxes, which separate stages write.

A box is copied from an operand, or filled with a constant.
"""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Const, Expr, Load
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.merge import merge_axes
from tilewright.compiler.schedule.problem import Problem, boundaries
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import kernel_of
from tilewright.compiler.schedule.templates import Template
from tilewright.compiler.schedule.templates.map import UNROLLS, map_stage


@memo(256)
def analyse(workload: Workload) -> tuple[Problem, ...] | None:
    """Return how each box of the output of a concatenation or padding is computed, in order.

    A box is copied from an operand, or filled with a constant. Its `Problem` is one expression for
    all elements of the box. The result is None for a workload that is not a
    single operator of the kind PIECES.
    """
    nodes, graph = workload.graph.nodes, workload.graph
    if len(nodes) != 1 or ops.get(nodes[0].op).kind is not OpKind.PIECES:
        return None
    (node,) = nodes
    operator = ops.get(node.op)
    if operator.pieces is None:
        return None
    inputs, output = boundaries(workload)
    tensors = dict(zip(graph.inputs, inputs, strict=True))
    problems = []
    pieces = operator.pieces([graph.types[v] for v in node.inputs], node.attrs)
    for piece in pieces:
        axes = tuple(Axis(f"d{d}", extent) for d, extent in enumerate(piece.extents))
        index = tuple(affine(a) + o for a, o in zip(axes, piece.offset, strict=True))
        body: Expr
        if piece.operand is None:
            value = node.attr("value", 0.0)
            body = Const(value if isinstance(value, int | float) else 0.0, output.dtype)
        else:
            places = tuple(map(affine, axes))
            if piece.starts:
                parts = zip(places, piece.starts, piece.steps, strict=True)
                places = tuple(place * step + start for place, start, step in parts)
            body = Load(tensors[node.inputs[piece.operand]], places)
        problem = Problem(workload, axes, Load(output, index), body, inputs)
        problems.append(merge_axes(problem))
    return tuple(problems)


def _lower(problems: tuple[Problem, ...], schedule: Schedule, mode: Mode) -> Kernel:
    unroll, lanes = schedule.integer("unroll"), mode.target.lanes(DType.FLOAT32)
    stages = [
        map_stage(f"piece{number}", problem, lanes, unroll, transpose=True)
        for number, problem in enumerate(problems)
    ]
    whole = boundaries(problems[0].workload)[1]
    return kernel_of(problems[0], stages, mode, output=whole)


TEMPLATE = Template(
    algorithms=("pieces",),
    analyse=analyse,
    preference=lambda problems, mode: 1.0,
    knobs=lambda problems, mode: (Knob("unroll", UNROLLS),),
    default=lambda problems, mode, knobs: Schedule.of("pieces", unroll=4),
    lower=_lower,
)
