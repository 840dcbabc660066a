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
from compiler.runtime.weights import WeightBlock, aligned_bytes
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
    weight_limit_bytes: int | None = None,
) -> CompiledProgram:
    """Compile every workload of a plan and lay out its memory.

    A schedule that the source knows but that no longer fits gives way to the default. Where packed
    weights would take more than the limit, those that an algorithm expands most (Winograd) are
    stored plainly instead.

    Raises:
        CompilerError: if a workload compiles with no schedule, or the weights do not fit the limit.
    """
    start = time.perf_counter()
    built: dict[Workload, Chosen] = {}
    for workload, _ in plan.tasks():
        built[workload] = _build(workload, source, target, threads, numerics)
    if weight_limit_bytes is not None:
        _limit_weights(plan, built, target, threads, weight_limit_bytes)
    compiled = time.perf_counter()
    shared = {
        position: [b.bytes for b in built[step.workload][0].spec.buffers if b.role is Role.SHARED]
        for position, step in enumerate(plan.steps)
        if isinstance(step, KernelStep)
    }
    memory = plan_memory(plan, {p: sizes for p, sizes in shared.items() if sizes})
    weights = WeightBlock(_weight_capacity(plan, built))
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
    block = weights.built()
    done = time.perf_counter()
    return CompiledProgram(
        program,
        block,
        tuple(kernel.object for kernel, _, _ in built.values()),
        {w.key: schedule for w, (_, schedule, _) in built.items()},
        frozenset(w.key for w, (_, _, known) in built.items() if known),
        {"kernels": compiled - start, "weights": done - compiled},
    )


Chosen = tuple[BuiltKernel, Schedule, bool]
"""A kernel, its schedule, and whether a source knew it."""


def _limit_weights(
    plan: GraphPlan, built: dict[Workload, Chosen], target: Target, threads: int, limit: int
) -> None:
    """Give up expansions, largest first, until all packed weights fit."""
    counts = dict(plan.tasks())
    expanded = sorted(
        (w for w in built if any(b.einsum for b in built[w][0].spec.buffers)),
        key=lambda w: -_weight_bytes(built[w]) * counts[w],
    )
    for workload in expanded:
        if _total_weights(built, counts) <= limit:
            return
        # Algorithms that change rounding are those that transform weights.
        built[workload] = _build(workload, None, target, threads, "strict")
    total = _total_weights(built, counts)
    if total > limit:
        raise CompilerError(f"the packed weights take {total} bytes, the limit is {limit}")


def _total_weights(built: Mapping[Workload, Chosen], counts: Mapping[Workload, int]) -> int:
    return sum(_weight_bytes(chosen) * counts[w] for w, chosen in built.items())


def _weight_bytes(chosen: Chosen) -> int:
    return sum(b.bytes for b in chosen[0].spec.buffers if b.role is Role.WEIGHT)


def _weight_capacity(plan: GraphPlan, built: Mapping[Workload, Chosen]) -> int:
    """What the packed weights of a plan take if no two kernels share one."""
    return sum(
        aligned_bytes(buffer.bytes)
        for step in plan.kernels
        for buffer in built[step.workload][0].spec.buffers
        if buffer.role is Role.WEIGHT
    )


def _build(
    workload: Workload,
    source: ScheduleSource | None,
    target: Target,
    threads: int,
    numerics: str,
) -> Chosen:
    """The kernel of a workload with the best schedule known, or the first default that lowers."""
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
