"""From a graph plan and schedules to a program: kernels, packed weights, memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

from compiler.build import BuiltKernel, LoweredKernel, compile_lowered, lower_workload
from compiler.errors import CompilerError, InvalidModelError, ScheduleError
from compiler.memory_plan import MemoryPlan, SharedBytes, plan_memory
from compiler.plan import BranchStep, GraphPlan, KernelStep, LoopStep, NativeStep, bodies_of
from compiler.program_emitter import ProgramEmitter, in_graph
from compiler.runtime.kernel import BufferRole, aligned_bytes
from compiler.runtime.packing import Bytes
from compiler.runtime.program import Port, Program, Slot, slot_start
from compiler.runtime.weights import PackedWeights, WeightBlock
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import untuned_schedules
from compiler.sizes import Dimension, OpenSizeError
from compiler.slices import slices_of
from compiler.stacked_memory import stack_memory
from compiler.target import Target
from compiler.timings import Timings, timed
from compiler.workload import Workload

KERNEL_LIMIT = 2048
"""Kernels that differ, in one program. Models have tens; this many of the smallest take 8 s."""


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
    target: Target


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
        CompilerError: if a workload compiles with no schedule, more than `KERNEL_LIMIT` differ, or
            the weights do not fit the limit.
    """
    builder = ProgramBuilder(source, target, threads, numerics, weight_limit_bytes, timings)
    return builder.build(plan)


class ProgramBuilder:
    """Builds programs that share kernels and packed weights: one model at one or several sizes.

    A thread has LLVM compile what is lowered, while the calling one lowers the next workload and
    packs weights. What comes out does not depend on which of them is faster.

    A schedule that the source knows but that no longer fits gives way to the default. If packed
    weights would take more than the limit, those that an algorithm expands most (Winograd,
    Strassen) are stored plainly instead. With `any_rows`, untuned workloads get schedules whose
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
        kernels: KernelCache | None = None,
    ) -> None:
        """`kernels` holds what other builders have compiled or are compiling."""
        self.target = target
        self.threads = threads
        self.numerics = numerics
        self._source = source
        self._compiler = _Compiler(target, threads, timings, kernels, any_rows=any_rows)
        self._limit = weight_limit_bytes
        self._timings = timings
        self._built: dict[Workload, ScheduledKernel] = {}
        self._weights: PackedWeights | None = None

    def variant(self, source: ScheduleSource | None) -> ProgramBuilder:
        """A builder with other schedules; the two share equal kernels and equal packed weights."""
        other = copy(self)
        other._source = source
        other._built = {}
        return other

    def into(self, weights: PackedWeights) -> ProgramBuilder:
        """A builder of the same programs that packs into other weights."""
        other = copy(self)
        other._weights = weights
        return other

    def reserve(self, plans: Sequence[GraphPlan], spare: int = 1) -> None:
        """Compile the kernels of several plans, and have one block that holds all their weights.

        If no block has so much room, a new one is made, `spare` times as large.

        Raises:
            CompilerError: see `build_program`.
        """
        needed = sum(_weight_capacity(plan, self._kernels(plan)) for plan in plans)
        self._have_room(needed, spare)

    def build(self, plan: GraphPlan, spare: int = 1) -> CompiledProgram:
        """The program of a plan. Its weights go into the block of the programs before it.

        If the block is full, a new one is made, `spare` times as large as this plan needs.

        Raises:
            CompilerError: see `build_program`.
        """
        built = self._kernels(plan)
        weights = self._have_room(_weight_capacity(plan, built), spare)
        program = self._program(plan, built, weights)
        if self._limit is not None and weights.bytes > self._limit:
            raise _over_limit(weights.bytes, self._limit)
        return CompiledProgram(
            program,
            weights.built(),
            self._compiler.objects(kernel for kernel, _, _ in built.values()),
            {w.key: schedule for w, (_, schedule, _) in built.items()},
            frozenset(w.key for w, (_, _, known) in built.items() if known),
            self.target,
        )

    def _have_room(self, needed: int, spare: int) -> PackedWeights:
        if self._weights is None or self._weights.room < needed:
            self._weights = WeightBlock(spare * needed)
        return self._weights

    def _kernels(self, plan: GraphPlan) -> dict[Workload, ScheduledKernel]:
        """A kernel for each workload of a plan."""
        workloads = [workload for workload, _ in plan.tasks()]
        if len(workloads) > KERNEL_LIMIT:
            raise InvalidModelError(
                f"model '{plan.graph.name}' is {len(workloads)} kernels that differ, "
                f"at most {KERNEL_LIMIT} are compiled"
            )
        with self._compiler as compiler:
            built: dict[Workload, ScheduledKernel] = {}
            for workload in workloads:
                with _told_by_names(plan, workload):
                    built[workload] = self._built.get(workload) or compiler.lower(
                        workload, self._source, self.numerics
                    )
            if self._limit is not None:
                _limit_weights(plan, built, compiler, self._limit)
        self._built |= built
        return built

    def _program(
        self, plan: GraphPlan, built: Mapping[Workload, ScheduledKernel], weights: PackedWeights
    ) -> Program:
        dimensions = plan.dimensions
        with timed(self._timings, "memory plan"):
            known = {dimension.name: dimension for dimension in dimensions}
            memory, slots = _memory(
                plan, lambda step: _shared_bytes(step, built[step.workload][0], known)
            )
        emitter = ProgramEmitter(
            {w: chosen[0] for w, chosen in built.items()}, weights, self._timings, dimensions
        )
        calls = emitter.whole(plan, memory)
        return Program(
            plan.graph.name,
            tuple(_port(plan, name) for name in plan.graph.inputs),
            tuple(_port(plan, name) for name in plan.graph.outputs),
            tuple(emitter.kernels),
            calls,
            memory.arena_bytes,
            weights.bytes,
            slots,
            slices_of(plan, self.target.core),
        )


@contextmanager
def _told_by_names(plan: GraphPlan, workload: Workload) -> Iterator[None]:
    """An error about a workload's own dimensions (s0) says the names that the graph has for them,
    and which value is computed."""
    try:
        yield
    except CompilerError as error:
        if not workload.dimensions:
            raise
        steps = (step for step, _ in plan.walk() if isinstance(step, KernelStep))
        step = next(step for step in steps if step.workload == workload)
        own = (dimension.name for dimension in workload.dimensions)
        names = dict(zip(own, step.sizes, strict=True))
        text = re.sub(r"\bs\d+\b", lambda found: names.get(found[0], found[0]), str(error))
        kind = OpenSizeError if isinstance(error, OpenSizeError) else CompilerError
        raise kind(f"'{step.output}': {text}") from error


ScheduledKernel = tuple[LoweredKernel, Schedule, bool]
"""A kernel that is compiled, its schedule, and whether a source knew it."""


def _limit_weights(
    plan: GraphPlan, built: dict[Workload, ScheduledKernel], compiler: _Compiler, limit: int
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
        # "strict" leaves out the algorithms that change rounding: they also expand the weights.
        built[workload] = compiler.lower(workload, None, "strict")
    total = _total_weights(built, counts)
    if total > limit:
        raise _over_limit(total, limit)


def _over_limit(total: int, limit: int) -> CompilerError:
    return CompilerError(f"the packed weights take {total} bytes, the limit is {limit}")


def _total_weights(
    built: Mapping[Workload, ScheduledKernel], counts: Mapping[Workload, int]
) -> int:
    return sum(_weight_bytes(chosen) * counts[w] for w, chosen in built.items())


def _weight_bytes(chosen: ScheduledKernel) -> int:
    return sum(b.bytes for b in chosen[0].spec.buffers if b.role is BufferRole.WEIGHT)


def _memory(plan: GraphPlan, shared_bytes: SharedBytes) -> tuple[MemoryPlan, tuple[Slot, ...]]:
    """Where values lie; with open sizes, in slots of the arena."""
    if not plan.dimensions:
        return plan_memory(plan, shared_bytes), ()
    stacked = stack_memory(plan, shared_bytes)
    starts = [slot_start(number) for number in range(len(stacked.buffers))]
    return stacked.placed(starts, 0), tuple(
        Slot(buffer.bytes, buffer.below) for buffer in stacked.buffers
    )


def _shared_bytes(
    step: KernelStep, kernel: LoweredKernel, known: Mapping[str, Dimension]
) -> list[int]:
    shared = [b.bytes for b in kernel.spec.buffers if b.role is BufferRole.SHARED]
    return [in_graph(step, size, known) for size in shared]


def _weight_capacity(plan: GraphPlan, built: Mapping[Workload, ScheduledKernel]) -> int:
    """What the packed weights of a plan take if no two kernels share one."""
    total = 0
    for step in plan.steps:
        match step:
            case KernelStep():
                buffers = built[step.workload][0].spec.buffers
                total += sum(aligned_bytes(b.bytes) for b in buffers if b.role is BufferRole.WEIGHT)
            case NativeStep() | LoopStep() | BranchStep():
                constants = [v for v in step.inputs if v in plan.graph.constants]
                total += sum(aligned_bytes(plan.graph.types[v].bytes) for v in constants)
        total += sum(_weight_capacity(body, built) for body in bodies_of(step))
    return total


class KernelCache:
    """Kernels of one process: no builder compiles what another has compiled. Texts are not kept.

    `compiled` holds futures of compiled code by its digest.
    """

    def __init__(self) -> None:
        self.compiled: dict[str, Future[BuiltKernel]] = {}
        self._lowered: dict[tuple[Workload, Schedule, str, int], LoweredKernel] = {}

    def find(
        self, workload: Workload, schedule: Schedule, target: Target, threads: int
    ) -> LoweredKernel | None:
        """A kernel that is compiled or being compiled."""
        found = self._lowered.get((workload, schedule, target.key, threads))
        return found if found is not None and found.digest in self.compiled else None

    def keep(
        self,
        workload: Workload,
        schedule: Schedule,
        target: Target,
        threads: int,
        kernel: LoweredKernel,
    ) -> LoweredKernel:
        """Keep a kernel. Equal code may serve workloads of other shapes, each with its own
        specification: (1, 64, 3136) is (1, 64, 56, 56)."""
        kept = self._lowered[workload, schedule, target.key, threads] = replace(kernel, text="")
        return kept

    def forget_cancelled(self) -> None:
        """Forget kernels whose compilation was cancelled."""
        for digest in [d for d, code in self.compiled.items() if code.cancelled()]:
            del self.compiled[digest]


class _Compiler:
    """Compiles workloads; kernels whose code comes out the same are compiled once.

    A context: within it kernels are lowered, and a thread compiles them in that order. The thread
    ends when it has compiled them all, which may be after the context; `objects` waits for it. More
    threads would not help: llvmlite lets only one into LLVM. Python's own lock is free meanwhile.
    """

    def __init__(
        self,
        target: Target,
        threads: int,
        timings: Timings | None,
        kernels: KernelCache | None,
        *,
        any_rows: bool,
    ) -> None:
        self._any_rows = any_rows
        self._target = target
        self._threads = threads
        self._timings = timings
        self._pool: ThreadPoolExecutor | None = None
        self._kernels = kernels or KernelCache()

    def __enter__(self) -> _Compiler:
        self._pool = ThreadPoolExecutor(1, "tilewright-llvm")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._pool is not None
        self._pool.shutdown(wait=False, cancel_futures=kind is not None)
        self._pool = None
        if kind is not None:
            self._kernels.forget_cancelled()

    def lower(
        self, workload: Workload, source: ScheduleSource | None, numerics: str
    ) -> ScheduledKernel:
        """The kernel of a workload with the best schedule known, or the first default that lowers.

        Raises:
            CompilerError: if it lowers with no schedule.
        """
        refused: list[str] = []
        for schedule, known in self._schedules(workload, source, numerics):
            try:
                return self._lower(workload, schedule), schedule, known
            except ScheduleError as error:
                refused.append(f"{schedule}: {error}")
        operators = ", ".join(workload.operators)
        raise CompilerError(f"the fused workload of {operators} has no schedule ({refused[-1]})")

    def objects(self, kernels: Iterable[LoweredKernel]) -> tuple[bytes, ...]:
        """The object code of kernels, that of equal ones once.

        Raises:
            CompilerError: if LLVM refuses the code.
        """
        digests = dict.fromkeys(kernel.digest for kernel in kernels)
        with timed(self._timings, "wait for LLVM"):
            return tuple(self._kernels.compiled[digest].result().object for digest in digests)

    def _schedules(
        self, workload: Workload, source: ScheduleSource | None, numerics: str
    ) -> Iterator[tuple[Schedule, bool]]:
        """What to try, in order, and whether the source knew it."""
        target, threads = self._target, self._threads
        with timed(self._timings, "schedules"):
            best = source.best(workload.key, target.key, threads, numerics) if source else None
            if source and best is None and workload.dimensions:
                # what is best at typical sizes has the knobs of the open workload
                best = source.best(workload.typical().key, target.key, threads, numerics)
        if best:
            yield best, True
        defaults = untuned_schedules(workload, target, threads, numerics, any_rows=self._any_rows)
        while True:
            with timed(self._timings, "schedules"):
                default = next(defaults, None)
            if default is None:
                return
            yield default, False

    def _lower(self, workload: Workload, schedule: Schedule) -> LoweredKernel:
        kernels, target, threads = self._kernels, self._target, self._threads
        found = kernels.find(workload, schedule, target, threads)
        if found is not None:
            return found
        lowered = lower_workload(workload, schedule, target, threads, self._timings)
        if lowered.digest not in kernels.compiled:
            assert self._pool is not None
            code = self._pool.submit(compile_lowered, lowered, target, self._timings)
            kernels.compiled[lowered.digest] = code
        return kernels.keep(workload, schedule, target, threads, lowered)


def _port(plan: GraphPlan, name: str) -> Port:
    kind = plan.graph.types[name]
    shape, room = plan.caller_shape(name), None
    if shape != kind.shape:
        axis = next(d for d, extent in enumerate(kind.shape) if extent != shape[d])
        room = axis, kind.shape[axis]
    return Port(name, kind.dtype, shape, plan.counted(name), plan.labels(name), room)
