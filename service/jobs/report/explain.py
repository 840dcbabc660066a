"""Reports on the kernels of a compiled model: schedule, code, time, and the device's limits."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.compiler.codegen.statistics import InnerLoop, inner_loops
from tilewright.compiler.graph.text import print_graph
from tilewright.compiler.loops.expr import Op, Operation, walk
from tilewright.compiler.loops.nest import LoopNest, dot_operands
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan import costs
from tilewright.compiler.plan.intervals import leaves
from tilewright.compiler.plan.plan import GraphPlan, KernelStep
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import LoweredKernel, lower_workload
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.program.kernels import KernelTree, ScheduledKernel, ScheduleSource
from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.compiler.runtime.program import KernelCall
from tilewright.compiler.runtime.speeds import DOTS
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.sizes import at
from tilewright.compiler.timings import Timings, timed
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.device.loadables import of_compiled
from tilewright.service.jobs.plan.planning import Planned
from tilewright.service.jobs.report.profiling import SAMPLES
from tilewright.service.jobs.report.report_table import headline, report_table
from tilewright.service.jobs.report.shown_sizes import shown_sizes
from tilewright.service.jobs.report.workload_facts import executed_flops, workload_name
from tilewright.service.show import notebook
from tilewright.tuner.measure.roofline import Speeds, TimeBound, bound


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel of a model, at one size of the model.

    Attributes:
        number: the number of the kernel, from 1, in the order of first use; the same at all sizes.
        name: a readable name.
        workload_key: the key of its workload in the database.
        operators: the graph of its workload, as text.
        count: the number of its runs in one run of the model.
        serves: the range of each dimension for which the kernel is used, such as "17..128".
            Dimensions whose range is not split are left out.
        schedule: the schedule.
        tuned: whether the schedule comes from the database.
        nest: the loop nest, as text.
        loops: the innermost loops of its machine code.
        flops: the operations of the workload as defined by its operators.
        executed_flops: the operations of the algorithm that the schedule selects.
        weight_bytes: the bytes of the packed weights that it reads.
        value_bytes: the bytes of the inputs that it reads and the outputs that it writes.
        seconds: the mean time of one run within the model; None if the device does not run the
            code.
        bound: the shortest time that the device allows; None if `seconds` is None.
    """

    number: int
    name: str
    workload_key: str
    operators: str
    count: int
    serves: Mapping[str, str]
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
        """The largest number of vector registers that an innermost loop spills to the stack."""
        return max((loop.spills for loop in self.loops), default=0)

    @property
    def of_roofline(self) -> float | None:
        """The fraction of the device's peak that the kernel reaches, in 0..1; None if it was not
        timed.
        """
        if self.bound is None or not self.seconds:
            return None
        return self.bound.seconds / self.seconds


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The kernels that run in a model at some sizes, with their times.

    Attributes:
        name: the name of the model.
        sizes: the sizes of its dynamic dimensions.
        target: the name of the target.
        threads: the number of threads of a run.
        numerics: the numerics of the mode.
        precision: the precision of the mode.
        kernels: the reports on the kernels.
        speeds: the measured roofline of the device; None if it was not measured.
        device: the model name of the CPU on which the model was timed; "" if it was not timed.
        seconds: the time of all kernels in one run; None if they were not timed.
    """

    name: str
    sizes: Mapping[str, int]
    target: str
    threads: int
    numerics: str
    precision: str
    kernels: tuple[KernelReport, ...]
    speeds: Speeds | None
    device: str = ""

    @property
    def seconds(self) -> float | None:
        times = [kernel.seconds for kernel in self.kernels if kernel.seconds is not None]
        if len(times) != len(self.kernels):
            return None
        return sum(k.count * t for k, t in zip(self.kernels, times, strict=True))

    def share(self, kernel: KernelReport) -> float | None:
        """Return the fraction of the model's time that all runs of a kernel take, in 0..1.

        Return None if the model was not timed.
        """
        total = self.seconds
        return kernel.count * kernel.seconds / total if total and kernel.seconds else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and values derived from them, as data for `json.dumps`."""
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

    def _repr_html_(self) -> str:
        head = "".join(notebook.paragraph(line) for line in headline(self).splitlines())
        return head + notebook.table(report_table(self))


def explain(
    planned: Planned,
    source: ScheduleSource | None,
    device: Device,
    timings: Timings | None = None,
) -> tuple[ModelReport, ...]:
    """Compile a model with the schedules of `source`, and report on every kernel.

    If the device runs the target, the model runs there on random inputs from a fixed seed, and
    every kernel is timed within the model.

    Args:
        planned: the plan of the model.
        source: the schedules; None for the defaults.
        device: the device on which kernels are timed.
        timings: receives the seconds of each step.

    Returns:
        a report for each combination of sizes that `shown_sizes` returns.

    Raises:
        CompilerError: if a workload does not compile.
        DeviceError: if the device is unreachable, or cannot run the model.
    """
    target, threads = planned.target, planned.mode.threads
    plan = planned.served_plan
    each_sizes = shown_sizes(planned)
    builder = ProgramBuilder(source, planned.mode, timings=timings)
    compiled = builder.build(plan)
    trees = builder.kernels(plan)
    speeds = None
    where = ""
    if device.runs(target):
        with timed(timings, "measure device"):
            speeds = device.speeds(target)
        where = "" if device.facts is None else device.facts.model
    kernels = [
        _Kernel(number, workload, scheduled, compiled, threads, timings)
        for number, (workload, scheduled) in enumerate(_scheduled(plan, trees), 1)
    ]
    reports = []
    for sizes in each_sizes:
        at_sizes = replace(compiled, program=compiled.program.at(sizes)) if sizes else compiled
        calls: Sequence[float | None] = [None] * len(plan.kernels)
        if speeds is not None:
            with timed(timings, "measure kernels"):
                calls = kernel_seconds(at_sizes, threads, device)
        reports.append(
            ModelReport(
                plan.graph.name,
                sizes,
                target.name,
                threads,
                planned.mode.numerics,
                planned.mode.precision,
                tuple(u.kernel.report(u, speeds) for u in _uses(plan, kernels, sizes, calls)),
                speeds,
                where,
            )
        )
    return tuple(reports)


def _scheduled(
    plan: GraphPlan, trees: Mapping[Workload, KernelTree]
) -> Iterator[tuple[Workload, ScheduledKernel]]:
    """Yield (workload, kernel) for each kernel of a plan, in the order of first use.

    If the range of a dimension is split into intervals, a workload has a kernel for each interval.
    These kernels follow each other, smallest sizes first.

    Args:
        plan: the plan.
        trees: the kernels of each workload.
    """
    for workload in dict.fromkeys(step.workload for step in plan.kernels):
        yield from ((workload, kernel) for kernel in leaves(trees[workload]))


@dataclass(slots=True)
class _Use:
    """The use of a kernel in a run of a model at some sizes.

    Attributes:
        kernel: the kernel.
        step: the first step of the plan that uses it.
        fixed: the kernel's workload at these sizes.
        values: the sizes of the workload's dynamic dimensions, by their names in the workload.
        count: the number of runs of the kernel.
        seconds: the time of all these runs; None if nothing was timed.
    """

    kernel: _Kernel
    step: KernelStep
    fixed: Workload
    values: Mapping[str, int]
    count: int = 0
    seconds: float | None = None


def _uses(
    plan: GraphPlan,
    kernels: Sequence[_Kernel],
    sizes: Mapping[str, int],
    calls: Sequence[float | None],
) -> list[_Use]:
    """Return the kernels that a run of a plan uses at given sizes, in the order of first use.

    Args:
        plan: the plan.
        kernels: all kernels of the plan.
        sizes: the sizes of the model's dynamic dimensions.
        calls: the seconds of each kernel step; 0 for a step in a branch that did not run; None if
            nothing was timed.
    """
    of_workload: dict[Workload, list[_Kernel]] = {}
    for kernel in kernels:
        of_workload.setdefault(kernel.workload, []).append(kernel)
    found: dict[tuple[int, Workload], _Use] = {}
    steps = [(step, count) for step, count in plan.walk() if isinstance(step, KernelStep)]
    for (step, count), seconds in zip(steps, calls, strict=True):
        own = step.workload.dimensions
        # no buffer has slack capacity here
        given = [sizes.get(name, 0) for name in step.sizes]
        values = {d.name: size for d, size in zip(own, given, strict=True)}
        kernel = next(k for k in of_workload[step.workload] if k.holds(given))
        fixed = step.workload.at(values) if values else step.workload
        use = found.setdefault((kernel.number, fixed), _Use(kernel, step, fixed, values))
        use.count += count
        if seconds is not None:
            use.seconds = (use.seconds or 0.0) + seconds
    return list(found.values())


class _Kernel:
    """The properties of a kernel that do not depend on sizes."""

    def __init__(
        self,
        number: int,
        workload: Workload,
        scheduled: ScheduledKernel,
        compiled: CompiledProgram,
        threads: int,
        timings: Timings | None,
    ) -> None:
        self.number = number
        self.workload = workload
        self._scheduled = scheduled
        self._threads = threads
        self._tuned = any(key in compiled.tuned for key in scheduled.keys)
        self._all_weights = compiled.program.weight_bytes
        part, target = scheduled.piece.workload, compiled.target
        self._lowered = lower_workload(part, scheduled.schedule, Mode(target, threads))
        with timed(timings, "assembly"):
            self._loops = inner_loops(self._lowered.assembly(target), target)

    def holds(self, given: Sequence[int]) -> bool:
        """Whether the kernel is used at these sizes.

        Args:
            given: the size of each dynamic dimension of the workload, in order.
        """
        box = self._scheduled.piece.box
        return all(size in own for own, size in zip(box, given, strict=True))

    def report(self, use: _Use, speeds: Speeds | None) -> KernelReport:
        """Return the report on one use of the kernel.

        Args:
            use: the use, with its sizes and times.
            speeds: the measured roofline of the device; None if it was not measured.
        """
        scheduled, lowered, workload = self._scheduled, self._lowered, use.fixed
        whole, piece = self.workload.dimensions, scheduled.piece
        own = {
            d.name: use.values[whole[position].name]
            for d, position in zip(piece.workload.dimensions, piece.positions, strict=True)
        }
        serves = {
            name: part.range_text
            for name, part, every in zip(use.step.sizes, piece.box, whole, strict=True)
            if (part.low, part.high) != (every.low, every.high)
        }
        nest = lowered.nest.at(own) if own else lowered.nest
        executed = executed_flops(workload, scheduled.schedule, nest)
        weights, values = _bytes(lowered, own)
        limit = None
        if speeds is not None:
            dot = products_in_groups(lowered.nest)
            limit = bound(speeds, executed, weights, values, self._all_weights, self._threads, dot)
        return KernelReport(
            number=self.number,
            name=workload_name(workload),
            workload_key=piece.workload.key,
            operators=print_graph(workload.graph),
            count=use.count,
            serves=serves,
            schedule=scheduled.schedule,
            tuned=self._tuned,
            nest=print_nest(lowered.nest),
            loops=self._loops,
            flops=costs.flops(workload),
            executed_flops=executed,
            weight_bytes=weights,
            value_bytes=values,
            seconds=None if use.seconds is None else use.seconds / use.count,
            bound=limit,
        )


def products_in_groups(nest: LoopNest) -> tuple[str, int]:
    """Return the operand type and the products per lane of a kernel's dot-product instructions.

    For example, ("int8", 4) if each instruction adds four int8 products to each 32-bit sum. Return
    ("", 1) for a kernel without dot-product instructions. 4-bit weights count as int8 if the
    activations are int8.
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
    """Profile a program on a device; return the fastest time of each kernel call, in seconds.

    The times are in the order of `GraphPlan.kernels`.

    Raises:
        DeviceError: if the device is unreachable, or cannot run the program.
    """
    best = device.profile(of_compiled(compiled), threads, SAMPLES)
    return [
        float(seconds)
        for instruction, seconds in zip(compiled.program.walk(), best, strict=True)
        if isinstance(instruction, KernelCall)
    ]


def _bytes(lowered: LoweredKernel, values: Mapping[str, int]) -> tuple[int, int]:
    """Return the bytes of packed weights, and of other inputs and outputs, that a kernel
    accesses.

    Args:
        lowered: the kernel.
        values: the sizes of its dynamic dimensions, by name.
    """
    spec = lowered.spec
    found: Counter[bool] = Counter()
    for buffer in spec.buffers:
        if buffer.role is not BufferRole.SHARED:
            found[buffer.role is BufferRole.WEIGHT] += at(buffer.bytes, values)
    return found[True], found[False]
