"""Core cycles of one execution of a statement's register tile, divided into parts.

Operations, loads and dependency chains overlap, so the longest of the three dominates. Stores,
starts and ends of tiles, reductions across lanes, and spills are added to it. The target gives the
cost of each (`compiler.targets.families.CoreModel`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import For
from tilewright.compiler.memo import memo
from tilewright.compiler.targets.families import TileRegisters
from tilewright.tuner.analysis.accesses import LINE_BYTES
from tilewright.tuner.analysis.compute_costs import ComputeCosts, Use
from tilewright.tuner.analysis.loop_counts import EnclosingLoops
from tilewright.tuner.analysis.machine import Machine

CORE_PARTS = (
    "operations",
    "loads",
    "chains",
    "busiest",
    "stores",
    "tiles",
    "joins",
    "spills",
)
"""The parts of the core's cycles. `busiest` is the time of the first three together; the core's
time is the sum of `busiest` and the parts after it."""

_TOGETHER = 6.0
"""Exponent of the norm that joins operations, loads and chains: a part that is nearly as long as
the longest is not hidden completely."""


@dataclass(frozen=True, slots=True)
class TileCase:
    """Executions of the register tile that have the same size.

    Attributes:
        count: number of these executions.
        share: their size as a fraction of a full tile.
        parts: the loops whose last, partial tile this is, each with the fraction of a full tile.
    """

    count: float
    share: float = 1.0
    parts: tuple[tuple[For, float], ...] = ()


@memo(256)
def cases(loops: EnclosingLoops, vector: Axis | None, lanes: int) -> list[TileCase]:
    """Divide the executions of a register tile into full tiles and partial tiles at loop ends.

    Along the vectorised axis, the remaining elements have separate code with a partial vector. It
    takes as long as a whole vector, or half as long if it fits into half a vector.
    """
    found = [TileCase(1.0)]
    for loop, around in zip(loops.fors, reversed(loops.around), strict=True):
        full, rest = divmod(around.extent, loop.step)
        if not rest or loop.lets:  # lets move the last tile back, so that it is full
            found = [TileCase(c.count * around.trips, c.share, c.parts) for c in found]
            continue
        width = min(loop.step, around.extent)  # of the tile, as in its counts
        shares = [rest / width]
        if loop.axis == vector:
            width = -(-width // lanes) * lanes
            whole, left = divmod(rest, lanes)
            shares = [whole * lanes / width] if whole else []
            if left:
                shares.append((lanes if 2 * left > lanes else lanes / 2) / width)
        found = [TileCase(c.count * full, c.share, c.parts) for c in found if full] + [
            TileCase(c.count, c.share * share, (*c.parts, (loop, share)))
            for c in found
            for share in shares
        ]
    return found


class RegisterTile:
    """Model of a statement's register tile: computes the cycles of one execution."""

    def __init__(self, statement: ComputeCosts, in_program_order: bool, machine: Machine) -> None:
        self._statement = statement
        self._machine = machine
        self._operations = statement.vector_operations / statement.outer_trips
        self._stores = _stores(statement, machine)
        self._loads = _loads(statement, machine)
        self._window = _window(statement, in_program_order) if statement.is_reduction else None

    def parts(self, case: TileCase) -> tuple[float, ...]:
        """Return the cycles of one execution and all its reduction steps, ordered as CORE_PARTS."""
        statement, machine, core = self._statement, self._machine, self._machine.core
        if statement.depth_groups and machine.tiles is not None:
            return self._in_matrices(case, machine.tiles)
        shuffles, loads = self._operands(case)
        operations = (self._operations * case.share + shuffles) / machine.operations
        stores = self._stores * case.share
        chains = joins = spills = 0.0
        if statement.is_reduction:
            # Each step of a sum waits for the previous one, and the epilogue for all steps. But the
            # core looks ahead.
            steps = statement.reduce_trips * statement.points
            latency = core.fma_latency * (core.extremum_latency if statement.is_extremum else 1.0)
            waiting = (
                steps / statement.accumulators * latency + statement.ending * core.ending_cycles
            )
            chains = waiting / max(1.0, machine.in_flight / (steps + loads))
            if self._window is None:
                spills = _spills(statement, case, machine)
            else:
                reloads, saves = self._window.spills(statement, case, machine)
                loads, stores = loads + reloads, stores + saves
        if statement.lane_reduction:
            # The lanes are halved until one is left: each time a shuffle and an addition.
            joins = statement.accumulators * case.share * 2 * (statement.lanes.bit_length() - 1)
        has_loops = statement.reduce_trips > 1
        started = core.tile_cycles if has_loops else core.written_out_cycles
        together = operations**_TOGETHER + loads**_TOGETHER + chains**_TOGETHER
        return (
            operations,
            loads,
            chains,
            together ** (1 / _TOGETHER),
            stores / machine.stores,
            started + statement.reduce_trips * core.iteration_cycles,
            joins,
            spills,
        )

    def _in_matrices(self, case: TileCase, tiles: TileRegisters) -> tuple[float, ...]:
        """Return `parts` for a product in AMX tile registers.

        One row is loaded and multiplied at a time. The sums pass through memory to the epilogue.
        """
        statement, machine, core = self._statement, self._machine, self._machine.core
        sums = statement.accumulators * case.share
        ends = sums * statement.ending
        products = self._operations * case.share - ends
        operations = (
            products / statement.depth_groups * tiles.row_cycles + ends / machine.operations
        )
        loads = self._operands(case)[1] + sums / machine.loads
        chains = statement.reduce_trips * tiles.latency
        together = operations**_TOGETHER + loads**_TOGETHER + chains**_TOGETHER
        return (
            operations,
            loads,
            chains,
            together ** (1 / _TOGETHER),
            (self._stores * case.share + sums) / machine.stores,
            core.tile_cycles + statement.reduce_trips * core.iteration_cycles,
            0.0,
            0.0,
        )

    def _operands(self, case: TileCase) -> tuple[float, float]:
        """Return shuffles that permute loaded elements, and cycles of the loads."""
        beyond = self._statement.aliased_rows * case.share - self._machine.page_rows - 2
        waiting = max(0.0, beyond) * self._machine.core.set_miss_cycles
        shuffles = cycles = 0.0
        for axes, number, moved, busy in self._loads:
            for loop, share in case.parts:
                if loop.axis in axes:
                    number *= share
            shuffles += number * moved
            cycles += number * (busy + waiting)
        return shuffles, cycles


def _loads(
    statement: ComputeCosts, machine: Machine
) -> list[tuple[frozenset[Axis], float, float, float]]:
    """Describe the loads of a full tile.

    Each entry has the axes of a load, its number of executions, and the shuffles and cycles per
    execution. An element that several points read is loaded once. Elements that do not change in
    the inner loops are loaded before these loops, as far as registers are free.
    """
    found = []
    counted, tiles = statement.loop_counts, statement.outer_trips
    room = machine.registers - 2 - statement.accumulators if statement.is_reduction else 0
    for use in statement.uses:
        if use.is_store:
            continue
        number = use.executions / tiles
        form = use.access.form
        if form.overlaps:
            number *= counted.overlap(form)
        if room > 0 and use.in_body and counted.innermost.isdisjoint(form.axes):
            places = counted.places(form)
            kept = min(room, places)
            room -= kept
            number *= 1 - kept / places * (1 - 1 / counted.trips_inside(form))
        if use.lane_step:
            moved, busy = _vectors(statement, use, machine)
        elif statement.depth_groups and use.in_body:  # all groups of a row at once
            number, moved, busy = number / statement.depth_groups, 0.0, 1 / machine.loads
        else:
            moved, busy = 0.0, 1 / machine.core.narrow_loads
        found.append((use.access.axes, number, moved, busy))
    return found


def _vectors(statement: ComputeCosts, use: Use, machine: Machine) -> tuple[float, float]:
    """Return the shuffles and cycles of one load along the lanes.

    If the lanes have a small stride of n elements, n vectors are loaded and permuted into one.
    Lanes with a larger stride are loaded one by one.
    """
    stride = use.lane_step // use.access.element_bytes
    if 1 <= stride <= statement.lanes // 2:
        vector = (1 + machine.core.crossing_load * _crossing(statement, use)) / machine.loads
        return stride - 1.0, stride * vector
    return float(statement.lanes), statement.lanes / machine.core.narrow_loads


def _stores(statement: ComputeCosts, machine: Machine) -> float:
    """Return the stores of one execution of the tile, in units of a store within one cache line."""
    stored = 0.0
    for use in statement.uses:
        if use.is_store:
            stored += use.executions * (1 + machine.core.crossing_store * _crossing(statement, use))
    stored += statement.scattered_stores * (statement.lanes - 1)
    return stored / statement.outer_trips


def _crossing(statement: ComputeCosts, use: Use) -> float:
    """Return the fraction of a vector's possible addresses at which it crosses a cache-line
    boundary.
    """
    if use.lane_step == 0 or use.alignment == LINE_BYTES:
        return 0.0
    width = min(LINE_BYTES, statement.lanes * use.access.element_bytes)
    return max(0, width - use.alignment) / LINE_BYTES


def _spills(statement: ComputeCosts, case: TileCase, machine: Machine) -> float:
    """Return the cycles for spilled accumulators: each reduction step loads and stores them.

    An outer product needs registers for a row of vectors and one broadcast in addition to the
    accumulators. A vector that only one product needs does not occupy a register.
    """
    kept = statement.operands if statement.operands < statement.accumulators else 1
    held = statement.accumulators * case.share + kept + 1
    passes = statement.reduce_trips * statement.points / statement.accumulators
    return max(0.0, held - machine.registers) * passes * machine.core.spill_cycles


@dataclass(frozen=True, slots=True)
class _Window:
    """An unrolled convolution window whose points share elements.

    The tile reads `places` distinct elements. `taps` is the number of taps along the outermost axis
    whose taps share elements. `waiting` elements are read by one of these taps and again by the
    next.
    """

    places: int
    waiting: int
    taps: int
    in_program_order: bool

    def spills(
        self, statement: ComputeCosts, case: TileCase, machine: Machine
    ) -> tuple[float, float]:
        """Return the reload cycles and the number of stores that spills cause per execution of the
        tile.

        A spilled accumulator goes to the stack once for each of `taps`. In program order, elements
        that wait for the next tap occupy registers, too. The greedy order reads each element once
        for all taps.
        """
        accumulators = statement.accumulators * case.share
        saved = max(0.0, accumulators + 2 - machine.registers) * self.taps
        reloaded = saved
        if self.in_program_order:
            waiting = self.waiting * case.share
            lost = min(max(0.0, accumulators + waiting + 1 - machine.registers), waiting)
            again = lost * self.places / self.waiting
            saved += again
            reloaded += again * max(1, self.taps - 1)
        trips = statement.reduce_trips
        return reloaded * trips / machine.loads, saved * trips


def _window(statement: ComputeCosts, in_program_order: bool) -> _Window | None:
    """Return the window whose points share elements within the register tile; None without one."""
    counted = statement.loop_counts
    for use in statement.uses:
        form = use.access.form
        if not form.overlaps or not use.in_body or counted.overlap(form) == 1:
            continue
        stored = frozenset(a for each in statement.uses if each.is_store for a in each.access.axes)
        taps = [axis for axis, count in counted.counts.items() if count > 1 and axis not in stored]
        for number, tap in enumerate(taps):
            beside = form.axes_beside(tap) & stored
            if any(counted.counts.get(axis, 1) > 1 for axis in beside):
                waiting = counted.places(form, tuple(taps[: number + 1]))
                places, count = counted.places(form), counted.counts[tap]
                return _Window(places, waiting, count, in_program_order)
        return None
    return None
