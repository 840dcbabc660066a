"""An index of workloads by structure, to find workloads that differ only in sizes.

If a workload has no record, the records of such similar workloads are used.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.engine import reading, writing
from tilewright.db.models import TrialRow, WorkloadRow, WorkloadShapeRow
from tilewright.db.stores.claim_rows import claims, is_confirmed
from tilewright.db.stores.statements import chunks, insert_new, table_of
from tilewright.tuner.protocol.measurement import Status

_shapes = table_of(WorkloadShapeRow)
_workloads = table_of(WorkloadRow)
_trials = table_of(TrialRow)

INDEXED_AT_ONCE = 500

LOOKED_AT = 1000
"""Number of workloads with a larger extent, nearest first, whose exact distances are computed. The
same number applies to workloads with a smaller extent."""


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """Properties of a workload, computed from its text.

    All properties are empty if this release cannot read the text.

    Attributes:
        structure: the workload without sizes: equal for workloads that differ only in sizes.
        family: equal for workloads that differ only in numbers such as scales (`Workload.family`).
        sizes: the sizes, which `structure` leaves out.
        operator: the operator that names the workload, such as "conv".
        name: a readable name, such as "conv 3x3 +relu 64x56x56".
    """

    structure: str = ""
    family: str = ""
    sizes: Sequence[int] = ()
    operator: str = ""
    name: str = ""


ShapeOf = Callable[[str], WorkloadShape]
"""A function that computes the shape of a workload from the workload's text."""


def distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Return how much two lists of sizes differ: the root mean square of the log2 of their ratios.

    The distance is infinite if the lists differ in length.
    """
    if len(one) != len(other):
        return math.inf
    squares = [math.log2(max(a, 1) / max(b, 1)) ** 2 for a, b in zip(one, other, strict=True)]
    return math.sqrt(statistics.fmean(squares)) if squares else 0.0


def extent(sizes: Sequence[int]) -> float:
    """Return the sum of the log2 of the sizes, by which a database index finds similar sizes.

    The extents of two lists of n sizes differ by at most n times their `distance`.
    """
    return math.fsum(math.log2(max(size, 1)) for size in sizes)


@dataclass(frozen=True, slots=True)
class Relative:
    """A workload that differs from a requested workload only in sizes, and has a served record.

    A served record is the tuning record that lookups return for a workload. Workloads of one family
    (`WorkloadShape.family`), in contrast, have equal sizes and differ in numbers such as scales.

    Attributes:
        workload_key: the key of the workload.
        sizes: the sizes, as in `WorkloadShape.sizes`.
    """

    workload_key: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The number of workloads with a served record for one operator, target and number of threads.

    A served record is the tuning record that lookups return for a workload.

    Attributes:
        operator: the operator; "" for workloads whose text this release cannot read.
        target_key, threads: the target and the number of threads of the records.
        workloads: the number of workloads.
    """

    operator: str
    target_key: str
    threads: int
    workloads: int


class ShapeStore:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def index(self, shape_of: ShapeOf, most: int | None = None) -> int:
        """Compute and store the `WorkloadShape` of each workload that has none stored.

        Return the number of stored shapes.

        Args:
            shape_of: computes the shape from a workload's text.
            most: stop when at least this many shapes were stored; None for no limit.
        """
        missing = (
            sa.select(_workloads.c.key, _workloads.c.text)
            .where(_workloads.c.key.not_in(sa.select(_shapes.c.workload_key)))
            .order_by(_workloads.c.key)
            .limit(INDEXED_AT_ONCE)
        )
        count = 0
        while most is None or count < most:
            with reading(self._engine) as connection:
                found = connection.execute(missing).all()
            if not found:
                break
            rows = []
            for row in found:
                shape = shape_of(row.text)
                named = {"operator": shape.operator, "name": shape.name}
                kin = {"structure": shape.structure, "family": shape.family}
                size = {"sizes": list(shape.sizes), "extent": extent(shape.sizes)}
                rows.append({"workload_key": row.key, **kin, **size, **named})
            with writing(self._engine) as connection:
                insert_new(connection, _shapes, rows)
            count += len(rows)
        return count

    def names(self, workload_keys: Collection[str]) -> Mapping[str, str]:
        """Return the readable names of workloads, by workload key.

        Workloads whose shape is not stored yet are left out.
        """
        found: dict[str, str] = {}
        with reading(self._engine) as connection:
            for some in chunks(sorted(set(workload_keys))):
                query = sa.select(_shapes.c.workload_key, _shapes.c.name)
                rows = connection.execute(query.where(_shapes.c.workload_key.in_(some)))
                found.update({row.workload_key: row.name for row in rows})
        return found

    def coverage(self) -> Sequence[Coverage]:
        """Count the workloads with a served record, by operator, target and number of threads.

        A served record is the tuning record that lookups return for a workload.
        """
        of = (_shapes.c.operator, claims.c.target_key, claims.c.threads)
        query = (
            sa.select(*of, sa.func.count(_shapes.c.workload_key.distinct()))
            .join(claims, claims.c.subject == _shapes.c.workload_key)
            .where(is_confirmed)
            .group_by(*of)
            .order_by(*of)
        )
        with reading(self._engine) as connection:
            return [Coverage(*row) for row in connection.execute(query)]

    def nearest(
        self,
        structure: str,
        sizes: Sequence[int],
        target_key: str,
        threads: int,
        numerics: str,
        most: int,
    ) -> list[tuple[float, Relative]]:
        """Find workloads with equal structure and similar sizes for which lookups return a record.

        Return at most `most` (distance, workload) pairs, nearest first. The record must have the
        given target, threads and numerics. Exact distances are computed only for a limited number
        of workloads, those with the most similar `extent`. A large difference of extents implies a
        large distance, so the omitted workloads are hardly nearer.
        """
        at = extent(sizes)
        served = sa.exists().where(
            claims.c.subject == _shapes.c.workload_key,
            claims.c.target_key == target_key,
            claims.c.threads == threads,
            claims.c.numerics == numerics,
            is_confirmed,
        )
        query = sa.select(_shapes.c.workload_key, _shapes.c.sizes).where(
            _shapes.c.structure == structure, served
        )
        sides = (
            query.where(_shapes.c.extent >= at).order_by(_shapes.c.extent),
            query.where(_shapes.c.extent < at).order_by(_shapes.c.extent.desc()),
        )
        with reading(self._engine) as connection:
            found = [
                Relative(row[0], tuple(row[1]))
                for side in sides
                for row in connection.execute(side.limit(LOOKED_AT))
            ]
        away = ((distance(sizes, each.sizes), each) for each in found)
        return heapq.nsmallest(most, away, key=lambda pair: (pair[0], pair[1].workload_key))

    def members(
        self, family: str, target_key: str, threads: int, numerics: str, most: int
    ) -> list[str]:
        """Return the keys of workloads of a family that have a tuning record, at most `most` keys.

        The workloads of a family differ only in numbers such as scales. The record must be one that
        lookups return for the given target, threads and numerics. The workload with the newest
        record comes first.
        """
        query = (
            sa.select(_shapes.c.workload_key)
            .join(claims, claims.c.subject == _shapes.c.workload_key)
            .where(
                _shapes.c.family == family,
                claims.c.target_key == target_key,
                claims.c.threads == threads,
                claims.c.numerics == numerics,
                is_confirmed,
            )
            .group_by(_shapes.c.workload_key)
            .order_by(sa.func.max(claims.c.serial).desc())
            .limit(most)
        )
        with reading(self._engine) as connection:
            return list(connection.execute(query).scalars())

    def times(
        self, workload_keys: Sequence[str], target_key: str, threads: int, numerics: str
    ) -> dict[str, dict[str, float]]:
        """Return the fastest time of each measured schedule, in seconds.

        The result maps workload keys to {schedule digest: seconds}. Only successful trials with
        this target, threads and numerics count. Withdrawn trials are left out.
        """
        found: dict[str, dict[str, float]] = {}
        fastest: Any = sa.func.min(_trials.c.run_seconds)
        with reading(self._engine) as connection:
            for some in chunks(list(workload_keys)):
                query = (
                    sa.select(_trials.c.workload_key, _trials.c.schedule_digest, fastest)
                    .where(
                        _trials.c.workload_key.in_(some),
                        _trials.c.target_key == target_key,
                        _trials.c.threads == threads,
                        _trials.c.numerics == numerics,
                        _trials.c.status == Status.OK.value,
                        _trials.c.withdrawn.is_(False),
                    )
                    .group_by(_trials.c.workload_key, _trials.c.schedule_digest)
                )
                for key, digest, seconds in connection.execute(query):
                    if seconds is not None:
                        found.setdefault(key, {})[digest] = seconds
        return found
