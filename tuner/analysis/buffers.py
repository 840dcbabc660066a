"""Accesses of a statement to each tensor in memory: bytes, cache lines, strides and reuse.

The kinds of reuse follow Ansor (Zheng et al. 2020). LOOP reuse: the statement is in a loop on whose
axis the address does not depend, so each iteration accesses the same elements. SERIAL reuse: there
is no such loop, but an earlier statement may have brought the elements into a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tilewright.compiler.memo import memo
from tilewright.tuner.analysis.compute_costs import ComputeCosts, PlacedCompute, Use


class Reuse(StrEnum):
    """How the elements of a tensor are reused: not at all, by a loop, or after an earlier
    statement.
    """

    NONE = "none"
    LOOP = "loop"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True)
class BufferUse:
    """The accesses of one statement to one tensor, and how it reuses the elements.

    Attributes:
        name: the name of the tensor.
        bytes: bytes moved between registers and memory, repeated accesses included.
        unique_bytes: bytes of the distinct elements accessed.
        unique_lines: number of cache lines that contain these elements.
        reuse: LOOP if a loop around the statement accesses the same elements in each iteration;
            SERIAL if only an earlier statement accesses the tensor; otherwise NONE.
        distance_iterations: executions of the register tile between two accesses to one element.
        distance_bytes: bytes of all tensors touched between the two accesses.
        reuse_count: number of accesses to each element.
        lane_step: distance in bytes between neighbouring vector lanes (0: broadcast), in the access
            that is executed most often.
    """

    name: str
    bytes: float
    unique_bytes: float
    unique_lines: float
    reuse: Reuse
    distance_iterations: float
    distance_bytes: float
    reuse_count: float
    lane_step: int
    element_bytes: int
    is_read: bool
    is_written: bool


@memo(2048)
def uses_in_loops(statement: ComputeCosts, most: int) -> tuple[BufferUse, ...]:
    """Describe how a statement uses its tensors, in decreasing order of traffic.

    Only the first `most` tensors are described. Only reuse in the statement's own loops is found;
    `after_others` adds reuse of data from earlier statements.
    """
    tensors: dict[str, list[Use]] = {}
    for use in statement.uses:
        tensors.setdefault(use.access.form.tensor.name, []).append(use)
    traffic = {name: sum(_moved(statement, u) for u in uses) for name, uses in tensors.items()}
    largest = sorted(traffic, key=lambda name: -traffic[name])[:most]
    return tuple(_describe(statement, name, tensors[name], traffic[name]) for name in largest)


def after_others(use: BufferUse, found: Sequence[PlacedCompute], number: int) -> BufferUse:
    """Return `use` with SERIAL reuse if an earlier statement accesses the same tensor.

    Otherwise, or if `use` already has LOOP reuse, return `use` unchanged. `found` are the
    statements of the nest in program order, and `number` is the position of the statement to which
    `use` belongs.
    """
    earlier = _earlier(found, number, use.name) if use.reuse is Reuse.NONE else None
    if earlier is None:
        return use
    iterations, distance = _between(found, earlier, number)
    return replace(
        use,
        reuse=Reuse.SERIAL,
        distance_iterations=iterations,
        distance_bytes=distance,
        reuse_count=1.0,
    )


def _moved(statement: ComputeCosts, use: Use) -> float:
    lanes = statement.lanes if use.lane_step else 1
    return use.executions * lanes * use.access.element_bytes


def _describe(statement: ComputeCosts, name: str, uses: Sequence[Use], moved: float) -> BufferUse:
    whole = statement.loop_counts.whole
    first, *others = dict.fromkeys(use.access.form for use in uses)
    widest = max((first, *others), key=lambda form: form.touched(whole)) if others else first
    busiest = max(uses, key=lambda use: use.executions)
    axes = frozenset().union(*[use.access.axes for use in uses])
    reuse, iterations, distance, count = Reuse.NONE, 0.0, 0.0, 0.0
    inside = 1.0
    for place, loop in enumerate(statement.around):
        if loop.trips > 1 and loop.axes.isdisjoint(axes):
            reuse, count = Reuse.LOOP, float(loop.trips)
            iterations, distance = inside, statement.footprints[place]
            break
        inside *= loop.trips
    return BufferUse(
        name,
        moved,
        widest.touched(whole),
        widest.lines(whole),
        reuse,
        iterations,
        distance,
        count,
        busiest.lane_step,
        busiest.access.element_bytes,
        any(not use.is_store for use in uses),
        any(use.is_store for use in uses),
    )


def _earlier(found: Sequence[PlacedCompute], number: int, name: str) -> int | None:
    """Return the position of the last statement before `number` that accesses the tensor `name`.

    Return None if no earlier statement accesses it. `found` are the statements of the nest in
    program order.
    """
    for place in range(number - 1, -1, -1):
        if any(forms[0].tensor.name == name for forms in found[place].statement.tensors):
            return place
    return None


def _between(found: Sequence[PlacedCompute], first: int, last: int) -> tuple[float, float]:
    """Return the reuse distance from statement `first` to statement `last` of a nest.

    It consists of two sums over both statements and all statements between them: the executions of
    their register tiles, and the bytes that they touch. Both are for one iteration of the loops
    that enclose both statements.
    """
    shared = 0
    for ours, theirs in zip(found[first].path, found[last].path, strict=False):
        if ours != theirs:
            break
        shared += 1
    executions = touched = 0.0
    for each in found[first : last + 1]:
        statement = each.statement
        place = max(0, len(statement.around) - shared)
        executed = 1.0
        for loop in statement.around[:place]:
            executed *= loop.trips
        executions += executed
        touched += statement.footprints[place]
    return executions, touched
