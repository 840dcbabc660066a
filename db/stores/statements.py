"""SQL statements for SQLite and PostgreSQL that SQLAlchemy implements per database."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from tilewright.db.models import Base

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

# Both databases bound the parameters of one statement (32,766 and 65,535).
_CHUNK = 400

_T = TypeVar("_T")


def upsert(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT statement in the dialect of the connection's database.

    With its methods `on_conflict_do_nothing` and `on_conflict_do_update`, it can handle conflicts.
    """
    return _insert(connection.dialect.name, table)


def _insert(dialect: str, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    match dialect:
        case "sqlite":
            return sqlite.insert(table)
        case "postgresql":
            # Imported late: it takes as long as the rest of the stores.
            from sqlalchemy.dialects import postgresql

            return postgresql.insert(table)
        case other:
            raise NotImplementedError(f"no upsert for {other}")


def table_of(row: type[Base]) -> sa.Table:
    """Return the table of a row class in `db.models`."""
    return cast(sa.Table, row.__table__)


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, except those that violate a unique constraint because they exist already.

    If several processes may insert the same rows, the caller must sort the rows by key. PostgreSQL
    waits for a concurrent insert of the same row, and a fixed order prevents deadlocks.
    """
    if rows:
        connection.execute(_insert_new(connection.dialect.name, table), rows)


def insert_returning(
    connection: sa.Connection,
    table: sa.Table,
    rows: Sequence[dict[str, Any]],
    columns: Sequence[sa.Column[Any]],
) -> Sequence[sa.Row[Any]]:
    """Insert rows, except those that violate a unique constraint because they exist already.

    Return `columns` of the inserted rows, in any order.
    """
    if not rows:
        return ()
    insert = _insert_new(connection.dialect.name, table).returning(*columns)
    return connection.execute(insert, rows).all()


@cache
def _insert_new(dialect: str, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    return _insert(dialect, table).on_conflict_do_nothing()


def one_at_a_time(connection: sa.Connection, what: str) -> None:
    """Acquire the lock named `what` until the transaction ends.

    The call waits while another transaction holds the lock. On SQLite nothing is done, because only
    one transaction writes at a time.
    """
    if connection.dialect.name == "postgresql":
        number = zlib.crc32(what.encode())
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(number)))


def chunks(values: Sequence[_T]) -> list[Sequence[_T]]:
    """Split values into chunks of at most 400, which fit into the IN list of one SQL statement."""
    return [values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK)]
