"""A model of one CPU core for time estimates: registers, instruction throughput and caches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.compiler.memo import memo
from tilewright.compiler.targets.families import CoreModel, TileRegisters

if TYPE_CHECKING:
    from tilewright.tuner.analysis.features import TargetFacts

CYCLES_PER_SECOND = 3.5e9
"""Assumed clock rate in cycles per second. It need not be exact, because only ratios of estimates
are used."""


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """A cache: its size in bytes, and the bandwidth in bytes per cycle of the level behind it."""

    bytes: int
    bytes_per_cycle_behind: float


@dataclass(frozen=True, slots=True)
class Machine:
    """A model of one CPU core that runs vector code of one vector width.

    Attributes:
        registers: number of vector registers.
        operations: throughput of fused multiply-adds, in vectors per cycle.
        loads: throughput of loads, in vectors per cycle.
        stores: throughput of stores, in vectors per cycle.
        in_flight: number of reduction operations that the reorder buffer holds at once, if they
            occupy half of the buffer.
        page_rows: number of cache lines that the first-level cache can hold at once if their
            addresses are multiples of a page apart, so that they compete for the same sets.
        caches: the caches, from the first level to the third.
        core: the properties that do not depend on the vector width.
        tiles: the AMX tile registers; None if the core has none.
    """

    registers: int
    operations: float
    loads: float
    stores: float
    in_flight: float
    page_rows: int
    caches: tuple[CacheLevel, ...]
    core: CoreModel
    tiles: TileRegisters | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.registers, self.core, self.caches)))

    def __hash__(self) -> int:
        return self._hash


_OURS = (1.0, 1.0, 0.5)
"""Fraction of each cache level that is available to one core. Cores share the third level."""

PAGE_BYTES = 4096
"""Size of a memory page in bytes. Rows whose addresses differ by a multiple of it share the same
sets of an L1 cache (`ComputeCosts.aliased_rows`)."""

_LOOKED_AHEAD = 0.5
"""Fraction of the reorder buffer that holds operations of a sum. Addresses, loops, and operations
that wait to retire take the rest."""


@memo(64)
def describe(facts: TargetFacts) -> Machine:
    """Build the model of a core from the properties of a target and a device.

    If the device's caches are unknown, typical sizes for this type of core are used. A cache level
    that the device lacks gets the size of the level before it.
    """
    core = facts.core
    sizes, ways = core.cache_bytes, core.level1_ways
    if facts.cache_bytes[0]:
        first, second, third = facts.cache_bytes
        second = second or first
        sizes = first, second, third or second
        ways = facts.level1_ways or ways
    return Machine(
        registers=facts.vector_registers,
        operations=_rate(core.fma_units, core.fma_bits, facts.vector_bits),
        loads=_rate(core.load_units, core.load_bits, facts.vector_bits),
        stores=_rate(core.store_units, core.store_bits, facts.vector_bits),
        in_flight=_LOOKED_AHEAD * core.reorder_buffer,
        page_rows=ways * max(1, sizes[0] // ways // PAGE_BYTES),
        caches=tuple(
            CacheLevel(int(size * share), behind)
            for size, behind, share in zip(sizes, core.bytes_per_cycle, _OURS, strict=True)
        ),
        core=core,
        tiles=facts.tiles,
    )


def _rate(units: float, unit_bits: int, vector_bits: int) -> float:
    """Return the vectors per cycle that execution units of a given width process.

    A vector that is wider than a unit occupies the unit for several cycles.
    """
    return units * min(1.0, unit_bits / vector_bits)
