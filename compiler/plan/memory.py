"""Memory planning: an arena offset for every value between kernels.

Values that are never live at the same time share memory. Views and in-place results share the
region of their source values (`compiler.plan.regions`), and a region is one buffer. Graph inputs
and outputs are the caller's buffers, and constants belong to the artifact: neither is in the arena.
Buffers are placed largest first, each at the lowest free offset: Pisarchyk and Lee, "Efficient
Memory Management for Deep Neural Net Inference" (2020), "greedy by size".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan.placement import Placement, same_storage
from tilewright.compiler.plan.plan import (
    BranchStep,
    GraphPlan,
    KernelStep,
    LoopStep,
    NativeStep,
    Step,
    ViewStep,
    bodies_of,
)
from tilewright.compiler.plan.regions import ALIGNMENT_BYTES, Region, Regions
from tilewright.compiler.plan.workload import stored_bytes
from tilewright.compiler.runtime.native_functions import native_signature

MayAlias = Callable[[int, int], bool]
"""`may_alias(step, input)` returns whether a step may write its output to the memory of one of its
inputs."""

SharedBytes = Callable[[KernelStep], Sequence[int]]
"""Returns the sizes in bytes of the buffers that all threads of a step's kernel share."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of the values of a graph plan.

    Attributes:
        arena_bytes: size of the arena.
        offsets: the start of each value in the arena, in bytes.
        roots: for every value, the value whose buffer contains it (itself if it has its own).
        shared: by the position of a step, the offsets of the buffers that are only used while it
            runs. For a kernel, these are the buffers that its threads share. For a branch, it is
            the arena of the body that runs. For a loop, these are the arena of its body and the
            body's outputs, which are copied to the states of the next iteration.
        bodies: by the position of a step, the memory plans of the bodies that it runs. Offsets in
            such a plan count from the start of the body's own arena, which `shared` places in this
            arena.
    """

    arena_bytes: int
    offsets: Mapping[str, int]
    roots: Mapping[str, str]
    shared: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    bodies: Mapping[int, tuple[MemoryPlan, ...]] = field(default_factory=dict)

    def offset(self, value: str) -> int | None:
        """Return the byte offset of a value in the arena; None for a graph input, output or
        constant.
        """
        return self.offsets.get(value)


@dataclass(slots=True)
class ArenaBuffer:
    """A span of the arena that is live from step `first`, which writes it, to step `last`."""

    bytes: int
    first: int
    last: int
    offset: int = 0


def plan_memory(
    plan: GraphPlan,
    shared_bytes: SharedBytes | None = None,
    may_alias: MayAlias | None = None,
) -> MemoryPlan:
    """Assign arena offsets to the values of a plan, in multiples of 64 bytes.

    Args:
        plan: a graph plan of fixed sizes.
        shared_bytes: returns the sizes of the buffers that the threads of a step's kernel share, in
            addition to operands and results; by default none.
        may_alias: returns whether a step may overwrite an input; by default `may_overwrite`. Plans
            of bodies always use the default.

    Raises:
        ValueError: if the plan's views require two offsets for one value.
    """
    bodies = {
        position: tuple(plan_memory(body, shared_bytes) for body in bodies_of(step))
        for position, step in enumerate(plan.steps)
        if bodies_of(step)
    }
    arenas = {step: tuple(body.arena_bytes for body in each) for step, each in bodies.items()}
    found = collect_buffers(plan, shared_bytes, may_alias, arenas)
    buffers = found.buffers
    arena = place(buffers)
    offsets = {value: buffers[n].offset + after for value, (n, after) in found.starts.items()}
    shared = {p: tuple(buffers[n].offset for n in each) for p, each in found.temporary.items()}
    return MemoryPlan(arena, offsets, found.roots, shared, bodies)


@dataclass(slots=True)
class ArenaBuffers:
    """The buffers of a plan that are in the arena.

    Attributes:
        buffers: the buffers, numbered by position.
        starts: for each value, the number of its buffer and its byte offset in that buffer.
        roots: for every value, the value whose buffer contains it (itself if it has its own).
        temporary: by the position of a step, the numbers of the buffers that are only used while it
            runs, in the order of `MemoryPlan.shared`.
    """

    buffers: list[ArenaBuffer]
    starts: dict[str, tuple[int, int]]
    roots: dict[str, str]
    temporary: dict[int, list[int]]


def collect_buffers(
    plan: GraphPlan,
    shared_bytes: SharedBytes | None,
    may_alias: MayAlias | None,
    arenas: Mapping[int, Sequence[int]] | None = None,
) -> ArenaBuffers:
    """Collect the buffers of a plan with their live ranges, but without offsets.

    The arguments are those of `plan_memory`; `arenas` has, by the position of a step, the arena
    sizes of the bodies that it runs.

    Raises:
        ValueError: if the plan's views require two offsets for one value.
    """
    allowed = may_alias or (lambda step, operand: may_overwrite(plan, step, operand))
    regions = _regions(plan)
    external = _external(plan, regions)
    _reuse_operands(plan, regions, external, allowed)
    numbers: dict[Region, int] = {}
    buffers: list[ArenaBuffer] = []
    last = _last_uses(plan)
    for position, step in enumerate(plan.steps):
        region = regions.of(step.output)
        if region in external:
            continue
        end = max(position, last.get(step.output, position))
        if region not in numbers:
            numbers[region] = len(buffers)
            buffers.append(ArenaBuffer(region.bytes, position, end))
        buffer = buffers[numbers[region]]
        buffer.last = max(buffer.last, end)
    temporary: dict[int, list[int]] = {}
    for position, step in enumerate(plan.steps):
        for size in _temporary(step, (arenas or {}).get(position, ()), shared_bytes):
            temporary.setdefault(position, []).append(len(buffers))
            buffers.append(ArenaBuffer(size, position, position))
    names = dict(external)
    starts: dict[str, tuple[int, int]] = {}
    roots: dict[str, str] = {}
    for value in (*plan.graph.inputs, *(step.output for step in plan.steps)):
        region = regions.of(value)
        roots[value] = names.setdefault(region, value)
        if region in numbers:
            starts[value] = numbers[region], regions.start(value)
    return ArenaBuffers(buffers, starts, roots, temporary)


def _temporary(
    step: Step, arenas: Sequence[int], shared_bytes: SharedBytes | None
) -> Sequence[int]:
    """Return the sizes, in bytes, of the buffers that are only used while a step runs.

    Their order is that of `MemoryPlan.shared`. `arenas` has the arena size of each of the step's
    bodies.
    """
    match step:
        case KernelStep():
            return shared_bytes(step) if shared_bytes is not None else ()
        case LoopStep(body):
            graph = body.graph
            return [*arenas, *(graph.types[value].bytes for value in graph.outputs)]
        case BranchStep():
            return [max(arenas)]
        case _:
            return ()


def value_bytes(plan: GraphPlan, value: str) -> int:
    """Return the size of a value as stored, in bytes, including its halo and padding to whole
    blocks.
    """
    place = plan.placements[value]
    return stored_bytes(plan.graph.types[value], place.layout, place.halo)


def may_overwrite(plan: GraphPlan, position: int, operand: int) -> bool:
    """Whether the step at `position` may write its output over one of its operands.

    This holds for a native function that changes the operand in place. It also holds for a kernel
    of elementwise operators if the operand and the output are stored alike (`is_elementwise`).
    """
    step = plan.steps[position]
    if isinstance(step, NativeStep):
        return native_signature(step.function, step.parameters).over == operand
    return is_elementwise(plan, position, operand)


def is_elementwise(plan: GraphPlan, position: int, operand: int) -> bool:
    """Whether element i of the output of the step at `position` needs only element i of an operand.

    The result is False if either value has a halo, because the zeros around an output are written
    at another time than its elements.
    """
    step = plan.steps[position]
    if not isinstance(step, KernelStep):
        return False
    nodes = step.workload.graph.nodes
    if any(ops.get(node.op).kind is not OpKind.ELEMENTWISE for node in nodes):
        return False
    source, result = step.workload.inputs[operand], step.workload.output
    return (
        source.type == result.type
        and not result.halo
        and not source.halo
        and not source.constant
        and same_storage(result.type.shape, Placement(source.layout), Placement(result.layout))
    )


def _last_uses(plan: GraphPlan) -> dict[str, int]:
    """Map each value to the last step that reads it; graph inputs and outputs live to the end."""
    last: dict[str, int] = {}
    for position, step in enumerate(plan.steps):
        for value in step.inputs:
            last[value] = position
    for value in (*plan.graph.inputs, *plan.graph.outputs):
        last[value] = len(plan.steps)
    return last


def _regions(plan: GraphPlan) -> Regions:
    """Return the regions of a plan's values.

    A region is a set of values that share memory: a value and all its views.
    """
    regions = Regions()
    for value in plan.graph.inputs:
        regions.add(value, value_bytes(plan, value), written=False)
    for step in plan.steps:  # the writers were determined together with the views
        regions.add(step.output, value_bytes(plan, step.output), written=False)
        if isinstance(step, ViewStep):
            for value, offset in zip(step.inputs, step.offsets, strict=True):
                regions.join(step.output, value, offset)
    return regions


def _external(plan: GraphPlan, regions: Regions) -> dict[Region, str]:
    """Return the regions in the caller's buffers, each with the name of its input or output.

    A region is a set of values that share memory.
    """
    found: dict[Region, str] = {}
    for value in (*plan.graph.inputs, *plan.graph.outputs):
        if value not in regions:
            continue  # an output without elements, which no step computes
        region = regions.of(value)
        if region in found or region.bytes != value_bytes(plan, value):
            raise ValueError(f"'{value}' is not a buffer of its own: it shares one with others")
        found[region] = value
    return found


def _reuse_operands(
    plan: GraphPlan, regions: Regions, external: Mapping[Region, str], allowed: MayAlias
) -> None:
    """Let each step write its output over an operand that no later step reads.

    The region (set of values that share memory) of the output is joined with that of the operand.
    `allowed` decides which operands a step may overwrite. Regions in `external` are buffers of the
    caller, and are never overwritten.
    """
    last = _last_uses(plan)
    ends: dict[Region, int] = {}
    for value in (*plan.graph.inputs, *(step.output for step in plan.steps)):
        region = regions.of(value)
        ends[region] = max(ends.get(region, -1), last.get(value, -1))
    for position, step in enumerate(plan.steps):
        target = regions.of(step.output)
        if isinstance(step, ViewStep) or target in external or len(target.members) > 1:
            continue
        for operand, value in enumerate(step.inputs):
            if value not in regions:
                continue  # a constant
            region = regions.of(value)
            dies = ends[region] == position and region not in external
            alone = sum(v in regions and regions.of(v) is region for v in step.inputs) == 1
            if dies and alone and allowed(position, operand):
                end = max(ends[target], position)
                regions.join(value, step.output, 0)
                ends[regions.of(value)] = end
                break


def place(buffers: Sequence[ArenaBuffer]) -> int:
    """Place buffers in an arena, and return the size of the arena in bytes.

    The attribute `offset` of each buffer is set to the lowest offset at which the arena is free as
    long as the buffer is live.
    """
    # The placed buffers, in the order of their offsets: first step, last step, offset, end.
    placed = np.zeros((4, len(buffers)), np.int64)
    total = 0
    order = sorted(buffers, key=lambda b: (-b.bytes, b.first))
    for count, buffer in enumerate(order):
        first, last, offsets, ends = placed[:, :count]
        size = -(-buffer.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        alive = (first <= buffer.last) & (last >= buffer.first)
        below = np.maximum.accumulate(np.append(0, ends[alive]))
        gaps = np.flatnonzero(offsets[alive] - below[:-1] >= size)
        offset = int(below[gaps[0]] if gaps.size else below[-1])
        buffer.offset = offset
        at = int(np.searchsorted(offsets, offset, side="right"))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        placed[:, at] = buffer.first, buffer.last, offset, offset + size
        total = max(total, offset + size)
    return total
