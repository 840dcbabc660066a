"""Memory of plans whose sizes are known at run time only: which buffer lies on which others.

An arena of fixed sizes is planned by offsets (`compiler.memory_plan`). Here the same plan is made
at typical sizes, and an order is kept of it: of two buffers that live at one time, the one that
lay lower lies below for all sizes. A buffer starts where the highest of those below it ends. So
buffers never overlap, whatever the sizes are, and the arena is as tight as planned where they are
typical.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.memory_plan import (
    ArenaBuffer,
    MayAlias,
    MemoryPlan,
    SharedBytes,
    collect_buffers,
    place,
)
from compiler.plan import GraphPlan, bodies_of
from compiler.regions import ALIGNMENT_BYTES
from compiler.sizes import OpenSizeError, at, typical


@dataclass(frozen=True, slots=True)
class StackedBuffer:
    """A span of the arena. `bytes` is a multiple of 64; `below` are the numbers of the buffers that
    it lies on, all of them smaller than its own."""

    bytes: int
    below: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StackedMemory:
    """Where the values of a graph plan live, for all sizes.

    `starts` says in which buffer a value lies and how many bytes after its start; `shared` holds,
    for each step, the buffers that live only while it runs. `roots` is as in `MemoryPlan`.
    """

    buffers: tuple[StackedBuffer, ...]
    starts: Mapping[str, tuple[int, int]]
    roots: Mapping[str, str]
    shared: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def at(self, values: Mapping[str, int]) -> MemoryPlan:
        """The arena at these sizes of the dimensions, by name."""
        offsets: list[int] = []
        ends: list[int] = []
        for buffer in self.buffers:
            offsets.append(max((ends[number] for number in buffer.below), default=0))
            ends.append(offsets[-1] + at(buffer.bytes, values))
        return MemoryPlan(
            max(ends, default=0),
            {v: offsets[number] + at(after, values) for v, (number, after) in self.starts.items()},
            self.roots,
            {step: tuple(offsets[n] for n in numbers) for step, numbers in self.shared.items()},
        )


def stack_memory(
    plan: GraphPlan,
    shared_bytes: SharedBytes | None = None,
    may_alias: MayAlias | None = None,
) -> StackedMemory:
    """Put the buffers of a plan in order. The arguments are those of `plan_memory`.

    Raises:
        OpenSizeError: if a step runs bodies, whose arenas are no single size.
        ValueError: if the plan's views contradict each other.
    """
    for step in plan.steps:
        if bodies_of(step):
            raise OpenSizeError(f"'{step.output}': how large the arena of its body is")
    found = collect_buffers(plan, shared_bytes, may_alias)
    sizes = [-(-buffer.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for buffer in found.buffers]
    trial = [
        ArenaBuffer(typical(size), buffer.first, buffer.last)
        for size, buffer in zip(sizes, found.buffers, strict=True)
    ]
    place(trial)
    order = sorted(range(len(trial)), key=lambda number: (trial[number].offset, number))
    ranks = {number: rank for rank, number in enumerate(order)}
    stacked: list[StackedBuffer] = []
    under: list[set[int]] = []  # of each buffer, all that lie below it, however far down
    for number in order:
        buffer = trial[number]
        beside = [
            rank
            for rank, other in enumerate(order[: len(stacked)])
            if trial[other].first <= buffer.last and trial[other].last >= buffer.first
        ]
        direct = [rank for rank in beside if not any(rank in under[high] for high in beside)]
        stacked.append(StackedBuffer(sizes[number], tuple(direct)))
        under.append(set(beside).union(*(under[rank] for rank in direct)))
    return StackedMemory(
        tuple(stacked),
        {value: (ranks[number], after) for value, (number, after) in found.starts.items()},
        found.roots,
        {step: tuple(ranks[n] for n in numbers) for step, numbers in found.temporary.items()},
    )
