"""Counts and ages for the service's metrics, computed over the whole database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from tilewright.db.clock import Clock, instant
from tilewright.db.engine import reading
from tilewright.db.models import LeaseRow, RequestRow, TrialRow
from tilewright.db.stores.requests import RequestState
from tilewright.db.stores.statements import table_of

_leases = table_of(LeaseRow)
_requests = table_of(RequestRow)
_trials = table_of(TrialRow)


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts and ages for the service's metrics.

    Attributes:
        oldest_lease: age of the oldest live lease in seconds; 0 without a live lease.
        oldest_queued: age of the oldest queued request in seconds; 0 without a queued request.
        trials: number of trials ever stored, including deleted ones.
        ended: number of leases that ended in the last hour, by outcome and blame ("" for no blame).
    """

    oldest_lease: float  # of the live leases
    oldest_queued: float
    trials: int  # ever stored, including deleted ones
    ended: Mapping[tuple[str, str], int]  # leases of the last hour by outcome and blame ("": none)


class GaugeStore:
    """Computes metrics with SQL queries over whole tables. A `clock` is passed only by tests."""

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._now = instant(clock)

    def read(self) -> Figures:
        """Compute the present values of the metrics.

        Raises:
            StorageError: if the database fails.
        """
        now = self._now()
        lease = sa.select(now - sa.func.min(_leases.c.taken_at)).where(_leases.c.ended_at.is_(None))
        queued = sa.select(now - sa.func.min(_requests.c.created_at)).where(
            _requests.c.state == RequestState.QUEUED.value
        )
        ended = (
            sa.select(_leases.c.outcome, _leases.c.blame, sa.func.count())
            .where(_leases.c.ended_at > now - 3600.0)
            .group_by(_leases.c.outcome, _leases.c.blame)
        )
        with reading(self._engine) as connection:
            return Figures(
                oldest_lease=max(0.0, connection.execute(lease).scalar() or 0.0),
                oldest_queued=max(0.0, connection.execute(queued).scalar() or 0.0),
                # serials are given in order and never again: the last one counts them all
                trials=connection.execute(sa.select(sa.func.max(_trials.c.serial))).scalar() or 0,
                ended={
                    (outcome or "", blame or ""): count
                    for outcome, blame, count in connection.execute(ended)
                },
            )
