"""Symbolic memory plans: for dynamic sizes, the order in which buffers are stacked.

An arena of fixed sizes is planned by offsets (`compiler.plan.memory`). Here the same plan is
computed at typical sizes, and only its order is kept: if two buffers are live at the same time, the
lower one stays below the other for all sizes. A buffer starts where the highest of the buffers
below it ends. Buffers that are live at the same time therefore never overlap, whatever the sizes
are, and at typical sizes the arena is as tight as planned.

The body of a loop or branch has no separate arena here: its buffers are stacked where its arena
would be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.compiler.plan.memory import (
    ArenaBuffer,
    MayAlias,
    MemoryPlan,
    SharedBytes,
    collect_buffers,
    place,
)
from tilewright.compiler.plan.plan import GraphPlan, bodies_of
from tilewright.compiler.plan.regions import ALIGNMENT_BYTES
from tilewright.compiler.sizes import at, typical, typical_sizes


@dataclass(frozen=True, slots=True)
class SymbolicBuffer:
    """A span of the arena whose offset depends on dynamic sizes.

    Attributes:
        bytes: its size, a multiple of 64.
        below: numbers of the buffers directly below it. Each of them is less than the buffer's own
            number.
    """

    bytes: int
    below: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SymbolicMemory:
    """The memory of a graph plan's values, for all sizes.

    A step is a kernel or another operation of the plan. A step that is a loop or a branch runs
    graphs, its bodies.

    Attributes:
        buffers: the buffers of the arena, numbered by position. They include those of bodies.
        starts: for each value, the number of its buffer and its byte offset in that buffer.
        roots: for every value, the value whose buffer contains it (itself if it has its own).
        shared: by the position of a step, the numbers of the buffers that are only used while the
            step runs. The memory plans in `bodies` list the buffers of bodies instead.
        bodies: by the position of a step, the memory plans of its bodies. Their buffer numbers are
            positions in the `buffers` of the whole plan.
    """

    buffers: tuple[SymbolicBuffer, ...]
    starts: Mapping[str, tuple[int, int]]
    roots: Mapping[str, str]
    shared: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    bodies: Mapping[int, tuple[SymbolicMemory, ...]] = field(default_factory=dict)

    def at(self, values: Mapping[str, int]) -> MemoryPlan:
        """Return the memory plan at fixed sizes; `values` has the size of each dimension by
        name."""
        offsets: list[int] = []
        ends: list[int] = []
        for buffer in self.buffers:
            offsets.append(max((ends[number] for number in buffer.below), default=0))
            ends.append(offsets[-1] + at(buffer.bytes, values))
        return self.placed(offsets, max(ends, default=0), lambda after: at(after, values))

    def placed(
        self, offsets: Sequence[int], arena: int, number: Callable[[int], int] = lambda size: size
    ) -> MemoryPlan:
        """Return a memory plan with the buffers at the given offsets, in an arena of `arena` bytes.

        A byte offset inside a buffer may depend on dynamic sizes (`compiler.sizes.Size`). `number`
        converts it to the type of `offsets`, for example to a plain integer at fixed sizes. Plans
        of bodies use the offsets of the same arena.
        """
        shared = {
            step: (*((0,) if step in self.bodies else ()), *(offsets[n] for n in numbers))
            for step, numbers in self.shared.items()
        }
        return MemoryPlan(
            arena,
            {v: offsets[buffer] + number(after) for v, (buffer, after) in self.starts.items()},
            self.roots,
            shared,
            {
                step: tuple(body.placed(offsets, 0, number) for body in bodies)
                for step, bodies in self.bodies.items()
            },
        )

    def renumbered(
        self, numbers: Sequence[int], buffers: tuple[SymbolicBuffer, ...] = ()
    ) -> SymbolicMemory:
        """Return the plan with renumbered buffers: buffer i becomes `numbers[i]`.

        `buffers` are the buffers of the result, in the new order. This argument is empty for the
        plan of a body, because the plan that contains the body has all buffers.
        """
        return SymbolicMemory(
            buffers,
            {value: (numbers[n], after) for value, (n, after) in self.starts.items()},
            self.roots,
            {step: tuple(numbers[n] for n in each) for step, each in self.shared.items()},
            {
                step: tuple(body.renumbered(numbers) for body in each)
                for step, each in self.bodies.items()
            },
        )


def plan_symbolic_memory(
    plan: GraphPlan,
    shared_bytes: SharedBytes | None = None,
    may_alias: MayAlias | None = None,
) -> SymbolicMemory:
    """Plan the memory of a graph plan with dynamic sizes: determine in which order buffers are
    stacked.

    The arguments are those of `memory.plan_memory`.

    Raises:
        ValueError: if the plan's views require two offsets for one value.
    """
    bodies = {
        position: tuple(plan_symbolic_memory(body, shared_bytes) for body in bodies_of(step))
        for position, step in enumerate(plan.steps)
        if bodies_of(step)
    }
    arenas = {step: tuple(map(_typical_bytes, each)) for step, each in bodies.items()}
    found = collect_buffers(plan, shared_bytes, may_alias, arenas)
    sizes = [-(-buffer.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for buffer in found.buffers]
    trial = [
        ArenaBuffer(typical(size), buffer.first, buffer.last)
        for size, buffer in zip(sizes, found.buffers, strict=True)
    ]
    place(trial)
    order = sorted(range(len(trial)), key=lambda number: (trial[number].offset, number))
    ranks = {number: rank for rank, number in enumerate(order)}
    stacked: list[SymbolicBuffer] = []
    under: list[set[int]] = []  # for each buffer, all that are below it, directly or indirectly
    for number in order:
        buffer = trial[number]
        beside = [
            rank
            for rank, other in enumerate(order[: len(stacked)])
            if trial[other].first <= buffer.last and trial[other].last >= buffer.first
        ]
        direct = [rank for rank in beside if not any(rank in under[high] for high in beside)]
        stacked.append(SymbolicBuffer(sizes[number], tuple(direct)))
        under.append(set(beside).union(*(under[rank] for rank in direct)))
    held = {ranks[found.temporary[step][0]]: step for step in bodies}
    return _with_bodies(
        SymbolicMemory(
            tuple(stacked),
            {value: (ranks[number], after) for value, (number, after) in found.starts.items()},
            found.roots,
            {
                step: tuple(ranks[n] for n in numbers[1 if step in bodies else 0 :])
                for step, numbers in found.temporary.items()
            },
        ),
        {number: (step, bodies[step]) for number, step in held.items()},
    )


def _with_bodies(
    memory: SymbolicMemory, arenas: Mapping[int, tuple[int, tuple[SymbolicMemory, ...]]]
) -> SymbolicMemory:
    """Replace the arenas of loop and branch bodies in a memory plan by the bodies' own buffers.

    In `memory`, the arena of a step's bodies is a single buffer. `arenas` maps its number to the
    position of the step and the plans of the bodies.
    """
    if not arenas:
        return memory
    buffers: list[SymbolicBuffer] = []
    above: list[tuple[int, ...]] = []  # for each old buffer, the topmost new ones in it
    numbers: list[int] = []
    bodies: dict[int, tuple[SymbolicMemory, ...]] = {}
    for number, buffer in enumerate(memory.buffers):
        below = tuple(dict.fromkeys(top for low in buffer.below for top in above[low]))
        numbers.append(len(buffers))
        if number not in arenas:
            above.append((len(buffers),))
            buffers.append(SymbolicBuffer(buffer.bytes, below))
            continue
        step, each = arenas[number]
        tops: list[int] = []
        moved = []
        for body in each:
            first = len(buffers)
            own = [first + n for n in range(len(body.buffers))]
            covered = {low for inner in body.buffers for low in inner.below}
            tops += [first + n for n in range(len(body.buffers)) if n not in covered]
            for inner in body.buffers:
                inside = tuple(first + low for low in inner.below)
                buffers.append(SymbolicBuffer(inner.bytes, inside or below))
            moved.append(body.renumbered(own))
        bodies[step] = tuple(moved)
        above.append(tuple(tops) or below)
    return replace(memory.renumbered(numbers, tuple(buffers)), bodies=bodies)


def _typical_bytes(memory: SymbolicMemory) -> int:
    sizes = typical_sizes(*(buffer.bytes for buffer in memory.buffers))
    return memory.at(sizes).arena_bytes
