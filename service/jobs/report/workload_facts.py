"""Describes workloads and tasks for users: their names, costs and measured schedules."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan import costs
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.problem import anchor
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.templates import template_of
from tilewright.tuner.analysis.compute_costs import compute_costs
from tilewright.tuner.protocol.measurement import Measurement
from tilewright.tuner.tasks import Task


def workload_name(workload: Workload) -> str:
    """Return a readable name of a workload, such as "conv 3x3 /2 +add +relu 64x56x56".

    The example is a 3x3 convolution with stride 2, followed by two operators, with its output
    shape. Operators that only move data are left out.
    """
    nodes = workload.graph.nodes
    if not nodes:
        return "copy"
    main = anchor(workload) or next((n for n in nodes if ops.get(n.op).kind in _MAIN), nodes[0])
    parts = [main.op]
    if main.op == "conv":
        kernel = workload.graph.types[main.inputs[1]].shape[2:]
        parts.append("x".join(map(str, kernel)))
        strides = main.attr("strides", ())
        if isinstance(strides, tuple) and any(s != 1 for s in strides):
            parts.append(f"/{strides[0]}")
        group = main.attr("group", 1)
        if group != 1:
            parts.append(f"g{group}")
    elif main.op == "matmul":
        parts.append(f"k{workload.graph.types[main.inputs[0]].shape[-1]}")
    others = [
        n.op
        for n in nodes
        if n is not main and ops.get(n.op).kind not in (OpKind.MOVEMENT, OpKind.VIEW)
    ]
    shown = others[:3]
    parts += [f"+{name}" for name in shown]
    if len(others) > len(shown):
        parts.append(f"+{len(others) - len(shown)} more")
    shape = workload.output.type.shape
    parts.append("x".join(map(str, shape[1:] if len(shape) > 2 and shape[0] == 1 else shape)))
    return " ".join(parts)


_MAIN = (OpKind.GATHER, OpKind.PIECES)
"""Kinds of operators that name a workload without an anchor, in preference to elementwise
operators."""


def task_facts(task: Task) -> dict[str, Any]:
    """Return the costs of a task's workload that do not depend on a schedule.

    The keys are `flops`, `macs` (multiply-adds) and `bytes` (read and written). For a workload with
    dynamic dimensions, they are means over the measured sizes.
    """
    total: Counter[str] = Counter()
    for point, workload in task.fixed():
        found = {
            "flops": costs.flops(workload),
            "macs": costs.macs(workload),
            "bytes": costs.bytes_read(workload) + costs.bytes_written(workload),
        }
        total.update({name: point.share * count for name, count in found.items()})
    return {name: round(count) for name, count in total.items()}


def schedule_facts(task: Task, schedule: Schedule, found: Measurement) -> dict[str, Any]:
    """Return a measured schedule as data for `json.dumps`.

    The entries are `algorithm`, `schedule` (the knobs) and `executed_flops`. For a workload with
    dynamic dimensions, `at_sizes` has the seconds at each measured size.

    Args:
        task: the task.
        schedule: the schedule.
        found: the measurement of the schedule.
    """
    nest = task.lower(schedule)
    executed = sum(
        point.share
        * executed_flops(workload, schedule, nest.at(dict(point.sizes)) if point.sizes else nest)
        for point, workload in task.fixed()
    )
    at_sizes = [{"sizes": dict(each.sizes), "seconds": each.run_seconds} for each in found.at_sizes]
    return {
        "algorithm": schedule.algorithm,
        "schedule": schedule.to_json(),
        "executed_flops": executed,
        **({"at_sizes": at_sizes} if at_sizes else {}),
    }


def executed_flops(workload: Workload, schedule: Schedule, nest: LoopNest) -> float:
    """Return the number of operations that the algorithm of a schedule executes.

    Elements of an incomplete tile that are computed twice, and products with padding, are not
    counted.

    Args:
        workload: the workload.
        schedule: the schedule.
        nest: the loop nest of the schedule.
    """
    if not template_of(schedule.algorithm).transforms:
        return float(costs.flops(workload) - 2 * costs.padding_macs(workload))
    # a reduction's multiply and add are counted as one fused operation
    return sum(
        statement.operations * (2.0 if statement.is_reduction else 1.0)
        for statement in compute_costs(nest)
    )
