"""Concatenation and padding: each piece of the output is copied by a stage of its own."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Const, Expr, Load, Role, Tensor
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.nest import LoopNest, Stage
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.merge import merge_axes
from tilewright.compiler.schedule.problem import Problem
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob, SubSpace
from tilewright.compiler.schedule.structure import with_halo
from tilewright.compiler.schedule.templates.map import map_stage, transposed_axis
from tilewright.compiler.targets.target import Target


@memo(256)
def analyse(workload: Workload) -> tuple[Problem, ...]:
    """One problem a piece; empty where the workload is something else."""
    nodes = workload.graph.nodes
    if len(nodes) != 1 or ops.get(nodes[0].op).kind is not OpKind.PIECES:
        return ()
    (node,) = nodes
    graph, out = workload.graph, workload.output
    tensors = {
        name: Tensor(
            f"in{i}", b.type.shape, b.type.dtype, b.layout, b.halo,
            role=Role.WEIGHT if b.constant else Role.INPUT,
        )
        for i, (name, b) in enumerate(zip(graph.inputs, workload.inputs, strict=True))
    }  # fmt: skip
    output = Tensor("out", out.type.shape, out.type.dtype, out.layout, out.halo, role=Role.OUTPUT)
    operator = ops.get(node.op)
    if operator.pieces is None:
        return ()
    problems = []
    pieces = operator.pieces([graph.types[v] for v in node.inputs], node.attrs)
    for piece in pieces:
        axes = tuple(Axis(f"d{d}", extent) for d, extent in enumerate(piece.extents))
        index = tuple(affine(a) + o for a, o in zip(axes, piece.offset, strict=True))
        body: Expr
        if piece.operand is None:
            value = node.attr("value", 0.0)
            body = Const(value if isinstance(value, int | float) else 0.0, out.type.dtype)
        else:
            places = tuple(map(affine, axes))
            if piece.starts:
                parts = zip(places, piece.starts, piece.steps, strict=True)
                places = tuple(place * step + start for place, start, step in parts)
            body = Load(tensors[node.inputs[piece.operand]], places)
        problem = Problem(workload, axes, Load(output, index), body, tuple(tensors.values()))
        problems.append(merge_axes(problem))
    return tuple(problems)


class _Template:
    algorithms = ("pieces",)

    def preference(self, workload: Workload, target: Target) -> float:
        return 1.0

    def space(self, workload: Workload, mode: Mode) -> SubSpace | None:
        if not analyse(workload):
            return None
        knobs = (Knob("unroll", (1, 2, 4, 8)),)

        def valid(choice: Mapping[str, Choice]) -> bool:
            return True

        return SubSpace("pieces", knobs, valid, Schedule.of("pieces", unroll=4))

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        problems = analyse(workload)
        if not problems:
            raise ScheduleError("'pieces' does not apply to this workload")
        lanes = target.lanes(DType.FLOAT32)
        stages: list[Stage] = []
        for number, problem in enumerate(problems):
            turned = transposed_axis(problem.output, problem.expr, problem.axes, lanes)
            choices = Schedule.of(
                "map", unroll=schedule.integer("unroll"), transpose=turned is not None
            )
            stages.append(
                map_stage(
                    f"piece{number}", problem.output, problem.expr, problem.axes, choices, lanes
                )
            )
        whole = Tensor(
            "out",
            workload.output.type.shape,
            workload.output.type.dtype,
            workload.output.layout,
            workload.output.halo,
            role=Role.OUTPUT,
        )
        inputs = problems[0].inputs
        nest = LoopNest("kernel", (*inputs, whole), (), with_halo(tuple(stages), whole, lanes))
        return Kernel(nest, tuple((t.name, i) for i, t in enumerate(inputs)))


TEMPLATE = _Template()
