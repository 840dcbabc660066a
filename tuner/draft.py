"""A draft of a candidate's time, from its loop nest and a few facts of the machine: no measurement.

Per statement the core takes the longest of what its ports, its loads and the chains of its sums
need, plus what no port hides (stores, the ends of register tiles, registers that spill); memory
takes what each cache passes on, at the speed of the level behind it. The two overlap. This is the
roofline of Williams, Waterman and Patterson (2009) with more than one roof, as the analytical
models of Yotov et al. (2005, "Is search really necessary to generate high-performance BLAS?") and
Low et al. (2016, BLIS) put it. It ranks candidates of one workload; its seconds are a guess.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from compiler.loops.expr import Role
from compiler.loops.nest import For, LoopNest
from tuner.statements import Statement
from tuner.tilings import Loops

if TYPE_CHECKING:
    from tuner.features import TargetFacts

CYCLES_PER_SECOND = 3.5e9
"""A clock to count in; only ratios of drafts are used."""

COLD_BYTES = 1 << 20
"""Weights of this size and more come from memory in each run, as they are measured."""


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """A cache: its bytes, and how many bytes a cycle come from the level behind it."""

    bytes: int
    bytes_per_cycle_behind: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What a draft knows of one core: rates are per cycle, `latency` is cycles of a multiply-add.

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


_TILE_CYCLES = 8.0
"""To start and end a register tile: address arithmetic, a mispredicted loop end, a drained pipe."""

_ITERATION_CYCLES = 0.25
"""Of a run-time loop around the innermost points; most of it runs beside the multiply-adds."""

_SPILL_CYCLES = 3.0
"""To store a vector to the stack and load it again, where every step of the sum does so."""

_RELOAD_CYCLES = 1.0
"""To load again what a window reads more than once: it is in the cache, and needs no store."""

_SET_MISS_CYCLES = 0.2
"""A load waits so long for each row more than the ways (and two) that share its set."""

_OVERLAP = 2.0
"""Exponent of the norm that joins core and memory: 1 adds them, infinity takes the larger."""


PARTS = (
    "operations",
    "loads",
    "chains",
    "busiest",
    "stores",
    "tiles",
    "joins",
    "spills",
    "behind_level1",
    "behind_level2",
    "behind_level3",
)
"""What cycles go to. `busiest` is the longest of the first three, tile by tile; with the next four
it is the core's time. The last three are the traffic behind each cache."""

_CORE = slice(PARTS.index("busiest"), PARTS.index("behind_level1"))
_BEHIND_CACHES = slice(_CORE.stop, len(PARTS))


@dataclass(frozen=True, slots=True)
class Draft:
    """Estimated seconds of one run of a nest, and cycles of each of PARTS, on one thread."""

    seconds: float
    parts: tuple[float, ...]

    @property
    def core_cycles(self) -> float:
        """Cycles of the core, were there no memory behind its first cache."""
        return sum(self.parts[_CORE])


def make_draft(
    nest: LoopNest, found: Sequence[Statement], machine: Machine, threads: int = 1
) -> Draft:
    """The draft of a nest whose statements were counted."""
    costs = [_cost(statement, machine, threads) for statement in found]
    cycles = sum([each for each, _ in costs])
    cold = sum(b.bytes for b in nest.buffers if b.role is Role.WEIGHT and b.bytes >= COLD_BYTES)
    memory = cold / machine.caches[-1].bytes_per_cycle_behind / threads
    return Draft(
        _overlapped(cycles, memory) / CYCLES_PER_SECOND,
        tuple(map(sum, zip(*[parts for _, parts in costs], strict=True))),
    )


@lru_cache(maxsize=4096)
def _cost(statement: Statement, machine: Machine, threads: int) -> tuple[float, tuple[float, ...]]:
    """Cycles that the busiest thread takes for a statement; those of all threads by PARTS."""
    parts = _parts(statement, machine)
    cycles = _overlapped(sum(parts[_CORE]), max(parts[_BEHIND_CACHES]))
    return cycles * _share(statement, threads), parts


def _parts(statement: Statement, machine: Machine) -> tuple[float, ...]:
    """Cycles of one statement in its loops by PARTS."""
    core = [0.0] * _BEHIND_CACHES.start
    for case in _cases(statement.tiling.loops):
        for place, cycles in enumerate(_tile_parts(statement, case, machine)):
            core[place] += case.count * cycles
    sizes = tuple(cache.bytes for cache in machine.caches)
    behind = [
        moved / cache.bytes_per_cycle_behind
        for moved, cache in zip(traffic(statement, sizes), machine.caches, strict=True)
    ]
    return (*core, *behind)


@dataclass(frozen=True, slots=True)
class _Case:
    """Executions of the register tile that are alike: how many, and how much of it they fill.

    `parts` holds loops whose last tile is narrower, each with the share that is left of it.
    """

    count: float
    share: float = 1.0
    parts: tuple[tuple[For, float], ...] = ()


@lru_cache(maxsize=256)
def _cases(loops: Loops) -> list[_Case]:
    """Full tiles, and the narrower ones at the ends of ragged loops."""
    cases = [_Case(1.0)]
    for loop, around in zip(loops.fors, reversed(loops.around), strict=True):
        step = min(loop.step, around.extent)
        full, rest = divmod(around.extent, step)
        if not rest or loop.lets:  # with lets the last tile is moved back, and full
            cases = [_Case(c.count * around.trips, c.share, c.parts) for c in cases]
            continue
        share = rest / step
        cases = [_Case(c.count * full, c.share, c.parts) for c in cases if full] + [
            _Case(c.count, c.share * share, (*c.parts, (loop, share))) for c in cases
        ]
    return cases


def _tile_parts(statement: Statement, case: _Case, machine: Machine) -> tuple[float, ...]:
    """Cycles of one execution of the register tile, its whole sum included: the core's PARTS."""
    tiles = statement.outer_trips
    steps = statement.reduce_trips * statement.points
    operations = statement.vector_operations / tiles * case.share / machine.operations
    loads = _loads(statement, case, machine)
    chains = joins = spills = 0.0
    if statement.is_reduction:
        # Additions to one accumulator wait for each other; a short sum overlaps with the next.
        waiting = steps / statement.accumulators * machine.latency
        chains = waiting / max(1.0, machine.in_flight / steps)
        spills = _spills(statement, case, machine)
    if statement.lane_reduction:
        # halves are added to each other: shuffle and addition for each halving
        joins = statement.accumulators * case.share * 2 * (statement.lanes.bit_length() - 1)
    stored = statement.stores + statement.scattered_stores * (statement.lanes - 1)
    return (
        operations,
        loads,
        chains,
        max(operations, loads, chains),
        stored / tiles * case.share / machine.stores,
        _TILE_CYCLES + statement.reduce_trips * _ITERATION_CYCLES,
        joins,
        spills,
    )


def _loads(statement: Statement, case: _Case, machine: Machine) -> float:
    """Cycles to load what one execution of the tile needs."""
    waiting = max(0, statement.aliased_rows * case.share - machine.ways - 2) * _SET_MISS_CYCLES
    cycles = 0.0
    for use in statement.uses:
        if use.is_store:
            continue
        number = use.executions / statement.outer_trips
        for loop, share in case.parts:
            if loop.axis in use.access.axes:
                number *= share
        if use.lane_step == 0:
            busy = 1 / machine.narrow_loads
        elif use.lane_step == use.access.element_bytes:
            busy = 1 / machine.loads
        else:
            busy = statement.lanes / machine.narrow_loads
        cycles += number * (busy + waiting)
    return cycles


def _spills(statement: Statement, case: _Case, machine: Machine) -> float:
    """Cycles for what the registers do not hold: it is stored, and loaded in each step of the sum.

    An outer product keeps a row of vectors and one broadcast beside the accumulators. A window that
    is written out keeps what several of its points read, from the first to the last of them; an
    excess of that costs once for all taps.
    """
    passes = statement.reduce_trips * statement.points / statement.accumulators
    held = statement.accumulators * case.share + statement.operands + 1
    shared = _shared_by_taps(statement)
    if shared is None:
        return max(0.0, held - machine.registers) * passes * _SPILL_CYCLES
    values, taps = shared
    held = statement.accumulators * case.share + values * case.share + min(taps, 9.0)
    return max(0.0, held - machine.registers) * passes / taps * _RELOAD_CYCLES


@lru_cache(maxsize=16)
def _shared_by_taps(statement: Statement) -> tuple[float, float] | None:
    """The distinct values that a written-out window reads, and how often each; None without one."""
    for use in statement.uses:
        reads = use.executions / (statement.outer_trips * statement.reduce_trips)
        lanes = statement.lanes if use.lane_step else 1
        distinct = statement.spans[use.access.form][0] / use.access.element_bytes / lanes
        if not use.is_store and reads > 1.5 * distinct and distinct > 1:
            return distinct, reads / distinct
    return None


def traffic(statement: Statement, cache_bytes: Sequence[int]) -> tuple[float, ...]:
    """Bytes that come from beyond each of these caches in one run of the nest.

    A tensor is fetched again in each iteration of a loop that brings it back, unless all that the
    loop's body touches fits: then what is there stays. What fits as a whole stays from run to run.
    """
    footprints = statement.footprints
    if footprints[-1] <= cache_bytes[0]:
        return (0.0,) * len(cache_bytes)
    widest = [max(forms, key=lambda each: len(each.axes)) for forms in statement.tensors]
    moved = []
    for size in cache_bytes:
        place = bisect_right(footprints, size)  # the first loop whose body does not fit
        if place == len(footprints):
            moved.append(0.0)
            continue
        again = prod([loop.trips for loop in statement.around[place:]])
        moved.append(again * sum([statement.spans[form][place] for form in widest]))
    return tuple(moved)


def _share(statement: Statement, threads: int) -> float:
    """The share of the work that the busiest thread has."""
    tiles = max(1, statement.parallel_tiles)
    return -(-tiles // threads) / tiles


def _overlapped(first: float, second: float) -> float:
    return float((first**_OVERLAP + second**_OVERLAP) ** (1 / _OVERLAP))
