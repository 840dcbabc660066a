"""Two clocks: the database's, for times that several processes compare, and the local one.

Times in the database are seconds since the epoch, UTC, float64. If one machine sets a deadline and
another checks it, both use the database's clock. So the machines' own clocks may differ. Tests can
replace both clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

Clock = Callable[[], float]

system_clock: Clock = time.time

Instant = Callable[[], sa.ColumnElement[float]]
"""A function that returns an SQL expression for the current time, in seconds since the epoch."""


class database_now(FunctionElement[float]):
    """An SQL expression for the seconds since the epoch by the database's clock.

    Its value is constant during a statement, so that an index on a deadline can be used.
    """

    type = sa.Double()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgresql(*_: Any, **__: Any) -> str:
    return "CAST(EXTRACT(epoch FROM statement_timestamp()) AS double precision)"


def instant(clock: Clock | None) -> Instant:
    """Return a function that creates an SQL expression for the present time.

    If `clock` is None, the expression reads the database's clock. Otherwise each call of the
    returned function reads `clock`, and returns that time as a constant expression.
    """
    if clock is None:
        return database_now
    return lambda: sa.literal(clock(), sa.Double())
