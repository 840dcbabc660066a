"""Explains a compiled model: its kernels with schedule, code, time, and the device's limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compiler import costs
from compiler.build import LoweredKernel, lower_workload
from compiler.codegen.statistics import InnerLoop, inner_loops
from compiler.graph.text import print_graph
from compiler.kernels import ScheduleSource
from compiler.loops.expr import Op, Operation, walk
from compiler.loops.nest import LoopNest, dot_operands
from compiler.loops.text import print_nest
from compiler.program_builder import CompiledProgram, build_program
from compiler.roofline import Speeds, TimeBound, bound
from compiler.runtime.kernel import BufferRole
from compiler.runtime.program import KernelCall
from compiler.runtime.speeds import DOTS
from compiler.schedule.schedule import Schedule
from compiler.timings import Timings, timed
from compiler.workload import Workload
from service.jobs.device import Device
from service.jobs.loadables import of_compiled
from service.jobs.planning import Planned, executed_flops, workload_name

SAMPLES = 9
"""Runs of the whole model; of each kernel the fastest counts."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One workload of a model, and the kernel that serves it.

    Attributes:
        number: from 1, in the order of first use.
        name: for people.
        workload_key: what the database knows it by.
        operators: the graph that is one kernel, as text.
        count: how often a run of the model runs it.
        schedule: the choices that were made; `tuned` says whether they come from the database.
        nest: the loop nest, as text.
        loops: the innermost loops of its machine code.
        flops: operations of the definition; `executed_flops` of the algorithm that was chosen.
        weight_bytes: packed weights that it reads.
        value_bytes: inputs that it reads and outputs that it writes.
        seconds: of one run within the model, the mean over all of `count`; `bound` is the least
            time that the device allows. Both are None if the device does not run the code.
    """

    number: int
    name: str
    workload_key: str
    operators: str
    count: int
    schedule: Schedule
    tuned: bool
    nest: str
    loops: tuple[InnerLoop, ...]
    flops: int
    executed_flops: float
    weight_bytes: int
    value_bytes: int
    seconds: float | None
    bound: TimeBound | None

    @property
    def spills(self) -> int:
        """Vector registers that the worst innermost loop keeps on the stack."""
        return max((loop.spills for loop in self.loops), default=0)

    @property
    def of_roofline(self) -> float | None:
        """The share of the device's limit that the kernel reaches; 1 is all of it."""
        if self.bound is None or not self.seconds:
            return None
        return self.bound.seconds / self.seconds


@dataclass(frozen=True, slots=True)
class ModelReport:
    """All kernels of a model. `seconds` is the time of all kernels in one run.

    `decision` says how its plan was chosen among others; None if it is the rules' plan. `device` is
    the CPU that it was timed on, "" if it was not timed.
    """

    name: str
    target: str
    threads: int
    numerics: str
    precision: str
    kernels: tuple[KernelReport, ...]
    speeds: Speeds | None
    decision: Mapping[str, Any] | None = None
    device: str = ""

    @property
    def seconds(self) -> float | None:
        times = [kernel.seconds for kernel in self.kernels if kernel.seconds is not None]
        if len(times) != len(self.kernels):
            return None
        return sum(k.count * t for k, t in zip(self.kernels, times, strict=True))

    def share(self, kernel: KernelReport) -> float | None:
        """The share of all runs of the kernel in the model's time, in 0..1."""
        total = self.seconds
        return kernel.count * kernel.seconds / total if total and kernel.seconds else None

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json`: the fields, and what follows from them."""
        data = dataclasses.asdict(self)
        data["seconds"] = self.seconds
        for kernel, fields in zip(self.kernels, data["kernels"], strict=True):
            limit = kernel.bound
            fields |= {
                "schedule": kernel.schedule.to_json(),
                "share": self.share(kernel),
                "spills": kernel.spills,
                "of_roofline": kernel.of_roofline,
                "bound": limit and {"seconds": limit.seconds, "limit": limit.limit},
            }
        return data


def explain(
    planned: Planned,
    source: ScheduleSource | None,
    device: Device,
    timings: Timings | None = None,
) -> ModelReport:
    """Compile a model with the schedules that `source` knows, and look at every kernel.

    If the device runs the target, the model is run there on seeded inputs, and every kernel is
    timed in its place.

    Raises:
        CompilerError: if a workload does not compile.
        DeviceError: if the device does not answer, or cannot run it.
    """
    target, threads = planned.target, planned.threads
    plan = planned.plan
    compiled = build_program(plan, source, target, threads, planned.numerics, timings=timings)
    seconds: Mapping[Workload, float] = {}
    speeds = None
    where = ""
    if device.runs(target):
        seconds = _measure(planned, compiled, device, timings)
        with timed(timings, "measure device"):
            speeds = device.speeds(target)
        where = "" if device.facts is None else device.facts.model
    kernels = []
    for number, (workload, count) in enumerate(planned.workloads, 1):
        schedule = compiled.schedules[workload.key]
        lowered = lower_workload(workload, schedule, target, threads)
        with timed(timings, "assembly"):
            loops = inner_loops(lowered.assembly(target), target)
        executed = executed_flops(workload, schedule, lowered.nest)
        weights, values = _bytes(lowered)
        limit = None
        if speeds is not None:
            all_weights, dot = compiled.program.weight_bytes, products_in_groups(lowered.nest)
            limit = bound(speeds, executed, weights, values, all_weights, threads, dot)
        kernels.append(
            KernelReport(
                number=number,
                name=workload_name(workload),
                workload_key=workload.key,
                operators=print_graph(workload.graph),
                count=count,
                schedule=schedule,
                tuned=workload.key in compiled.tuned,
                nest=print_nest(lowered.nest),
                loops=loops,
                flops=costs.flops(workload),
                executed_flops=executed,
                weight_bytes=weights,
                value_bytes=values,
                seconds=seconds.get(workload),
                bound=limit,
            )
        )
    return ModelReport(
        plan.graph.name,
        target.name,
        threads,
        planned.numerics,
        planned.precision,
        tuple(kernels),
        speeds,
        planned.decision,
        where,
    )


def products_in_groups(nest: LoopNest) -> tuple[str, int]:
    """The narrow type whose products a kernel adds in groups, and of how many: "" and 1 of none.

    Weights of 4 bits are multiplied as groups of bytes where the activations are bytes, too.
    """
    nodes = (node for compute in nest.computes for node in walk(compute.body))
    if any(isinstance(node, Op) and node.operation is Operation.DOT for node in nodes):
        return "int8", DOTS["int8"]
    widest = max(nest.computes, key=lambda compute: compute.group, default=None)
    operands = dot_operands(widest.body) if widest is not None and widest.group > 1 else None
    if widest is None or operands is None:
        return "", 1
    dtype = operands[0].dtype
    return "int8" if dtype.bytes == 1 else dtype.value, widest.group


def kernel_seconds(compiled: CompiledProgram, threads: int, device: Device) -> list[float]:
    """Seconds of each of the plan's `kernels` in one run, each in its place: the fastest sample.

    Raises:
        DeviceError: if the device does not answer, or cannot run it.
    """
    best = device.profile(of_compiled(compiled), threads, SAMPLES)
    return [
        float(seconds)
        for instruction, seconds in zip(compiled.program.walk(), best, strict=True)
        if isinstance(instruction, KernelCall)
    ]


def _measure(
    planned: Planned, compiled: CompiledProgram, device: Device, timings: Timings | None
) -> dict[Workload, float]:
    """Seconds of each workload's kernel: the fastest sample, averaged over how often it is expected
    to run; a branch that these inputs do not choose takes no time."""
    with timed(timings, "measure kernels"):
        calls = kernel_seconds(compiled, planned.threads, device)
    found: dict[Workload, float] = {}
    for step, seconds in zip(planned.plan.kernels, calls, strict=True):
        found[step.workload] = found.get(step.workload, 0.0) + seconds
    return {workload: found[workload] / count for workload, count in planned.workloads}


def _bytes(lowered: LoweredKernel) -> tuple[int, int]:
    """Bytes of packed weights that a kernel reads, and bytes that it reads and writes besides."""
    weights = sum(b.bytes for b in lowered.spec.buffers if b.role is BufferRole.WEIGHT)
    values = sum(
        b.bytes for b in lowered.spec.buffers if b.role in (BufferRole.INPUT, BufferRole.OUTPUT)
    )
    return weights, values
