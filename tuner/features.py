"""Features of a candidate for the cost model: named columns, computed from its loop nest.

The heaviest statement and the next one are described in full, the rest is summed. Everything that
spans orders of magnitude is a base-2 logarithm. Columns that compare a candidate with its task's
default schedule make tasks of different size comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2

import numpy as np

from compiler.errors import ScheduleError
from compiler.loops.expr import Role
from compiler.loops.nest import LoopNest
from compiler.schedule.schedule import Schedule
from tuner.statements import Statement, statements

FEATURE_VERSION = 1
"""Raise it when a column's meaning changes; models saved with another version are refused."""

CACHE_BYTES = (32 << 10, 256 << 10, 1 << 20, 8 << 20)
"""Sizes at which traffic is counted: they bracket the caches of common CPUs, so that one set of
columns serves all devices; the model learns which of them matter."""

_STATEMENT_COLUMNS = (
    "vector_operations",
    "operations",
    "lanes",
    "useful_lanes",
    "accumulators",
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
    "parallel_tiles",
    "tile_bytes",
    "level1_trips",
    "level1_bytes",
    "level2_trips",
    "level2_bytes",
    "level3_trips",
    "level3_bytes",
    *(f"traffic_{size >> 10}k_per_operation" for size in CACHE_BYTES),
)

_TOTAL_COLUMNS = (
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
    "machine_scheduler",
)

_RELATIVE = tuple(name for name in _TOTAL_COLUMNS if name.startswith("total_"))

COLUMNS: tuple[str, ...] = (
    *(f"main_{name}" for name in _STATEMENT_COLUMNS),
    *(f"second_{name}" for name in _STATEMENT_COLUMNS),
    *_TOTAL_COLUMNS,
    *(f"relative_{name.removeprefix('total_')}" for name in _RELATIVE),
)
"""Names of the columns of a feature row, in order."""

_WIDTH = len(_STATEMENT_COLUMNS)
_ABSOLUTE = 2 * _WIDTH + len(_TOTAL_COLUMNS)


def nest_features(nest: LoopNest) -> np.ndarray:
    """The columns that a nest has by itself: all but the `relative_` ones. float32, one row."""
    found = sorted(statements(nest), key=_weight, reverse=True)
    row = np.zeros(_ABSOLUTE, dtype=np.float32)
    for place, statement in enumerate(found[:2]):
        row[place * _WIDTH : (place + 1) * _WIDTH] = _describe(statement)
    row[2 * _WIDTH :] = _totals(nest, found)
    return row


class FeatureExtractor:
    """Features of the candidates of one task, remembered by schedule.

    `lower` gives the loop nest of a schedule and raises ScheduleError for one that does not fit.
    """

    def __init__(self, lower: Callable[[Schedule], LoopNest], default: Schedule) -> None:
        self._lower = lower
        self._default = default
        self._rows: dict[Schedule, np.ndarray | None] = {}
        self._reference: np.ndarray | None = None

    def row(self, schedule: Schedule) -> np.ndarray | None:
        """One row over COLUMNS, or None for a schedule that cannot be lowered."""
        if schedule not in self._rows:
            self._rows[schedule] = self._compute(schedule)
        return self._rows[schedule]

    def rows(self, schedules: list[Schedule]) -> tuple[list[Schedule], np.ndarray]:
        """The schedules that can be lowered, and their rows: (number, len(COLUMNS)), float32."""
        kept, rows = [], []
        for schedule in schedules:
            row = self.row(schedule)
            if row is not None:
                kept.append(schedule)
                rows.append(row)
        if not rows:
            return [], np.zeros((0, len(COLUMNS)), dtype=np.float32)
        return kept, np.stack(rows)

    def _compute(self, schedule: Schedule) -> np.ndarray | None:
        try:
            absolute = nest_features(self._lower(schedule))
        except ScheduleError:
            return None
        if self._reference is None:
            try:
                self._reference = nest_features(self._lower(self._default))
            except ScheduleError:
                self._reference = absolute
        first = 2 * _WIDTH
        ours = absolute[first : first + len(_RELATIVE)]
        theirs = self._reference[first : first + len(_RELATIVE)]
        return np.concatenate([absolute, ours - theirs])


def _weight(statement: Statement) -> float:
    return statement.vector_operations + statement.vector_loads + statement.broadcast_loads


def _log(value: float) -> float:
    return log2(1.0 + value)


def _traffic(statement: Statement, cache_bytes: int) -> float:
    """Bytes that come from beyond a cache of this size.

    The outermost loop whose footprint fits is loaded once for each time that it is entered.
    """
    levels = statement.levels
    fitting = 0
    for number, level in enumerate(levels):
        if level.footprint_bytes <= cache_bytes:
            fitting = number
    entries = 1.0
    for level in levels[fitting + 1 :]:
        entries *= level.trips
    return entries * levels[fitting].footprint_bytes


def _describe(statement: Statement) -> list[float]:
    work = max(statement.vector_operations, 1.0)
    loads = statement.vector_loads + statement.broadcast_loads + statement.scattered_loads
    outer: list[float] = []
    for number in (1, 2, 3):
        inside = number < len(statement.levels)
        level = statement.levels[number] if inside else None
        outer += [_log(level.trips), _log(level.footprint_bytes)] if level else [0.0, 0.0]
    return [
        _log(statement.vector_operations),
        _log(statement.operations),
        float(statement.lanes),
        statement.useful,
        float(statement.accumulators),
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
        _log(statement.parallel_tiles),
        _log(statement.levels[0].footprint_bytes),
        *outer,
        *(_log(_traffic(statement, size) / work) for size in CACHE_BYTES),
    ]


def _totals(nest: LoopNest, found: list[Statement]) -> list[float]:
    work = sum(s.vector_operations for s in found)
    shared = sum(b.bytes for b in nest.buffers if b.role is Role.SHARED)
    weights = sum(b.bytes for b in nest.buffers if b.role is Role.WEIGHT)
    return [
        _log(work),
        _log(sum(s.vector_loads + s.broadcast_loads for s in found)),
        _log(sum(s.scattered_loads + s.scattered_stores for s in found)),
        _log(sum(s.stores for s in found)),
        *(_log(sum(_traffic(s, size) for s in found)) for size in CACHE_BYTES),
        found[0].vector_operations / work if work else 0.0,
        float(len(found)),
        float(len(nest.stages)),
        _log(sum(t.bytes for t in nest.scratch)),
        _log(shared),
        _log(weights),
        float(nest.machine_scheduler),
    ]
