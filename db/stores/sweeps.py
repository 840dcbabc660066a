"""Locks with a time limit for periodic work that only one process should do.

Such a lock is called a turn: a row that its holder renews. Unlike an advisory lock of PostgreSQL,
it works on both databases, and the row shows when its holder last renewed it.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from tilewright.db.clock import Clock, instant
from tilewright.db.engine import reading, writing
from tilewright.db.models import SweepRow
from tilewright.db.stores.statements import table_of, upsert

_sweeps = table_of(SweepRow)

CLAIMS = "claims"
"""Name of the lock that a tuner process renews while it looks for jobs. The age of the lock shows
how long no tuner has looked."""

TERM_SECONDS = 6.0
"""Seconds until a lock expires, unless its holder renews it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Shows that the caller holds the lock on some periodic work.

    Attributes:
        away_seconds: seconds for which no process held the lock before the caller acquired it; 0 if
            this was less than TERM_SECONDS.
    """

    away_seconds: float


class SweepStore:
    """Stores turns: locks on periodic work, by name.

    Times come from the database's clock. Tests may pass another `clock`.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._now = instant(clock)

    def take(self, name: str, holder: str) -> Turn | None:
        """Acquire or renew the lock `name` for `holder`. Return None if another holder has it.

        The lock expires after TERM_SECONDS, so the holder must call again before that. Most calls
        only read, because a lock is renewed only after half of this time.
        """
        with reading(self._engine) as connection:
            row = connection.execute(self._query(name)).first()
        if row is not None and row.left > 0 and row.holder != holder:
            return None
        if row is not None and row.left > TERM_SECONDS / 2:
            return Turn(0.0)
        with writing(self._engine) as connection:
            row = connection.execute(self._query(name).with_for_update()).first()
            if row is not None and row.left > 0 and row.holder != holder:
                return None
            now = self._now()
            values = {"holder": holder, "until": now + TERM_SECONDS, "swept_at": now}
            made = upsert(connection, _sweeps).values(name=name, **values)
            connection.execute(
                made.on_conflict_do_update(
                    index_elements=[_sweeps.c.name],
                    set_=values,
                    # of two concurrent inserts, the second one finds the row of the first
                    where=sa.or_(_sweeps.c.holder == holder, _sweeps.c.until <= now),
                )
            )
            mine = connection.execute(self._query(name)).one()
        if mine.holder != holder:
            return None
        away = 0.0 if row is None or row.left > 0 else row.age
        return Turn(away if away > TERM_SECONDS else 0.0)

    def leave(self, name: str, holder: str) -> None:
        """Release the lock `name` if `holder` has it. `age` then returns None."""
        with writing(self._engine) as connection:
            mine = sa.and_(_sweeps.c.name == name, _sweeps.c.holder == holder)
            connection.execute(sa.delete(_sweeps).where(mine))

    def age(self, name: str) -> float | None:
        """Return the seconds since the lock `name` was last renewed.

        A lock that a live holder renews can be half of TERM_SECONDS old (see `take`). Return None
        if the lock was never acquired, or was released.
        """
        with reading(self._engine) as connection:
            row = connection.execute(self._query(name)).first()
        return None if row is None else max(0.0, float(row.age))

    def _query(self, name: str) -> sa.Select[tuple[str, float, float]]:
        now = self._now()
        return sa.select(
            _sweeps.c.holder,
            (_sweeps.c.until - now).label("left"),
            (now - _sweeps.c.swept_at).label("age"),
        ).where(_sweeps.c.name == name)
