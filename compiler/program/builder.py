"""Building of a program from a graph plan: kernels, packed weights, memory plan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

from tilewright.compiler.errors import CompilerError, InvalidModelError
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.intervals import SizeSplit, leaves
from tilewright.compiler.plan.memory import MemoryPlan, SharedBytes, plan_memory
from tilewright.compiler.plan.plan import (
    BranchStep,
    GraphPlan,
    KernelStep,
    LoopStep,
    NativeStep,
    bodies_of,
)
from tilewright.compiler.plan.symbolic_memory import plan_symbolic_memory
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.emitter import ProgramEmitter, shared_bytes
from tilewright.compiler.program.kernels import (
    KernelCache,
    KernelCompiler,
    KernelTree,
    ScheduleSource,
    weights_of,
)
from tilewright.compiler.program.random_integers import random_integer_range
from tilewright.compiler.program.slices import slices_of
from tilewright.compiler.runtime.kernel import aligned_bytes
from tilewright.compiler.runtime.packing import Bytes
from tilewright.compiler.runtime.program import Port, Program, Slot, slot_start
from tilewright.compiler.runtime.weights import PackedWeights, WeightBlock
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings, timed

KERNEL_LIMIT = 2048
"""Maximum number of distinct kernels of one program. Models have tens. This number of the smallest
kernels takes 8 s to compile."""


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program with its object code and packed weights, ready to be loaded or saved.

    Attributes:
        program: the instructions, and the memory that they need.
        weights: the packed weights.
        objects: the object files of the kernels; kernels with equal code share one.
        schedules: the schedule of each compiled workload, by workload key.
        tuned: the keys of the workloads whose schedule is tuned, not a default.
        target: the target of the object files.
        described: by workload key, the name of the kernel in the program and the workload's
            operators.
    """

    program: Program
    weights: Bytes
    objects: tuple[bytes, ...]
    schedules: Mapping[str, Schedule]
    tuned: frozenset[str]
    target: Target
    described: Mapping[str, tuple[str, tuple[str, ...]]]


def build_program(
    plan: GraphPlan,
    source: ScheduleSource | None,
    mode: Mode,
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
) -> CompiledProgram:
    """Compile every workload of a plan, pack its weights and plan its memory.

    `ProgramBuilder` describes the arguments.

    Raises:
        CompilerError: if no schedule of a workload compiles, the plan has more than `KERNEL_LIMIT`
            distinct kernels, or the packed weights exceed `weight_limit_bytes`.
    """
    return ProgramBuilder(source, mode, weight_limit_bytes, timings).build(plan)


class ProgramBuilder:
    """Builds programs of one model, for one or more sizes, that share kernels and packed weights.

    A thread compiles lowered kernels with LLVM, while the calling thread lowers the next workload
    and packs weights. The result does not depend on the threads' relative speed.

    Args:
        source: the source of tuned schedules. If it is None, has no schedule for a workload, or its
            schedule does not fit, a default schedule is used.
        mode: target, threads and numerics of the code.
        weight_limit_bytes: maximum size of the packed weights; None for no limit. To stay below it,
            the builder replaces algorithms that enlarge their weights (Winograd, Strassen),
            starting with the largest weights.
        timings: adds up the time of each compilation stage.
        any_rows: whether untuned workloads get schedules whose code and packed weights also serve
            other numbers of rows.
        kernels: a cache of kernels that other builders have compiled or are compiling.
    """

    def __init__(
        self,
        source: ScheduleSource | None,
        mode: Mode,
        weight_limit_bytes: int | None = None,
        timings: Timings | None = None,
        *,
        any_rows: bool = False,
        kernels: KernelCache | None = None,
    ) -> None:
        """Create a builder; the class describes the arguments."""
        self.mode = mode
        self._source = source
        self._compiler = KernelCompiler(mode, timings, kernels, any_rows=any_rows)
        self._limit = weight_limit_bytes
        self._timings = timings
        self._built: dict[Workload, KernelTree] = {}
        self._weights: PackedWeights | None = None

    def variant(self, source: ScheduleSource | None) -> ProgramBuilder:
        """Return a builder with another source of schedules.

        Both builders share equal kernels and equal packed weights.
        """
        other = copy(self)
        other._source = source
        other._built = {}
        return other

    def into(self, weights: PackedWeights) -> ProgramBuilder:
        """Return a copy of the builder that adds its packed weights to `weights`."""
        other = copy(self)
        other._weights = weights
        return other

    def reserve(self, plans: Sequence[GraphPlan], spare: int = 1) -> None:
        """Compile the kernels of several plans, and reserve memory for all their packed weights.

        If the builder's block of weights has too little free memory, a new block is allocated. It
        is `spare` times as large as the plans need.

        Raises:
            CompilerError: if no schedule of a workload compiles, a plan has more than
                `KERNEL_LIMIT` distinct kernels, or the packed weights exceed the limit.
        """
        needed = sum(_weight_capacity(plan, self.kernels(plan)) for plan in plans)
        self._have_room(needed, spare)

    def build(self, plan: GraphPlan, spare: int = 1) -> CompiledProgram:
        """Compile a plan to a program; its weights join those of earlier programs in one block.

        If the block has too little free memory, a new block is allocated. It is `spare` times as
        large as this plan needs.

        Raises:
            CompilerError: if no schedule of a workload compiles, the plan has more than
                `KERNEL_LIMIT` distinct kernels, or the packed weights exceed the limit.
        """
        built = self.kernels(plan)
        weights = self._have_room(_weight_capacity(plan, built), spare)
        program = self._program(plan, built, weights)
        if self._limit is not None and weights.bytes > self._limit:
            raise _over_limit(weights.bytes, self._limit)
        kernels = [kernel for tree in built.values() for kernel in leaves(tree)]
        return CompiledProgram(
            program,
            weights.built(),
            self._compiler.objects(kernel.lowered for kernel in kernels),
            {key: kernel.schedule for kernel in kernels for key in kernel.keys},
            frozenset(key for kernel in kernels if kernel.known for key in kernel.keys),
            self.mode.target,
            {
                key: (kernel.lowered.spec.name, kernel.lowered.operators)
                for kernel in kernels
                for key in kernel.keys
            },
        )

    def _have_room(self, needed: int, spare: int) -> PackedWeights:
        if self._weights is None or self._weights.room < needed:
            self._weights = WeightBlock(spare * needed)
        return self._weights

    def kernels(self, plan: GraphPlan) -> dict[Workload, KernelTree]:
        """Lower the workloads of a plan, and start to compile their kernels in a thread.

        The result has, for each workload, one kernel or a decision tree that selects a kernel by
        the sizes.

        Raises:
            CompilerError: if no schedule of a workload compiles, the plan has more than
                `KERNEL_LIMIT` distinct kernels, or the packed weights exceed the limit.
        """
        workloads = list(dict.fromkeys(step.workload for step in plan.kernels))
        if len(workloads) > KERNEL_LIMIT:
            raise InvalidModelError(
                f"model '{plan.graph.name}' has {len(workloads)} kernels that differ, "
                f"the limit is {KERNEL_LIMIT}"
            )
        with self._compiler as compiler:
            built: dict[Workload, KernelTree] = {}
            for workload in workloads:
                with _errors_with_names(plan, workload):
                    built[workload] = self._built.get(workload) or compiler.lower(
                        workload, self._source
                    )
            if self._limit is not None:
                _limit_weights(plan, built, compiler, self._limit)
        self._built |= built
        return built

    def _program(
        self, plan: GraphPlan, built: Mapping[Workload, KernelTree], weights: PackedWeights
    ) -> Program:
        dimensions = plan.dimensions
        with timed(self._timings, "memory plan"):
            known = {dimension.name: dimension for dimension in dimensions}
            memory, slots = _memory(
                plan, lambda step: shared_bytes(step, built[step.workload], known)
            )
        emitter = ProgramEmitter(built, weights, self._timings, dimensions)
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
            slices_of(plan, self.mode.target.core),
        )


@contextmanager
def _errors_with_names(plan: GraphPlan, workload: Workload) -> Iterator[None]:
    """Context manager that rewrites a `CompilerError` of a workload with the graph's names.

    The message then starts with the name of the value that the workload computes. Names of the
    workload's dimensions, such as s0, are replaced by their names in the graph.
    """
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
        raise CompilerError(f"'{step.output}': {text}") from error


def _limit_weights(
    plan: GraphPlan,
    built: dict[Workload, KernelTree],
    compiler: KernelCompiler,
    limit: int,
) -> None:
    """Replace kernels until the packed weights of a plan take at most `limit` bytes.

    First, workloads with several kernels, each with its own packed weights, get one kernel for all
    sizes. Then algorithms that enlarge their weights are replaced step by step, for example two
    levels of Strassen by one. Each time, the workload with the largest weights is replaced.

    Raises:
        CompilerError: if the weights still exceed the limit.
    """
    counts = Counter(step.workload for step in plan.kernels)

    def large_first(workloads: Iterable[Workload]) -> list[Workload]:
        return sorted(workloads, key=lambda w: -_weight_bytes(built[w]) * counts[w])

    def total() -> int:
        return sum(_weight_bytes(tree) * counts[w] for w, tree in built.items())

    several = [w for w, tree in built.items() if isinstance(tree, SizeSplit) and weights_of(tree)]
    for workload in large_first(several):
        if total() <= limit:
            return
        built[workload] = compiler.lower(workload, None, cut=False)
    expanded = [w for w, tree in built.items() if _is_expanded(tree)]
    while expanded and total() > limit:
        workload, *_ = large_first(expanded)
        before = _weight_bytes(built[workload])
        built[workload] = compiler.simpler(workload, before)
        if not _is_expanded(built[workload]) or _weight_bytes(built[workload]) >= before:
            expanded.remove(workload)
    if total() > limit:
        raise _over_limit(total(), limit)


def _over_limit(total: int, limit: int) -> CompilerError:
    return CompilerError(f"the packed weights take {total} bytes, the limit is {limit}")


def _is_expanded(tree: KernelTree) -> bool:
    """Whether an algorithm such as Winograd or Strassen transforms and enlarges the weights."""
    return any(buffer.einsum for buffer in weights_of(tree))


def _weight_bytes(tree: KernelTree) -> int:
    return sum(buffer.bytes for buffer in weights_of(tree))


def _memory(plan: GraphPlan, shared_bytes: SharedBytes) -> tuple[MemoryPlan, tuple[Slot, ...]]:
    """Plan the memory of a program; return the plan and, for dynamic sizes, the slots of its arena.

    A slot is a block of the arena whose offset is computed at run time. With slots, the offsets in
    the plan are formulas over the starts of slots. A plan of fixed sizes has integer offsets and no
    slots.

    `shared_bytes` returns the sizes of the buffers that all threads of a step's kernel share.
    """
    if not plan.dimensions:
        return plan_memory(plan, shared_bytes), ()
    stacked = plan_symbolic_memory(plan, shared_bytes)
    starts = [slot_start(number) for number in range(len(stacked.buffers))]
    return stacked.placed(starts, 0), tuple(
        Slot(buffer.bytes, buffer.below) for buffer in stacked.buffers
    )


def _weight_capacity(plan: GraphPlan, built: Mapping[Workload, KernelTree]) -> int:
    """Return the maximum size of a plan's packed weights in bytes, if no two steps share any."""
    total = 0
    for step in plan.steps:
        match step:
            case KernelStep():
                total += sum(aligned_bytes(b.bytes) for b in weights_of(built[step.workload]))
            case NativeStep() | LoopStep() | BranchStep():
                constants = [v for v in step.inputs if v in plan.graph.constants]
                total += sum(aligned_bytes(plan.graph.types[v].bytes) for v in constants)
        total += sum(_weight_capacity(body, built) for body in bodies_of(step))
    return total


def _port(plan: GraphPlan, name: str) -> Port:
    kind = plan.graph.types[name]
    shape, room = plan.caller_shape(name), None
    if shape != kind.shape:
        axis = next(d for d, extent in enumerate(kind.shape) if extent != shape[d])
        room = axis, kind.shape[axis]
    return Port(
        name,
        kind.dtype,
        shape,
        plan.counted(name),
        plan.labels(name),
        room,
        plan.part_of(name),
        random_integer_range(plan.graph, name) if name in plan.graph.inputs else None,
    )
