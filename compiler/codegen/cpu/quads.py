"""Loads of four adjacent scalars as one vector, whose lanes are factors of multiply-adds.

    ldr s0, [a]; fmla v8.4s, v1.4s, v0.s[0]        ldr q0, [a]; fmla v8.4s, v1.4s, v0.s[0]
    ldr s0, [a, #4]; fmla v9.4s, v1.4s, v0.s[0] ->              fmla v9.4s, v1.4s, v0.s[1] ...

Left: each scalar is loaded for its multiply-add. Right: one load serves four of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.compiler.codegen.cpu.context import RegisterBudget
from tilewright.compiler.codegen.cpu.points import Points
from tilewright.compiler.codegen.cpu.resolve import Access
from tilewright.compiler.codegen.cpu.ssa import Emitter
from tilewright.compiler.sizes import is_dynamic

QUAD = 4
"""Number of adjacent 32-bit scalars that are loaded as one vector, if the target can multiply a
vector by one lane of another."""

SPARE = 1
"""Number of vector registers left for loads that LLVM moves ahead of their use. Without them, LLVM
spills."""


PAIR = 2
"""Number of adjacent vectors that one instruction loads if both are used together."""


def quads(
    emitter: Emitter, budget: RegisterBudget, access: Access, points: Points
) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Find scalars that can be loaded four at a time, as one vector.

    A group of four consists of 32-bit elements that are adjacent in memory and all read by the
    tile. A group stays in a register until its last use, so groups are selected only as long as
    registers are left. The target must multiply a vector by one lane of another.

    Returns:
        A map from the byte offset of each scalar to that of the first scalar in its group. A second
            map from the byte offset of a group to that of the next group, for groups that one
            instruction loads in pairs. Both are empty if no group is selected.
    """
    nothing: tuple[Mapping[int, int], Mapping[int, int]] = {}, {}
    target, size = emitter.target, access.tensor.dtype.bytes * access.packed
    takes_lanes = target.vector_bits == target.family.lane_factor_bits
    if not takes_lanes or size * 8 * QUAD != target.vector_bits or points.lanes == 1:
        return nothing
    if access.is_vector or access.repeated or access.guards or access.indirect_strides:
        return nothing
    if access.base is None or any(is_dynamic(stride) for _, stride in access.unrolled):
        return nothing
    if is_dynamic(access.constant) or access.is_interleaved or access.present < access.packed:
        return nothing
    read = [access.offset(point) for point in points]
    together: dict[int, int] = {}
    row: list[int] = []
    for offset in sorted({*read}):
        row = [*row, offset] if row and offset == row[-1] + size else [offset]
        if len(row) == QUAD:
            together |= dict.fromkeys(row, row[0])
            row = []
    sums = max(1, budget.accumulators)
    vectors = sums // len({*read[:sums]})
    used = [together[offset] for offset in read if offset in together]
    spare = budget.registers - sums - vectors - SPARE
    paired = side_by_side(used, size * QUAD)
    whole = {second: first for first, second in paired.items()}
    joined = [whole.get(first, first) for first in used]
    kept, live = _live_at_once(joined, spare // PAIR)
    if paired and kept == {*joined}:
        budget.factors = max(budget.factors, PAIR * live)
        return together, paired
    kept, live = _live_at_once(used, spare)
    budget.factors = max(budget.factors, live)
    return {offset: first for offset, first in together.items() if first in kept}, {}


def pairs(
    emitter: Emitter, budget: RegisterBudget, access: Access, points: Points
) -> Callable[[int], int | None]:
    """Return a function that finds the vector that is loaded together with a given one.

    The function takes and returns byte offsets; it returns None for a vector that is loaded alone.
    It must be called when the loads are emitted, because only then is it known how many registers
    are left.
    """
    paired = vector_pairs(emitter, access, points)
    sums = max(1, budget.accumulators)
    vectors = len({access.offset(point) for point in [*points][:sums]})
    taken = sums + vectors + SPARE

    def beside(offset: int) -> int | None:
        is_room = taken + budget.factors < budget.registers
        return paired.get(offset) if is_room and budget.accumulators else None

    return beside


def vector_pairs(emitter: Emitter, access: Access, points: Points) -> dict[int, int]:
    """Map the byte offset of a vector to that of the next one, for pairs that one instruction
    loads."""
    target = emitter.target
    takes_pairs = target.lane_factors > 1 and access.is_vector and access.contiguous
    known = access.base is not None and not any(is_dynamic(stride) for _, stride in access.unrolled)
    if not (takes_pairs and known) or is_dynamic(access.constant) or points.is_ragged:
        return {}
    if access.repeated or access.guards or access.indirect_strides or access.packed > 1:
        return {}
    if points.lanes != target.lanes(access.tensor.dtype) or is_dynamic(points.lanes_in_use):
        return {}
    size = points.lanes * access.tensor.dtype.bytes
    return side_by_side([access.offset(point) for point in points], size)


def side_by_side(offsets: Sequence[int], size: int) -> dict[int, int]:
    """Pair offsets that differ by `size`; return a map from the smaller to the larger one.

    Each offset belongs to at most one pair.
    """
    found: dict[int, int] = {}
    free = None
    for offset in sorted({*offsets}):
        if free is not None and offset == free + size:
            found[free] = offset
            free = None
        else:
            free = offset
    return found


def _live_at_once(used: Sequence[int], most: int) -> tuple[frozenset[int], int]:
    """Select values so that at most `most` of them are live at any time.

    A value is live from its first to its last use. Return the selected values, and the largest
    number of them that is live at once.

    Args:
        used: the values in the order of their uses; a value occurs once per use.
        most: the limit.
    """
    last = {value: number for number, value in enumerate(used)}
    live: set[int] = set()
    met: set[int] = set()
    kept: set[int] = set()
    held = 0
    for number, value in enumerate(used):
        if value not in met and len(live) < most:
            live.add(value)
            kept.add(value)
            held = max(held, len(live))
        met.add(value)
        if last[value] == number:
            live.discard(value)
    return frozenset(kept), held
