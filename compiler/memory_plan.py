"""Memory planning: every value between kernels at an offset of one arena.

Values that are never alive at the same time share memory; views and in-place results share the
buffer of the value that they come from. Graph inputs and outputs are the caller's buffers, and
constants are the artifact's: neither is in the arena. Buffers are placed largest first, each at
the lowest free offset: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference" (2020), "greedy by size".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compiler import ops
from compiler.loops.layout import strides
from compiler.ops.registry import OpKind
from compiler.plan import GraphPlan, KernelStep, Placement, ViewStep, same_bytes

ALIGNMENT_BYTES = 64

MayAlias = Callable[[int, int], bool]
"""`may_alias(step, input)`: whether the kernel of a step may write its output over that input."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the values of a graph plan live.

    `roots` maps every value to the value whose buffer it is (itself if none); `offsets` holds the
    roots that lie in the arena, in bytes; `shared` the offsets of each step's buffers that live
    only while it runs, in the order given.
    """

    arena_bytes: int
    offsets: Mapping[str, int]
    roots: Mapping[str, str]
    shared: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def offset(self, value: str) -> int | None:
        """Where a value starts in the arena; None for the caller's buffers."""
        return self.offsets.get(self.roots[value])


@dataclass(slots=True)
class _Buffer:
    """A span of memory, from the step that writes it first to the one that reads it last."""

    bytes: int
    first: int
    last: int
    offset: int = 0


def plan_memory(
    plan: GraphPlan,
    shared_bytes: Mapping[int, Sequence[int]] | None = None,
    may_alias: MayAlias | None = None,
) -> MemoryPlan:
    """Assign arena offsets, in multiples of 64 bytes.

    Args:
        shared_bytes: for steps (by position in `plan.steps`), sizes of buffers that their kernels'
            threads share.
        may_alias: which inputs a kernel may overwrite; by default any dense operand of the
            output's shape and type in a workload of elementwise operators.
    """
    allowed = may_alias or (lambda step, operand: is_elementwise(plan, step, operand))
    last_use = _last_uses(plan)
    roots = _roots(plan, last_use, allowed)
    external = {*plan.graph.inputs, *plan.graph.outputs}
    fixed = {roots[value] for value in external if value in roots}
    buffers: dict[str, _Buffer] = {}
    for position, step in enumerate(plan.steps):
        root = roots[step.output]
        end = last_use.get(step.output, position)
        size = value_bytes(plan, step.output)
        if root in fixed:
            continue
        buffer = buffers.setdefault(root, _Buffer(size, position, end))
        buffer.last = max(buffer.last, end)
        buffer.bytes = max(buffer.bytes, size)
    temporary = {
        (position, number): _Buffer(size, position, position)
        for position, sizes in (shared_bytes or {}).items()
        for number, size in enumerate(sizes)
    }
    arena = _place([*buffers.values(), *temporary.values()])
    shared: dict[int, tuple[int, ...]] = {}
    for position, _ in temporary:
        sizes = (shared_bytes or {})[position]
        shared[position] = tuple(temporary[position, n].offset for n in range(len(sizes)))
    offsets = {root: buffer.offset for root, buffer in buffers.items()}
    return MemoryPlan(arena, offsets, roots, shared)


def value_bytes(plan: GraphPlan, value: str) -> int:
    """Size of a value as it lies, halo and block rounding included."""
    type_, place = plan.graph.types[value], plan.placements[value]
    return strides(type_.shape, place.layout, place.halo)[1] * type_.dtype.bytes


def is_elementwise(plan: GraphPlan, position: int, operand: int) -> bool:
    """Whether element i of a step's output needs element i of that operand, and no other.

    Halos are excluded: the zeros around the output are written at another time than its elements.
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
        and same_bytes(result.type.shape, Placement(source.layout), Placement(result.layout))
    )


def _last_uses(plan: GraphPlan) -> dict[str, int]:
    """Value -> the last step that reads it; graph outputs live to the end."""
    last: dict[str, int] = {}
    for position, step in enumerate(plan.steps):
        for value in step.inputs if isinstance(step, KernelStep) else (step.input,):
            last[value] = position
    for value in plan.graph.outputs:
        last[value] = len(plan.steps)
    return last


def _roots(plan: GraphPlan, last_use: Mapping[str, int], allowed: MayAlias) -> dict[str, str]:
    """The value whose buffer each value is."""
    parent: dict[str, str] = {value: value for value in plan.graph.inputs}
    ends: dict[str, int] = dict.fromkeys(plan.graph.inputs, len(plan.steps))
    outputs = set(plan.graph.outputs)
    pinned = _pinned(plan)

    def find(value: str) -> str:
        while parent[value] != value:
            value = parent[value]
        return value

    # A view keeps its root alive, so all views count before any reuse is decided.
    for step in plan.steps:
        parent.setdefault(step.output, step.output)
        if isinstance(step, ViewStep):
            parent[step.output] = find(step.input)
    for value in parent:
        root = find(value)
        ends[root] = max(ends.get(root, -1), last_use.get(value, -1), ends.get(value, -1))
    for position, step in enumerate(plan.steps):
        if isinstance(step, ViewStep):
            continue
        output = step.output
        if output in outputs or find(output) in pinned or find(output) != output:
            continue
        for operand, value in enumerate(step.inputs):
            if value not in parent:
                continue  # a constant
            root = find(value)
            free = ends[root] == position and root not in plan.graph.inputs
            if free and root not in pinned and allowed(position, operand):
                parent[output] = root
                ends[root] = max(ends[output], position)
                break
    return {value: _canonical(find(value), pinned) for value in parent}


def _pinned(plan: GraphPlan) -> dict[str, str]:
    """Root of a chain of views that ends in a graph output -> that output: it is the buffer."""
    sources = {s.output: s.input for s in plan.steps if isinstance(s, ViewStep)}
    pinned: dict[str, str] = {}
    for output in plan.graph.outputs:
        root = output
        while root in sources:
            root = sources[root]
        pinned[root] = output
    return pinned


def _canonical(root: str, pinned: Mapping[str, str]) -> str:
    return pinned.get(root, root)


def _place(buffers: Sequence[_Buffer]) -> int:
    """Give each buffer the lowest offset that is free during its life; returns the arena's size."""
    placed: list[_Buffer] = []
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.bytes, b.first)):
        size = -(-buffer.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        offset = 0
        for other in sorted(placed, key=lambda b: b.offset):
            if other.last < buffer.first or buffer.last < other.first:
                continue
            if other.offset - offset >= size:
                break
            end = other.offset + -(-other.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            offset = max(offset, end)
        buffer.offset = offset
        placed.append(buffer)
        total = max(total, offset + size)
    return total
