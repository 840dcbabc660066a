"""Turns: locks for periodic work that only one process does at a time.

A turn is a row that its holder renews. Unlike an advisory lock of PostgreSQL, it works on both
databases, and records when its holder was last seen.
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
"""The turn of tuners that look for jobs. While a tuner has it, jobs are claimed."""

TERM_SECONDS = 6.0
"""Seconds after which another process may take a turn over from a dead holder."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Proof that the caller holds a turn.

    Attributes:
        away_seconds: the time for which no process held the turn before; 0 without such a gap.
    """

    away_seconds: float


class SweepStore:
    """Stores turns by name. `clock` is for tests; without one, times are the database's."""

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._now = instant(clock)

    def take(self, name: str, holder: str) -> Turn | None:
        """Take or renew a turn; None if another holder has it.

        A holder that calls again within TERM_SECONDS keeps the turn. Most calls only read: a turn
        is renewed after half of this time.
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
        """Release a turn if the holder has it.

        The method `age` then returns None, as for a turn that was never taken.
        """
        with writing(self._engine) as connection:
            mine = sa.and_(_sweeps.c.name == name, _sweeps.c.holder == holder)
            connection.execute(sa.delete(_sweeps).where(mine))

    def age(self, name: str) -> float | None:
        """Return the seconds since a process last held the turn; None if it is unused.

        The value is exact to half of TERM_SECONDS.
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
