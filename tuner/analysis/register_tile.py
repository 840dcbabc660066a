"""Core cycles of one execution of a statement's register tile, divided into parts.

Operations, loads and dependency chains overlap, so the longest of the three dominates. The cycles
of stores, of starts and ends of tiles, of reductions across lanes, and of register spills are added
to this maximum. `compiler.targets.families.CoreModel` has the latencies and costs for each target.
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
"""Names of the components of the core's cycles. `busiest` is the combined time of the first three.
The core's time is the sum of `busiest` and the components after it."""

_TOGETHER = 6.0
"""Exponent of the norm that combines operations, loads and chains into `busiest`. A component that
is nearly as long as the longest is not hidden completely."""


@dataclass(frozen=True, slots=True)
class TileCase:
    """A group of executions of the register tile that all cover the same number of elements.

    Attributes:
        count: number of executions in the group.
        share: size of the tile in these executions, as a fraction of a full tile.
        parts: for a partial tile, the loops in whose last iteration it is executed, each with the
            tile's size along the loop's axis, as a fraction of a full tile's size.
    """

    count: float
    share: float = 1.0
    parts: tuple[tuple[For, float], ...] = ()


@memo(256)
def cases(loops: EnclosingLoops, vector: Axis | None, lanes: int) -> list[TileCase]:
    """Divide the executions of a register tile into full tiles and partial tiles at loop ends.

    Along the vectorised axis, separate code processes the whole vectors of a partial tile and its
    last, partial vector, so these form two groups. The partial vector takes as long as a whole one,
    or half as long if its elements fit into half a vector.
    """
    found = [TileCase(1.0)]
    for loop, around in zip(loops.fors, reversed(loops.around), strict=True):
        full, rest = divmod(around.extent, loop.step)
        if not rest or loop.lets:  # `lets` shift the last tile back, so that it is full
            found = [TileCase(c.count * around.trips, c.share, c.parts) for c in found]
            continue
        width = min(loop.step, around.extent)  # size of a full tile along the axis
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
    """Estimates how many core cycles one execution of a statement's register tile takes.

    An execution includes all reduction steps. `in_program_order` states the order of the unrolled
    operations (`PlacedCompute.in_program_order`).
    """

    def __init__(self, statement: ComputeCosts, in_program_order: bool, machine: Machine) -> None:
        self._statement = statement
        self._machine = machine
        self._operations = statement.vector_operations / statement.outer_trips
        self._stores = _stores(statement, machine)
        self._loads = _loads(statement, machine)
        self._window = _window(statement, in_program_order) if statement.is_reduction else None

    def parts(self, case: TileCase) -> tuple[float, ...]:
        """Return the cycles of one of the executions in the group `case`, divided into CORE_PARTS.

        CORE_PARTS names the parts, such as "loads" and "spills". All reduction steps of the
        execution are included.
        """
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
        """Return the cycles of a matrix product in AMX tile registers, divided into CORE_PARTS.

        The core loads and multiplies one row of a tile register at a time. The epilogue reads the
        sums from memory, because vector instructions cannot read tile registers.
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
        """Return the number of shuffles that permute loaded elements, and the cycles of all loads.

        Both are for one of the executions in the group `case`.
        """
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
    """Describe the loads in one execution of a full register tile.

    Each entry has the axes of a load, its number of executions, and the shuffles and cycles per
    execution. An element that the tile reads several times is loaded once. Elements that are
    invariant in the inner loops are loaded before these loops if registers are free.
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
    """Return the number of shuffles and the cycles that it takes to load one vector.

    If neighbouring lanes are n elements apart and n is small, n vectors are loaded and permuted
    into one. Lanes with a larger stride are loaded one by one.
    """
    stride = use.lane_step // use.access.element_bytes
    if 1 <= stride <= statement.lanes // 2:
        vector = (1 + machine.core.crossing_load * _crossing(statement, use)) / machine.loads
        return stride - 1.0, stride * vector
    return float(statement.lanes), statement.lanes / machine.core.narrow_loads


def _stores(statement: ComputeCosts, machine: Machine) -> float:
    """Return the cost of the stores in one execution of the tile.

    The unit is the cost of a vector store that does not cross a cache-line boundary.
    """
    stored = 0.0
    for use in statement.uses:
        if use.is_store:
            stored += use.executions * (1 + machine.core.crossing_store * _crossing(statement, use))
    stored += statement.scattered_stores * (statement.lanes - 1)
    return stored / statement.outer_trips


def _crossing(statement: ComputeCosts, use: Use) -> float:
    """Return the probability that a vector access crosses a cache-line boundary.

    All addresses with the guaranteed alignment are assumed to be equally likely.
    """
    if use.lane_step == 0 or use.alignment == LINE_BYTES:
        return 0.0
    width = min(LINE_BYTES, statement.lanes * use.access.element_bytes)
    return max(0, width - use.alignment) / LINE_BYTES


def _spills(statement: ComputeCosts, case: TileCase, machine: Machine) -> float:
    """Return the cycles to spill accumulators that do not fit into the vector registers.

    Each reduction step loads and stores every spilled accumulator. An outer product needs registers
    for a row of vectors and for one broadcast, in addition to the accumulators. If each loaded
    vector is used in one product only, a single register suffices for all of them.
    """
    kept = statement.operands if statement.operands < statement.accumulators else 1
    held = statement.accumulators * case.share + kept + 1
    passes = statement.reduce_trips * statement.points / statement.accumulators
    return max(0.0, held - machine.registers) * passes * machine.core.spill_cycles


@dataclass(frozen=True, slots=True)
class _Window:
    """An unrolled convolution window in which several outputs read the same input elements.

    Example: a register tile computes 4 neighbouring outputs of a row with a 3x3 window. It reads
    3 rows of 6 elements, so `places` is 18. Shared elements lie along a row, where the window has 3
    positions (`taps`). At each of these, the 4 outputs read 4 elements of a row (`waiting`).

    Attributes:
        places: number of distinct input elements (or vectors) that the register tile reads.
        taps: number of positions in the window along one axis: the outermost axis along which
            different outputs read the same elements.
        waiting: number of elements that the tile reads for a single position on that axis, and on
            the axes outside it. The tile reads most of them again for the next position.
        in_program_order: the order of the unrolled operations (`PlacedCompute.in_program_order`).
    """

    places: int
    waiting: int
    taps: int
    in_program_order: bool

    def spills(
        self, statement: ComputeCosts, case: TileCase, machine: Machine
    ) -> tuple[float, float]:
        """Return the cycles of reloads and the number of stores that register spills cause.

        Both are for one of the executions in the group `case`. A spilled accumulator is stored once
        for each of the `taps` window positions. In program order, the elements that the next
        position reads again occupy registers, too. In the greedy order, each element is used for
        all positions when it is loaded.
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
    """Return the convolution window of a statement whose outputs share input elements.

    Return None if no two outputs of the register tile read the same input element.
    """
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
