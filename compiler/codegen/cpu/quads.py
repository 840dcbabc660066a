"""Four scalars that are loaded at once: each is a lane that an instruction multiplies by.

ldr s0, [a]; fmla v8.4s, v1.4s, v0.s[0]        ldr q0, [a]; fmla v8.4s, v1.4s, v0.s[0]
ldr s0, [a, #4]; fmla v9.4s, v1.4s, v0.s[0] ->              fmla v9.4s, v1.4s, v0.s[1] ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.codegen.cpu.context import RegisterBudget
from compiler.codegen.cpu.points import Points
from compiler.codegen.cpu.resolve import Access
from compiler.codegen.cpu.ssa import Emitter
from compiler.sizes import is_open

QUAD = 4
"""Scalars that are loaded together where one lane of a vector can be a factor."""

SPARE = 1
"""Registers for what LLVM loads ahead of its use: with none, it spills."""


def quads(
    emitter: Emitter, budget: RegisterBudget, access: Access, points: Points
) -> Mapping[int, int]:
    """Offsets of elements of 32 bits that are loaded four at a time -> the first of the four.

    These are elements side by side, all of which the tile reads, on a target whose instructions
    multiply a vector by one lane of another: four scalars take one load instead of four. Where rows
    of a tile lie apart, each has a vector of its own, which waits in a register for the next steps
    of the sum: as many rows get one as there are registers for.
    """
    target, size = emitter.target, access.tensor.dtype.bytes * access.packed
    takes_lanes = target.vector_bits == target.family.lane_factor_bits
    if not takes_lanes or size * 8 * QUAD != target.vector_bits or points.lanes == 1:
        return {}
    if access.is_vector or access.repeated or access.guards or access.indirect_strides:
        return {}
    if access.base is None or any(is_open(stride) for _, stride in access.unrolled):
        return {}
    if is_open(access.constant) or access.is_interleaved or access.present < access.packed:
        return {}
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
    kept = _live_at_once(
        [together[offset] for offset in read if offset in together],
        budget.registers - sums - vectors - SPARE,
    )
    return {offset: first for offset, first in together.items() if first in kept}


def _live_at_once(used: Sequence[int], most: int) -> frozenset[int]:
    """Of values in the order of their uses, those that fit: no more than `most` are between their
    first use and their last one at any time."""
    last = {value: number for number, value in enumerate(used)}
    live: set[int] = set()
    met: set[int] = set()
    kept: set[int] = set()
    for number, value in enumerate(used):
        if value not in met and len(live) < most:
            live.add(value)
            kept.add(value)
        met.add(value)
        if last[value] == number:
            live.discard(value)
    return frozenset(kept)
