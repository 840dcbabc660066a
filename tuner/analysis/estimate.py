"""An analytical estimate of a candidate's time, from its loop nest and a model of the machine.

The core time of a statement is the longest of its arithmetic, its loads and its dependency chains.
Work that does not overlap with these is added: stores, the starts and ends of register tiles, and
spilled registers. Cache misses of each level are served at the bandwidth of the next level. The
core works while data are transferred, so its time and the time of the traffic overlap. This is the
roofline model of Williams, Waterman and Patterson (2009) with several ceilings, as in the
analytical models of Yotov et al. (2005, "Is search really necessary to generate high-performance
BLAS?") and Low et al. (2016, BLIS). The estimate serves to rank candidates of one workload; the
absolute times are inaccurate.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.compiler.loops.expr import Role
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.memo import memo
from tilewright.tuner.analysis.accesses import LINE_BYTES
from tilewright.tuner.analysis.compute_costs import ComputeCosts, PlacedCompute
from tilewright.tuner.analysis.machine import CYCLES_PER_SECOND, Machine
from tilewright.tuner.analysis.register_tile import CORE_PARTS, RegisterTile, cases
from tilewright.tuner.protocol.batches import COLD_BYTES

_BESIDE_LEVEL1 = 4.0
_BESIDE_OTHERS = 2.0
"""Exponent of the norm that combines the time of the core and its first cache with the time of the
traffic behind the further caches.

`_BESIDE_LEVEL1` is the exponent for the core's time and the traffic behind the first cache, which
is nearly always prefetched. With an exponent of 1, overlapping times add up; with infinity, only
the longer one counts.
"""

_BURST_LINES = 250.0
"""Number of cache lines touched by a register tile at which memory traffic takes twice as long as
for a tiny tile.

The core issues all loads of a tile at once, and the memory is idle while the tile is computed and
stored. In pooling operators that only copy elements, tiles of 16 outputs take a quarter longer than
tiles of one.
"""

PARTS = (*CORE_PARTS, "behind_level1", "behind_level2", "behind_level3")
"""Names of the components of a cycle estimate: the core's components, then the traffic behind each
cache."""

_CORE = slice(PARTS.index("busiest"), len(CORE_PARTS))
_BEHIND_CACHES = slice(len(CORE_PARTS), len(PARTS))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated time of one run of a nest.

    Attributes:
        seconds: the estimated time.
        parts: the cycles, summed over all statements and threads, divided into the parts that PARTS
            names, such as "loads" and "spills".
    """

    seconds: float
    parts: tuple[float, ...]

    @property
    def core_cycles(self) -> float:
        """The cycles that the run would take if all data were in the first-level cache."""
        return sum(self.parts[_CORE])


def estimate_nest(
    nest: LoopNest, found: Sequence[PlacedCompute], machine: Machine, threads: int = 1
) -> Estimate:
    """Estimate the time of one run of a nest.

    Args:
        nest: the loop nest.
        found: its statements with their costs, from `compute_costs.placed_computes`.
        machine: the model of one core.
        threads: number of threads that run the parallel loops.
    """
    costs = [_cost(one.statement, one.in_program_order, machine, threads) for one in found]
    cycles = sum([each for each, _ in costs])
    cold = sum(b.bytes for b in nest.buffers if b.role is Role.WEIGHT and b.bytes >= COLD_BYTES)
    memory = cold / machine.caches[-1].bytes_per_cycle_behind / threads
    return Estimate(
        _joined(cycles, memory, _BESIDE_OTHERS) / CYCLES_PER_SECOND,
        tuple(map(sum, zip(*[parts for _, parts in costs], strict=True))),
    )


@memo(4096)
def _cost(
    statement: ComputeCosts, in_program_order: bool, machine: Machine, threads: int
) -> tuple[float, tuple[float, ...]]:
    """Return the cycles of a statement on the busiest thread, and the parts of its total cycles.

    The parts are summed over all threads; PARTS has their names, such as "loads" and "spills".
    """
    parts = (*_core(statement, in_program_order, machine), *_behind(statement, machine))
    return _with_memory(statement, parts) * _share(statement, threads), parts


def _core(statement: ComputeCosts, in_program_order: bool, machine: Machine) -> list[float]:
    """Return the core cycles of a statement in one run of the nest, divided into CORE_PARTS.

    CORE_PARTS names the parts, such as "loads" and "spills".
    """
    core = [0.0] * len(CORE_PARTS)
    counted = statement.loop_counts
    tile = RegisterTile(statement, in_program_order, machine)
    for case in cases(counted.loops, counted.vector, counted.lanes):
        for place, cycles in enumerate(tile.parts(case)):
            core[place] += case.count * cycles
    return core


@memo(4096)
def _behind(statement: ComputeCosts, machine: Machine) -> list[float]:
    """Return the cycles to move a statement's data into each cache from the level behind it.

    The first entry is for the first-level cache.
    """
    sizes = tuple([cache.bytes for cache in machine.caches])
    return [
        moved / cache.bytes_per_cycle_behind
        for moved, cache in zip(traffic(statement, sizes), machine.caches, strict=True)
    ]


def traffic(statement: ComputeCosts, cache_bytes: Sequence[int]) -> tuple[float, ...]:
    """Return, for each cache size, the bytes of a statement's accesses that miss a cache of this
    size.

    A loop that reuses a tensor fetches it again in each iteration, unless everything that its body
    touches fits into the cache. If the data of the whole statement fit into a cache of the first
    size, all entries are 0, because the data stay cached between runs. No entry exceeds the bytes
    that the statement loads and stores.
    """
    footprints = statement.footprints
    if footprints[-1] <= cache_bytes[0]:
        return (0.0,) * len(cache_bytes)
    widest = [max(forms, key=lambda each: len(each.axes)) for forms in statement.tensors]
    most = 0.0
    for use in statement.uses:
        lanes = statement.lanes if use.lane_step else 1
        most += use.executions * use.access.element_bytes * lanes
    moved = []
    for size in cache_bytes:
        place = bisect_right(footprints, size)  # the first loop whose body does not fit
        if place == len(footprints):
            moved.append(0.0)
            continue
        again = prod([loop.trips for loop in statement.around[place:]])
        moved.append(min(most, again * sum([statement.spans[form][place] for form in widest])))
    return tuple(moved)


def _share(statement: ComputeCosts, threads: int) -> float:
    """Return the fraction of a statement's work that the busiest of `threads` threads does."""
    tiles = max(1, statement.parallel_tiles)
    return -(-tiles // threads) / tiles


def _with_memory(statement: ComputeCosts, parts: Sequence[float]) -> float:
    """Return the total cycles of a statement, whose computation and memory traffic overlap.

    `parts` has the components of the estimate, in cycles, in the order of PARTS: the components
    of the core's time, and then the time of the traffic behind each cache.
    """
    waiting = 1 + statement.footprints[0] / LINE_BYTES / _BURST_LINES
    near, *far = parts[_BEHIND_CACHES]
    cycles = _joined(sum(parts[_CORE]), near * waiting, _BESIDE_LEVEL1)
    return _joined(cycles, max(far) * waiting, _BESIDE_OTHERS)


def _joined(first: float, second: float, exponent: float) -> float:
    if not second:
        return first
    return float((first**exponent + second**exponent) ** (1 / exponent))
