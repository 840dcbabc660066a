"""One core, as estimates see it: its registers, what its ports take in a cycle, its caches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.analysis.features import TargetFacts

CYCLES_PER_SECOND = 3.5e9
"""A clock to count in; only ratios of estimates are used."""


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """A cache: its bytes, and how many bytes a cycle come from the level behind it."""

    bytes: int
    bytes_per_cycle_behind: float


@dataclass(frozen=True, slots=True)
class Machine:
    """One core, as estimates see it: rates are per cycle, `latency` is cycles of a multiply-add.

    `operations`, `loads` and `stores` are whole vectors, `narrow_loads` single elements, also those
    that are spread over a vector; `in_flight` is how many operations the core looks ahead. `ways`
    is how many lines of one set the first cache holds.
    """

    registers: int
    operations: float
    loads: float
    narrow_loads: float
    stores: float
    latency: float
    in_flight: float
    ways: int
    caches: tuple[CacheLevel, ...]
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.registers, self.latency, self.caches)))

    def __hash__(self) -> int:
        return self._hash


_BEHIND = (32.0, 26.0, 8.0)
"""Bytes a cycle that the second level, the third and memory deliver to one core. Between the
vendors' optimisation guides (64, 32 and 10) and what one core of a Zen 4 read (32, 26 and 8)."""

_OURS = (1.0, 1.0, 0.5)
"""The share of each cache that one core can count on: the third is everybody's."""

_TYPICAL_CACHES = (32 << 10, 512 << 10, 8 << 20)


@lru_cache(maxsize=64)
def describe(facts: TargetFacts) -> Machine:
    """The machine as far as its facts say; typical caches where they are unknown.

    Vectors of 512 bits are issued once a cycle (narrower ones twice), as on all but a few of the
    CPUs that have them.
    """
    wide = facts.vector_bits >= 512
    return Machine(
        registers=facts.vector_registers,
        operations=1.0 if wide else 2.0,
        loads=1.0 if wide else 2.0,
        narrow_loads=2.0,
        stores=0.5 if wide else 1.0,
        latency=4.0,
        in_flight=160.0,
        ways=8,
        caches=tuple(
            CacheLevel(int((found or typical) * share), behind)
            for found, typical, behind, share in zip(
                facts.cache_bytes, _TYPICAL_CACHES, _BEHIND, _OURS, strict=True
            )
        ),
    )
