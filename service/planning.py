"""From a model to tuning tasks: import, optimise, plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compiler import costs, driver
from compiler.graph.ir import Graph
from compiler.loops.nest import LoopNest
from compiler.passes.pipeline import Observer
from compiler.plan import GraphPlan
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import lower_schedule, schedule_space
from compiler.target import Target, resolve_target
from compiler.workload import Workload
from tuner.statements import statements
from tuner.tasks import Task

TRANSFORMING = frozenset({"winograd", "strassen"})
"""Algorithms that execute other operations than the workload's definition names."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model, and what it is wanted for."""

    model: Path | bytes
    target: str = "host"
    threads: int = 1
    numerics: str = "fast"
    dims: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A model cut into workloads. `graph` is what was imported, before any pass: the reference."""

    request: ModelRequest
    graph: Graph
    plan: GraphPlan
    target: Target

    @property
    def threads(self) -> int:
        return self.request.threads

    @property
    def numerics(self) -> str:
        return self.request.numerics

    @property
    def workloads(self) -> list[tuple[Workload, int]]:
        """Each workload with how often the model runs it."""
        return self.plan.tasks()


def plan_model(request: ModelRequest, observer: Observer | None = None) -> Planned:
    """Import a model and cut it into workloads; `observer` sees the graph after each pass.

    Raises:
        CompilerError: if the model or the target is wrong or not supported.
    """
    target = resolve_target(request.target)
    graph = driver.load_graph(request.model, dict(request.dims or {}))
    optimised = driver.optimise(graph, request.numerics, observer)
    plan = driver.make_plan(optimised, target, request.numerics)
    return Planned(request, graph, plan, target)


def tasks_of(planned: Planned) -> list[Task]:
    """The tuning tasks of a model, in the order of their first use."""
    return [
        Task(
            name=workload_name(workload),
            workload=workload,
            target=planned.target,
            space=schedule_space(workload, planned.target, planned.threads, planned.numerics),
            lower=partial(_nest, workload, planned.target, planned.threads),
            count=count,
            threads=planned.threads,
            numerics=planned.numerics,
        )
        for workload, count in planned.workloads
    ]


def workload_name(workload: Workload) -> str:
    """A name for people: "conv 3x3 /2 +add +relu 64x56x56"."""
    nodes = workload.graph.nodes
    anchor = max(nodes, key=lambda node: _rank(node.op)) if nodes else None
    if anchor is None:
        return "copy"
    parts = [anchor.op]
    if anchor.op == "conv":
        kernel = workload.graph.types[anchor.inputs[1]].shape[2:]
        parts.append("x".join(map(str, kernel)))
        strides = anchor.attr("strides", ())
        if isinstance(strides, tuple) and any(s != 1 for s in strides):
            parts.append(f"/{strides[0]}")
        group = anchor.attr("group", 1)
        if group != 1:
            parts.append(f"g{group}")
    elif anchor.op == "matmul":
        parts.append(f"k{workload.graph.types[anchor.inputs[0]].shape[-1]}")
    others = [node.op for node in nodes if node is not anchor]
    shown = others[:3]
    parts += [f"+{name}" for name in shown]
    if len(others) > len(shown):
        parts.append(f"+{len(others) - len(shown)} more")
    shape = workload.output.type.shape
    parts.append("x".join(map(str, shape[1:] if len(shape) > 2 and shape[0] == 1 else shape)))
    return " ".join(parts)


_ANCHORS = ("conv", "matmul", "pool", "lrn", "softmax", "layer_norm", "reduce", "gather", "concat")


def _rank(operator: str) -> int:
    for number, name in enumerate(_ANCHORS):
        if name in operator:
            return len(_ANCHORS) - number
    return 0


def workload_facts(workload: Workload) -> dict[str, Any]:
    """What a workload costs whatever its schedule: operations, bytes."""
    return {
        "flops": costs.flops(workload),
        "macs": costs.macs(workload),
        "bytes": costs.bytes_read(workload) + costs.bytes_written(workload),
    }


def schedule_facts(task: Task, schedule: Schedule) -> dict[str, Any]:
    """What a schedule makes of a workload: algorithm, knobs, operations really executed.

    Executed operations are those of the algorithm; what a ragged tile computes in vain is waste and
    not counted.
    """
    executed = float(costs.flops(task.workload))
    if schedule.algorithm in TRANSFORMING:
        # a reduction's multiply and add are counted as one fused operation
        executed = sum(
            statement.operations * (2.0 if statement.is_reduction else 1.0)
            for statement in statements(task.lower(schedule))
        )
    return {
        "algorithm": schedule.algorithm,
        "schedule": schedule.to_json(),
        "executed_flops": executed,
    }


def _nest(workload: Workload, target: Target, threads: int, schedule: Schedule) -> LoopNest:
    return lower_schedule(workload, schedule, target, threads).nest
