"""Opening a database, and the two kinds of transaction.

A writing transaction is `BEGIN IMMEDIATE` on SQLite: it takes the write lock at once and waits
for it at most `busy_seconds`, where a deferred one would fail half-way. On PostgreSQL both kinds
run at READ COMMITTED and rely on row locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa


def open_engine(url: str, *, busy_seconds: float = 15.0, pool_size: int = 10) -> sa.Engine:
    """An engine for "sqlite:////path/file.db" or "postgresql://user:password@host/name".

    Makes the folder of an SQLite file if it is missing, owner-only. Does not migrate: call
    `db.migrate.upgrade(engine)`. Raises StorageError (no such server, folder not writable,
    unknown kind of database, in-memory SQLite).
    """
    raise NotImplementedError


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that writes: commits at the end, rolls back on any exception.

    Raises StorageError for a full disk, a locked or unreachable database.
    """
    raise NotImplementedError
    yield


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that only reads: one snapshot on SQLite. Raises StorageError."""
    raise NotImplementedError
    yield
