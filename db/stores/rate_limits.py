"""Rate limits as token buckets in the database, so that they hold across replicas of the service.

A bucket is one row. Taking a token is one SQL statement that reads the database's clock. So
concurrent replicas take tokens one after the other, and their own clocks may be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from tilewright.db.clock import Clock, instant
from tilewright.db.engine import reading, writing
from tilewright.db.models import RateLimitRow
from tilewright.db.stores.statements import table_of, upsert

_buckets = table_of(RateLimitRow)


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit.

    Attributes:
        burst: the largest number of requests at once, 1 or more: the capacity of the bucket.
        per_second: requests per second in the long run.
    """

    burst: float
    per_second: float


class RateLimitStore:
    """Stores token buckets by name. A new bucket is full."""

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._now = instant(clock)

    def take(self, bucket: str, rate: Rate) -> float:
        """Take one token from a bucket. Return 0.0, or the seconds until a token is available.

        If no token is available, the bucket does not change.
        """
        now = self._now()
        gone = now - _buckets.c.at
        # a clock that was set back does not fill the bucket
        filled = _buckets.c.level + sa.case((gone > 0.0, gone), else_=0.0) * rate.per_second
        level = sa.case((filled > rate.burst, rate.burst), else_=filled)
        with writing(self._engine) as connection:
            taken = (
                upsert(connection, _buckets)
                .values(bucket=bucket, level=rate.burst - 1.0, at=now)
                .on_conflict_do_update(
                    index_elements=[_buckets.c.bucket],
                    set_={"level": level - 1.0, "at": now},
                    where=level >= 1.0,
                )
                .returning(_buckets.c.level)
            )
            if connection.execute(taken).first() is not None:
                return 0.0
            missing = sa.select(1.0 - level).where(_buckets.c.bucket == bucket)
            short = connection.execute(missing).scalar()
        return max(0.0, float(short or 0.0)) / rate.per_second

    def remove_full(self, idle_seconds: float) -> int:
        """Delete buckets that were not used for `idle_seconds`. Return their number.

        The time must be long enough to fill every bucket. A deleted bucket is created again full,
        so the deletion has no effect on the limit.
        """
        idle = _buckets.c.at < self._now() - idle_seconds
        with reading(self._engine) as connection:  # mostly nothing is due: take no write lock
            if (
                connection.execute(sa.select(_buckets.c.bucket).where(idle).limit(1)).first()
                is None
            ):
                return 0
        with writing(self._engine) as connection:
            return connection.execute(sa.delete(_buckets).where(idle)).rowcount
