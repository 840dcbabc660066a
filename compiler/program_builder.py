"""From a graph plan and schedules to a program: kernels, packed weights, memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from compiler.build import BuiltKernel, build_kernel
from compiler.errors import CompilerError, ScheduleError
from compiler.memory_plan import MemoryPlan, plan_memory
from compiler.plan import GraphPlan, KernelStep
from compiler.runtime.kernel import BufferSpec, KernelSpec, Role
from compiler.runtime.packing import Bytes
from compiler.runtime.program import BufferRef, KernelCall, Port, Program, Space
from compiler.runtime.weights import WeightBlock
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import untuned_schedules
from compiler.target import Target
from compiler.workload import Workload


class ScheduleSource(Protocol):
    """Where tuned schedules come from; the tuning database is one."""

    def best(
        self, workload_key: str, target_key: str, threads: int, numerics: str
    ) -> Schedule | None:
        """The best schedule known, or None."""
        ...


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program with everything that running or saving it needs.

    `schedules` says for each workload key what was compiled; `tuned` which of them a source knew.
    """

    program: Program
    weights: Bytes
    objects: tuple[bytes, ...]
    schedules: Mapping[str, Schedule]
    tuned: frozenset[str]
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds by step: kernels, weights."""


def build_program(
    plan: GraphPlan,
    source: ScheduleSource | None,
    target: Target,
    threads: int = 1,
    numerics: str = "fast",
) -> CompiledProgram:
    """Compile every workload of a plan and lay out its memory.

    A schedule that the source knows but that no longer fits gives way to the default.

    Raises:
        CompilerError: if a workload compiles with no schedule.
    """
    start = time.perf_counter()
    built: dict[Workload, tuple[BuiltKernel, Schedule, bool]] = {}
    for step in plan.kernels:
        if step.workload not in built:
            built[step.workload] = _build(step.workload, source, target, threads, numerics)
    compiled = time.perf_counter()
    shared = {
        position: [b.bytes for b in built[step.workload][0].spec.buffers if b.role is Role.SHARED]
        for position, step in enumerate(plan.steps)
        if isinstance(step, KernelStep)
    }
    memory = plan_memory(plan, {p: sizes for p, sizes in shared.items() if sizes})
    weights = WeightBlock()
    kernels: dict[str, int] = {}
    specs: list[KernelSpec] = []
    calls: list[KernelCall] = []
    for position, step in enumerate(plan.steps):
        if not isinstance(step, KernelStep):
            continue
        spec = built[step.workload][0].spec
        if spec.name not in kernels:
            kernels[spec.name] = len(specs)
            specs.append(spec)
        places = _Places(plan, memory, position, weights)
        refs = tuple(places.ref(step, buffer) for buffer in spec.buffers)
        calls.append(KernelCall(kernels[spec.name], refs))
    program = Program(
        plan.graph.name,
        tuple(_port(plan, name) for name in plan.graph.inputs),
        tuple(_port(plan, name) for name in plan.graph.outputs),
        tuple(specs),
        tuple(calls),
        memory.arena_bytes,
        weights.bytes,
    )
    block = weights.build()
    done = time.perf_counter()
    return CompiledProgram(
        program,
        block,
        tuple(kernel.object for kernel, _, _ in built.values()),
        {w.key: schedule for w, (_, schedule, _) in built.items()},
        frozenset(w.key for w, (_, _, known) in built.items() if known),
        {"kernels": compiled - start, "weights": done - compiled},
    )


def _build(
    workload: Workload,
    source: ScheduleSource | None,
    target: Target,
    threads: int,
    numerics: str,
) -> tuple[BuiltKernel, Schedule, bool]:
    """The kernel of a workload, its schedule, and whether the source knew it."""
    best = source.best(workload.key, target.key, threads, numerics) if source else None
    refused: list[str] = []
    for schedule in [
        *([best] if best else []),
        *untuned_schedules(workload, target, threads, numerics),
    ]:
        try:
            kernel = build_kernel(workload, schedule, target, threads)
        except ScheduleError as error:
            refused.append(f"{schedule}: {error}")
            continue
        return kernel, schedule, schedule is best
    operators = ", ".join(workload.operators)
    raise CompilerError(f"the fused workload of {operators} has no schedule ({refused[-1]})")


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the buffers of one step lie."""

    plan: GraphPlan
    memory: MemoryPlan
    position: int
    weights: WeightBlock

    def ref(self, step: KernelStep, buffer: BufferSpec) -> BufferRef:
        match buffer.role:
            case Role.INPUT:
                return self._value(step.inputs[buffer.source])
            case Role.OUTPUT:
                return self._value(step.output)
            case Role.WEIGHT:
                array = self.plan.graph.constants[step.inputs[buffer.source]]
                return BufferRef(Space.WEIGHTS, self.weights.add(buffer, array))
            case Role.SHARED:
                # At most one such buffer a kernel: the packed operand.
                (offset,) = self.memory.shared[self.position]
                return BufferRef(Space.ARENA, offset)

    def _value(self, name: str) -> BufferRef:
        root = self.memory.roots[name]
        if root in self.plan.graph.inputs:
            return BufferRef(Space.INPUT, self.plan.graph.inputs.index(root))
        if root in self.plan.graph.outputs:
            return BufferRef(Space.OUTPUT, self.plan.graph.outputs.index(root))
        return BufferRef(Space.ARENA, self.memory.offsets[root])


def _port(plan: GraphPlan, name: str) -> Port:
    kind = plan.graph.types[name]
    return Port(name, kind.dtype, kind.shape)
