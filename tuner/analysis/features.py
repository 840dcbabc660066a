"""Features of a candidate for the cost model: named columns, computed from its loop nest.

The two statements with the most work are described in detail; totals cover all statements. Values
that span orders of magnitude are base-2 logarithms. Columns that compare a candidate with its
task's default schedule make tasks of different size comparable. `docs/features.md` explains each
column.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import TypeAlias

import numpy as np

from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Role
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.memo import memo
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.families import CoreModel, TileRegisters
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings, timed
from tilewright.tuner.analysis.accesses import KINDS, LINE_BYTES
from tilewright.tuner.analysis.buffers import BufferUse, Reuse, after_others, uses_in_loops
from tilewright.tuner.analysis.compute_costs import ComputeCosts, PlacedCompute, placed_computes
from tilewright.tuner.analysis.estimate import PARTS, Estimate, estimate_nest
from tilewright.tuner.analysis.machine import describe
from tilewright.tuner.measure.points import ITSELF, SizePoint

FEATURE_VERSION = 5
"""Version of the meaning of the feature columns. Increase it if the meaning of a column changes:
models saved with another version are rejected."""

CACHE_BYTES = (32 << 10, 256 << 10, 1 << 20, 8 << 20)
"""Cache sizes in bytes for which memory traffic is counted.

They span the cache sizes of common CPUs, so that one set of columns serves all devices. The model
learns which of them matter.
"""

BUFFERS = 3
"""Number of tensors per statement that have feature columns: those with the most traffic."""

CURVE = 8
"""Number of points at which the curve of arithmetic intensity is sampled, from the register tile
alone to all loops around it."""

ALGORITHM_BITS = 8
"""Number of columns into which an algorithm's name is hashed, so that new templates need no new
columns."""

STATEMENT_COLUMNS = (
    "vector_operations",
    "operations",
    *(f"{kind}_share" for kind in KINDS),
    "lanes",
    "useful_lanes",
    "accumulators",
    "operands",
    "register_pressure",
    "points",
    "reduce_trips",
    "reduce_unroll",
    "outer_trips",
    "depth",
    "vector_loads_per_operation",
    "broadcast_loads_per_operation",
    "scattered_loads_per_operation",
    "loads_per_operation",
    "stores_per_operation",
    "scattered_stores_per_operation",
    "aliased_rows",
    "peeled",
    "skips_padding",
    "is_reduction",
    "lane_reduction",
    "prefetches",
    "parallel_tiles",
    "tile_bytes",
    "level1_trips",
    "level1_bytes",
    "level2_trips",
    "level2_bytes",
    "level3_trips",
    "level3_bytes",
    *(f"traffic_{size >> 10}k_per_operation" for size in CACHE_BYTES),
    *(f"intensity{point}" for point in range(CURVE)),
)

BUFFER_COLUMNS = (
    "bytes",
    "unique_bytes",
    "unique_lines",
    "line_use",
    "reuse_in_loop",
    "reuse_serial",
    "reuse_iterations",
    "reuse_bytes",
    "reuse_count",
    "lane_stride",
    "is_read",
    "is_written",
)

TOTAL_COLUMNS = (
    "total_vector_operations",
    "total_loads",
    "total_scattered",
    "total_stores",
    *(f"total_traffic_{size >> 10}k" for size in CACHE_BYTES),
    "main_share",
    "computes",
    "stages",
    "scratch_bytes",
    "shared_bytes",
    "weight_bytes",
)

TARGET_COLUMNS = (
    "vector_bits",
    "vector_registers",
    "level1_cache_bytes",
    "level2_cache_bytes",
    "level3_cache_bytes",
    "threads",
)


def _statement_columns(prefix: str) -> tuple[str, ...]:
    return (
        *(f"{prefix}_{name}" for name in STATEMENT_COLUMNS),
        *(f"{prefix}_buffer{n}_{name}" for n in range(BUFFERS) for name in BUFFER_COLUMNS),
    )


_NEST_COLUMNS = (*_statement_columns("main"), *_statement_columns("second"), *TOTAL_COLUMNS)

ESTIMATE_COLUMNS = ("estimate", *(f"estimate_{part}" for part in PARTS))

COLUMNS: tuple[str, ...] = (
    *_NEST_COLUMNS,
    *(f"algorithm{bit}" for bit in range(ALGORITHM_BITS)),
    *TARGET_COLUMNS,
    *(f"relative_{name}" for name in _NEST_COLUMNS),
    *ESTIMATE_COLUMNS,
)
"""Names of the columns of a feature row, in order."""

_LEAST_PART = 2.0**-8
"""Number added to each component of an estimate, as a fraction of the default schedule's cycles,
before its logarithm becomes a feature. Components below this number have nearly equal features."""

_WIDTH = len(STATEMENT_COLUMNS) + BUFFERS * len(BUFFER_COLUMNS)
_NO_BUFFER = [0.0] * len(BUFFER_COLUMNS)


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Properties of a machine that affect a candidate's speed. A cache size of 0 means unknown."""

    vector_bits: int
    vector_registers: int
    core: CoreModel
    cache_bytes: tuple[int, int, int] = (0, 0, 0)
    level1_ways: int = 0
    threads: int = 1
    tiles: TileRegisters | None = None

    def columns(self) -> list[float]:
        """Return the features that describe the machine; TARGET_COLUMNS has their names."""
        return [
            float(self.vector_bits),
            float(self.vector_registers),
            *(_log(size) for size in self.cache_bytes),
            float(self.threads),
        ]


@memo(64)
def target_facts(
    target: Target, threads: int = 1, device: DeviceFacts | None = None
) -> TargetFacts:
    """Collect the properties of a target and of a device.

    Without a device, cache sizes are unknown.
    """
    caches, ways = (0, 0, 0), 0
    if device is not None:
        caches = (device.cache_bytes(1), device.cache_bytes(2), device.cache_bytes(3))
        first = device.cache(1)
        ways = first.ways if first else 0
    return TargetFacts(
        target.vector_bits,
        target.vector_registers,
        target.core,
        caches,
        ways,
        threads,
        target.tiles,
    )


def nest_features(
    nest: LoopNest,
    algorithm: str,
    facts: TargetFacts,
    found: Sequence[PlacedCompute] | None = None,
) -> np.ndarray:
    """Return the features of a nest in one float32 row, without the columns that compare it with
    the default schedule.

    Args:
        nest: the loop nest.
        algorithm: the name of its algorithm.
        facts: the properties of the machine.
        found: the statements of the nest with their costs; computed if None.
    """
    if found is None:
        found = placed_computes(nest)
    weights = [-each.statement.weight for each in found]
    order = sorted(range(len(found)), key=weights.__getitem__)
    row: list[float] = []
    for number in order[:2]:
        row += _describe(found, number, facts)
    row += [0.0] * (2 * _WIDTH - len(row))
    row += _totals(nest, [each.statement for each in found], order)
    row += _algorithm(algorithm)
    row += facts.columns()
    return np.array(row, dtype=np.float32)


_Absolute: TypeAlias = tuple[np.ndarray, Estimate]


class FeatureExtractor:
    """Computes features and estimated times of one task's candidates, cached by schedule.

    A task is a workload (a fused subgraph) to tune on a target. A candidate is a schedule to try.

    Args:
        lower: returns the loop nest of a schedule; raises ScheduleError if the schedule is invalid.
        default: the task's default schedule, with which candidates are compared.
        facts: the properties of the machine.
        points: the sizes at which a workload with dynamic dimensions is analysed.

    Attributes:
        timings: records the time of the analysis, under "features".
        stopped: returns whether the run is ending. Schedules that are not cached are then no longer
            analysed, so that the search returns soon.
        effort: fraction of the usual number of candidates that the search ranks
            (`tuner.limits.search_effort`). The extractor itself does not use this number.
    """

    timings: Timings | None = None
    stopped: Callable[[], bool] = staticmethod(lambda: False)
    effort: float = 1.0

    def __init__(
        self,
        lower: Callable[[Schedule], LoopNest],
        default: Schedule,
        facts: TargetFacts,
        points: Sequence[SizePoint] = ITSELF,
    ) -> None:
        self._lower = lower
        self._default = default
        self._facts = facts
        self._points = points
        self._machine = describe(facts)
        self._estimates: dict[Schedule, float] = {}
        self._rows: dict[Schedule, np.ndarray | None] = {}
        self._reference: list[_Absolute] | None = None

    @property
    def points(self) -> Sequence[SizePoint]:
        """The sizes of the workload's dynamic dimensions at which its loop nests are analysed."""
        return self._points

    def row(self, schedule: Schedule) -> np.ndarray | None:
        """Return the features of a schedule, float32.

        The shape is (len(COLUMNS),) for a workload with fixed sizes. With dynamic dimensions, it is
        (number of points, len(COLUMNS)), where each point gives a size to every dimension. Return
        None if the schedule cannot be lowered, or if its features are not cached and `stopped`
        returns true.
        """
        try:
            return self._rows[schedule]
        except KeyError:
            if self.stopped():
                return None
            with timed(self.timings, "features"):
                row = self._rows[schedule] = self._compute(schedule)
            return row

    def estimated_seconds(self, schedule: Schedule) -> float | None:
        """Return the time of a schedule as estimated by `tuner.analysis.estimate`, in seconds.

        For a workload with dynamic dimensions, this is the sum of the times at all sizes in
        `points`, weighted by `SizePoint.weight`. Return None if `row` returns None for the
        schedule.
        """
        return None if self.row(schedule) is None else self._estimates[schedule]

    def rows(self, schedules: Sequence[Schedule]) -> tuple[list[Schedule], np.ndarray]:
        """Return the schedules whose features are available, and their features (float32).

        The array has one entry per returned schedule, with the shape that `row` returns. Schedules
        for which `row` returns None are left out.
        """
        kept, rows = [], []
        for schedule in schedules:
            row = self.row(schedule)
            if row is not None:
                kept.append(schedule)
                rows.append(row)
        if not rows:
            return [], np.zeros((0, len(COLUMNS)), dtype=np.float32)
        return kept, np.stack(rows)

    def scores(
        self, schedules: Sequence[Schedule], predict: Callable[[np.ndarray], np.ndarray]
    ) -> dict[Schedule, float]:
        """Return a model's score of each schedule that can be lowered.

        `predict` maps feature rows, float32 of shape (number, len(COLUMNS)), to one score per row.
        For a workload with dynamic dimensions, the score is the mean over all sizes in `points`,
        weighted by `SizePoint.share`.
        """
        kept, rows = self.rows(schedules)
        predicted = np.asarray(predict(rows.reshape(-1, len(COLUMNS))), dtype=np.float64)
        shares = np.array([point.share for point in self._points])
        means = predicted.reshape(len(kept), -1) @ shares if kept else predicted
        return dict(zip(kept, means.tolist(), strict=True))

    def _compute(self, schedule: Schedule) -> np.ndarray | None:
        try:
            ours = self._absolute(schedule)
        except ScheduleError:
            return None
        self._estimates[schedule] = sum(
            point.weight * estimate.seconds
            for point, (_, estimate) in zip(self._points, ours, strict=True)
        )
        if self._reference is None:
            try:
                self._reference = self._absolute(self._default)
            except ScheduleError:
                self._reference = ours
        rows = list(map(_compared, ours, self._reference))
        return np.stack(rows) if self._points[0].sizes else rows[0]

    def _absolute(self, schedule: Schedule) -> list[_Absolute]:
        """Return the features and the estimate of a schedule's nest, one pair per size point.

        The features are those of `nest_features`, without a comparison to the default schedule.
        """
        nest = self._lower(schedule)
        found = []
        for point in self._points:
            fixed = nest.at(dict(point.sizes)) if point.sizes else nest
            placed = placed_computes(fixed)
            estimate = estimate_nest(fixed, placed, self._machine, self._facts.threads)
            columns = nest_features(fixed, schedule.algorithm, self._facts, placed)
            found.append((columns, estimate))
        return found


def _compared(ours: _Absolute, reference: _Absolute) -> np.ndarray:
    """Return the values of all COLUMNS for a candidate.

    `ours` has the features and the estimate of the candidate's nest, `reference` those of the nest
    of the task's default schedule. The row has the candidate's features, then their differences
    from the default's features, then the candidate's estimated time and cycles relative to the
    default's.
    """
    (mine, estimate), (theirs, default) = ours, reference
    size = len(_NEST_COLUMNS)
    cycles = default.core_cycles
    compared = [log2(estimate.seconds / default.seconds)]
    compared += [log2(_LEAST_PART + part / cycles) for part in estimate.parts]
    return np.concatenate([mine, mine[:size] - theirs[:size], np.array(compared, dtype=np.float32)])


def _log(value: float) -> float:
    return log2(1.0 + value)


@memo(4096)
def _entered_bytes(statement: ComputeCosts) -> tuple[float, ...]:
    """Return, for each cache size in CACHE_BYTES, the bytes fetched into a cache of this size.

    Assumption: of the loops whose data fit into the cache, the outermost one fetches its data each
    time the program enters the loop. `estimate.traffic` counts more precisely, but the results are
    feature columns on which base models are trained, so this formula must not change.
    """
    around, footprints = statement.around, statement.footprints
    result = []
    for size in CACHE_BYTES:
        fitting = max(bisect_right(footprints, size) - 1, 0)
        entries = prod([loop.trips for loop in around[fitting:]])
        result.append(entries * footprints[fitting])
    return tuple(result)


def _describe(found: Sequence[PlacedCompute], number: int, facts: TargetFacts) -> list[float]:
    this = found[number]
    before, after, buffers = _own_columns(this.statement, facts.vector_registers)
    row = [*before, float(this.prefetches), *after]
    for use, columns in buffers:
        in_nest = after_others(use, found, number)
        row += columns if in_nest is use else _buffer(in_nest)
    return row + _NO_BUFFER * (BUFFERS - len(buffers))


@memo(2048)
def _own_columns(
    statement: ComputeCosts, registers: int
) -> tuple[list[float], list[float], list[tuple[BufferUse, list[float]]]]:
    """Compute the feature columns of a statement that do not depend on the rest of its nest.

    `registers` is the number of vector registers. Return three groups: the columns before the
    column `prefetches`, the columns after it, and the columns of each described tensor, computed as
    if no other statement preceded this one.
    """
    work = max(statement.vector_operations, 1.0)
    issued = max(sum(statement.counts), 1.0)
    loads = statement.vector_loads + statement.broadcast_loads + statement.scattered_loads
    outer: list[float] = []
    for place in (1, 2, 3):
        inside = place < len(statement.levels)
        level = statement.levels[place] if inside else None
        outer += [_log(level.trips), _log(level.footprint_bytes)] if level else [0.0, 0.0]
    held = statement.accumulators + statement.operands + 1
    before = [
        _log(statement.vector_operations),
        _log(statement.operations),
        *[count / issued for count in statement.counts],
        float(statement.lanes),
        statement.useful,
        float(statement.accumulators),
        float(statement.operands),
        held / registers,
        float(statement.points),
        _log(statement.reduce_trips),
        float(statement.reduce_unroll),
        _log(statement.outer_trips),
        float(statement.depth),
        statement.vector_loads / work,
        statement.broadcast_loads / work,
        statement.scattered_loads / work,
        loads / work,
        statement.stores / work,
        statement.scattered_stores / work,
        float(statement.aliased_rows),
        float(statement.peeled),
        float(statement.skips_padding),
        float(statement.is_reduction),
        float(statement.lane_reduction),
    ]
    after = [
        _log(statement.parallel_tiles),
        _log(statement.levels[0].footprint_bytes),
        *outer,
        *[_log(bytes_moved / work) for bytes_moved in _entered_bytes(statement)],
        *_intensities(statement),
    ]
    buffers = [(use, _buffer(use)) for use in uses_in_loops(statement, BUFFERS)]
    return before, after, buffers


def _intensities(statement: ComputeCosts) -> Iterable[float]:
    """Yield a statement's arithmetic intensity (operations per byte touched) at several depths.

    There are CURVE values, for evenly spaced depths: the first is for the register tile alone, the
    last for all loops around it. Values between two loops are interpolated linearly. All are base-2
    logarithms.
    """
    operations = statement.points * statement.lanes
    curve = []
    for level in statement.levels:
        operations *= level.trips
        curve.append(_log(operations / max(level.footprint_bytes, 1.0)))
    last = len(curve) - 1
    for point in range(CURVE):
        place = point * last / (CURVE - 1)
        low = int(place)
        high = min(low + 1, last)
        yield curve[low] + (place - low) * (curve[high] - curve[low])


def _buffer(use: BufferUse) -> list[float]:
    return [
        _log(use.bytes),
        _log(use.unique_bytes),
        _log(use.unique_lines),
        use.unique_bytes / (use.unique_lines * LINE_BYTES),
        float(use.reuse is Reuse.LOOP),
        float(use.reuse is Reuse.SERIAL),
        _log(use.distance_iterations),
        _log(use.distance_bytes),
        _log(use.reuse_count),
        _log(abs(use.lane_step) / use.element_bytes),
        float(use.is_read),
        float(use.is_written),
    ]


def _totals(nest: LoopNest, found: Sequence[ComputeCosts], order: Sequence[int]) -> list[float]:
    """Return the features that cover all statements of a nest; TOTAL_COLUMNS has their names.

    `order` has the positions of the statements in `found`, in decreasing order of their weight.
    """
    heaviest_first = [found[number] for number in order]
    totals = [*map(sum, zip(*[s.totals for s in heaviest_first], strict=True))]
    work = totals[0]
    shared = sum([b.bytes for b in nest.buffers if b.role is Role.SHARED])
    weights = sum([b.bytes for b in nest.buffers if b.role is Role.WEIGHT])
    return [
        *map(_log, totals),
        *[_log(sum(moved)) for moved in zip(*map(_entered_bytes, found), strict=True)],
        heaviest_first[0].vector_operations / work if work else 0.0,
        float(len(found)),
        float(len(nest.stages)),
        _log(sum([t.bytes for t in nest.scratch])),
        _log(shared),
        _log(weights),
    ]


@memo(256)
def _algorithm(name: str) -> tuple[float, ...]:
    """Hash an algorithm's name to ALGORITHM_BITS features, each 0 or 1.

    The hash is a CRC, because Python's `hash` of a string differs between processes.
    """
    digest = zlib.crc32(name.encode()) if name else 0
    return tuple(float(digest >> bit & 1) for bit in range(ALGORITHM_BITS))
