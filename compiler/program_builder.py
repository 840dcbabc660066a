"""From a graph plan and schedules to a program: kernels, packed weights, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from compiler.build import BuiltKernel, compile_lowered, lower_workload
from compiler.errors import CompilerError, ScheduleError
from compiler.loops.layout import ROW_MAJOR
from compiler.memory_plan import MemoryPlan, plan_memory
from compiler.plan import GraphPlan, KernelStep, NativeStep, ViewStep
from compiler.runtime.kernel import BufferSpec, KernelSpec, Role
from compiler.runtime.native_functions import native_signature
from compiler.runtime.packing import Bytes
from compiler.runtime.program import (
    BufferRef,
    Instruction,
    KernelCall,
    NativeCall,
    Port,
    Program,
    Space,
)
from compiler.runtime.weights import WeightBlock, aligned_bytes
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import untuned_schedules
from compiler.target import Target
from compiler.timings import Timings, timed
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
    Kernels whose code is equal share an object.
    """

    program: Program
    weights: Bytes
    objects: tuple[bytes, ...]
    schedules: Mapping[str, Schedule]
    tuned: frozenset[str]


def build_program(
    plan: GraphPlan,
    source: ScheduleSource | None,
    target: Target,
    threads: int = 1,
    numerics: str = "fast",
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
) -> CompiledProgram:
    """Compile every workload of a plan and lay out its memory: a `ProgramBuilder` used once.

    Raises:
        CompilerError: if a workload compiles with no schedule, or the weights do not fit the limit.
    """
    builder = ProgramBuilder(source, target, threads, numerics, weight_limit_bytes, timings)
    return builder.build(plan)


class ProgramBuilder:
    """Builds programs that share kernels and packed weights: one model at one or several sizes.

    A schedule that the source knows but that no longer fits gives way to the default. Where packed
    weights would take more than the limit, those that an algorithm expands most (Winograd,
    Strassen) are stored plainly instead. With `any_rows`, what nobody has tuned gets schedules whose
    code and packed weights serve other numbers of rows too.
    """

    def __init__(
        self,
        source: ScheduleSource | None,
        target: Target,
        threads: int = 1,
        numerics: str = "fast",
        weight_limit_bytes: int | None = None,
        timings: Timings | None = None,
        *,
        any_rows: bool = False,
    ) -> None:
        self.target = target
        self.threads = threads
        self.numerics = numerics
        self._source = source
        self._compiler = _Compiler(target, threads, timings, any_rows=any_rows)
        self._limit = weight_limit_bytes
        self._timings = timings
        self._built: dict[Workload, Chosen] = {}
        self._weights: WeightBlock | None = None

    def reserve(self, plans: Sequence[GraphPlan]) -> None:
        """Compile the kernels of several plans, and make one block that holds all their weights.

        Raises:
            CompilerError: see `build_program`.
        """
        self._weights = WeightBlock(sum(_weight_capacity(p, self._kernels(p)) for p in plans))

    def build(self, plan: GraphPlan, spare: int = 1) -> CompiledProgram:
        """The program of a plan. Its weights go into the block of the programs before it.

        Where the block is full, a new one is made, `spare` times as large as this plan needs.

        Raises:
            CompilerError: see `build_program`.
        """
        built = self._kernels(plan)
        needed = _weight_capacity(plan, built)
        if self._weights is None or self._weights.room < needed:
            self._weights = WeightBlock(spare * needed)
        program = self._program(plan, built, self._weights)
        if self._limit is not None and self._weights.bytes > self._limit:
            raise _over_limit(self._weights.bytes, self._limit)
        return CompiledProgram(
            program,
            self._weights.built(),
            tuple({kernel.digest: kernel.object for kernel, _, _ in built.values()}.values()),
            {w.key: schedule for w, (_, schedule, _) in built.items()},
            frozenset(w.key for w, (_, _, known) in built.items() if known),
        )

    def _kernels(self, plan: GraphPlan) -> dict[Workload, Chosen]:
        """A kernel for each workload of a plan."""
        for workload, _ in plan.tasks():
            if workload not in self._built:
                self._built[workload] = self._compiler.build(workload, self._source, self.numerics)
        built = {workload: self._built[workload] for workload, _ in plan.tasks()}
        if self._limit is not None:
            _limit_weights(plan, built, self._compiler, self._limit)
            self._built |= built
        return built

    def _program(
        self, plan: GraphPlan, built: Mapping[Workload, Chosen], weights: WeightBlock
    ) -> Program:
        shared = {
            position: [
                b.bytes for b in built[step.workload][0].spec.buffers if b.role is Role.SHARED
            ]
            for position, step in enumerate(plan.steps)
            if isinstance(step, KernelStep)
        }
        with timed(self._timings, "memory plan"):
            memory = plan_memory(plan, {p: sizes for p, sizes in shared.items() if sizes})
        kernels: dict[KernelSpec, int] = {}
        calls: list[Instruction] = []
        for position, step in enumerate(plan.steps):
            places = _Places(plan, memory, position, weights)
            match step:
                case KernelStep():
                    spec = built[step.workload][0].spec
                    number = kernels.setdefault(spec, len(kernels))
                    with timed(self._timings, "pack weights"):
                        refs = tuple(places.ref(step, buffer) for buffer in spec.buffers)
                    calls.append(KernelCall(number, refs))
                case NativeStep():
                    refs = places.native_refs(step)
                    calls.append(NativeCall(step.function, step.parameters, refs))
                case ViewStep():
                    pass  # nothing runs
                case _:
                    assert_never(step)
        return Program(
            plan.graph.name,
            tuple(_port(plan, name) for name in plan.graph.inputs),
            tuple(_port(plan, name) for name in plan.graph.outputs),
            tuple(kernels),
            tuple(calls),
            memory.arena_bytes,
            weights.bytes,
        )


Chosen = tuple[BuiltKernel, Schedule, bool]
"""A kernel, its schedule, and whether a source knew it."""


def _limit_weights(
    plan: GraphPlan, built: dict[Workload, Chosen], compiler: _Compiler, limit: int
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
        built[workload] = compiler.build(workload, None, "strict")
    total = _total_weights(built, counts)
    if total > limit:
        raise _over_limit(total, limit)


def _over_limit(total: int, limit: int) -> CompilerError:
    return CompilerError(f"the packed weights take {total} bytes, the limit is {limit}")


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
    ) + sum(
        aligned_bytes(plan.graph.types[value].bytes)
        for native in plan.natives
        for value in native.inputs
        if value in plan.graph.constants
    )


class _Compiler:
    """Compiles workloads; kernels whose code comes out the same are compiled once."""

    def __init__(
        self, target: Target, threads: int, timings: Timings | None, *, any_rows: bool
    ) -> None:
        self._any_rows = any_rows
        self._target = target
        self._threads = threads
        self._timings = timings
        self._by_digest: dict[str, BuiltKernel] = {}

    def build(self, workload: Workload, source: ScheduleSource | None, numerics: str) -> Chosen:
        """The kernel of a workload with the best schedule known, or the first default that lowers.

        Raises:
            CompilerError: if it lowers with no schedule, or LLVM refuses the code.
        """
        refused: list[str] = []
        for schedule, known in self._schedules(workload, source, numerics):
            try:
                return self._build(workload, schedule), schedule, known
            except ScheduleError as error:
                refused.append(f"{schedule}: {error}")
        operators = ", ".join(workload.operators)
        raise CompilerError(f"the fused workload of {operators} has no schedule ({refused[-1]})")

    def _schedules(
        self, workload: Workload, source: ScheduleSource | None, numerics: str
    ) -> list[tuple[Schedule, bool]]:
        """What to try, in order, and whether the source knew it."""
        target, threads = self._target, self._threads
        with timed(self._timings, "schedules"):
            best = source.best(workload.key, target.key, threads, numerics) if source else None
            defaults = untuned_schedules(
                workload, target, threads, numerics, any_rows=self._any_rows
            )
            return [*([(best, True)] if best else []), *((default, False) for default in defaults)]

    def _build(self, workload: Workload, schedule: Schedule) -> BuiltKernel:
        lowered = lower_workload(workload, schedule, self._target, self._threads, self._timings)
        built = self._by_digest.get(lowered.digest)
        if built is None:
            built = compile_lowered(lowered, self._target, self._timings)
            self._by_digest[lowered.digest] = built
        # Equal code may serve workloads of other shapes: (1, 64, 3136) is (1, 64, 56, 56).
        return replace(built, spec=lowered.spec, nest=lowered.nest)


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

    def native_refs(self, step: NativeStep) -> tuple[BufferRef, ...]:
        """The inputs, constants as they are, the output, and its count where it has one."""
        refs = [self._constant(v) or self._value(v) for v in step.inputs]
        refs.append(self._value(step.output))
        if native_signature(step.function, step.parameters).counts:
            refs.append(BufferRef(Space.COUNT, self.plan.graph.outputs.index(step.output)))
        return tuple(refs)

    def _constant(self, name: str) -> BufferRef | None:
        """Where a constant of a native function lies; None if the value is none."""
        array = self.plan.graph.constants.get(name)
        if array is None:
            return None
        kind = self.plan.graph.types[name]
        buffer = BufferSpec(
            name, Role.WEIGHT, kind.dtype, kind.shape, str(ROW_MAJOR), (), kind.bytes
        )
        return BufferRef(Space.WEIGHTS, self.weights.add(buffer, array))

    def _value(self, name: str) -> BufferRef:
        root = self.memory.roots[name]
        if root in self.plan.graph.inputs:
            return BufferRef(Space.INPUT, self.plan.graph.inputs.index(root))
        if root in self.plan.graph.outputs:
            return BufferRef(Space.OUTPUT, self.plan.graph.outputs.index(root))
        return BufferRef(Space.ARENA, self.memory.offsets[name])


def _port(plan: GraphPlan, name: str) -> Port:
    kind = plan.graph.types[name]
    return Port(name, kind.dtype, kind.shape, plan.counted(name))
