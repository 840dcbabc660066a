"""Invalidation of cached lookups of records and models, across processes.

A transaction that changes served records or models adds their keys to the table `lookup_changes`,
which keeps the newest 10,000 rows. Before a cache answers a query, it reads the rows added since
its last read, and drops the entries with these keys. So a cached result reflects all commits that
precede the query.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import anyio.to_thread
import sqlalchemy as sa
from anyio import CapacityLimiter

from tilewright.db.engine import OwnConnection, reading, translated_errors
from tilewright.db.models import LookupChangeRow
from tilewright.db.stores.statements import one_at_a_time, table_of

if TYPE_CHECKING:
    from psycopg import AsyncConnection

KEPT = 10_000
"""Number of the newest change rows that are kept. A reader that is further behind treats all its
cached values as outdated."""

_CONNECT_SECONDS = 10

_changes = table_of(LookupChangeRow)

_NEWEST = "SELECT coalesce(max(serial), 0) FROM lookup_changes"
_SINCE = "SELECT serial, key FROM lookup_changes WHERE serial > {} ORDER BY serial"


def invalidate_lookups(connection: sa.Connection, keys: Iterable[str]) -> None:
    """Make the lookup caches of all processes drop their entries of these keys.

    The keys of workloads or models are added to the table `lookup_changes`. The caches see them
    when the connection's transaction commits.
    """
    named = sorted(set(keys))
    if not named:
        return
    # serialised, so that a reader of a number has seen all smaller numbers
    one_at_a_time(connection, "lookup changes")
    connection.execute(sa.insert(_changes), [{"key": key} for key in named])
    newest = sa.select(sa.func.max(_changes.c.serial)).scalar_subquery()
    connection.execute(sa.delete(_changes).where(_changes.c.serial <= newest - KEPT))


class LookupChanges(Protocol):
    """Reads the keys of workloads and models whose entries in lookup caches are outdated.

    Use each instance in one event loop only.
    """

    def unchanged(self) -> bool:
        """Whether it is certain that no key has been invalidated since the last `read`.

        The call never waits: if the answer is not known at once, it returns False.
        """

    async def read(self) -> Collection[str] | None:
        """Return the keys that were invalidated since the last call. Calls must not overlap.

        None means that every cached entry may be invalid. The result is None at the first call, at
        the first call after a connection broke, and if more keys changed than the table keeps.

        Raises:
            StorageError: if the database fails.
        """

    async def close(self) -> None:
        """Close the database connection."""


def open_changes(engine: sa.Engine) -> LookupChanges:
    """Create a reader of the keys whose entries in lookup caches are outdated.

    The keys are those of changed workloads and models; transactions add them to a table. The first
    `read` opens a connection.
    """
    return PostgresChanges(engine) if engine.dialect.name == "postgresql" else SqliteChanges(engine)


class _Rows:
    """A reader's position in `lookup_changes`: the serial number of the last row read."""

    def __init__(self) -> None:
        self.last = 0

    def keys(self, rows: Collection[tuple[int, str]]) -> Collection[str] | None:
        """Return the keys of newly read rows, and move the position to the last of these rows.

        `rows` are (serial number, key) pairs in ascending order. Return None if the table may have
        deleted rows after the old position before they were read.
        """
        if not rows:
            return ()
        serials, keys = zip(*rows, strict=True)
        behind, self.last = serials[-1] - self.last, serials[-1]
        return set(keys) if behind <= KEPT else None


class SqliteChanges:
    """Reads which workloads and models have outdated entries in lookup caches, on SQLite.

    Transactions add the keys of changed workloads and models to a table. `unchanged` compares
    `PRAGMA data_version`, which changes when another connection commits. So it reads no table.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._own: OwnConnection | None = None
        self._version: int | None = None
        self._rows = _Rows()
        self._limiter = CapacityLimiter(1)

    def unchanged(self) -> bool:
        return self._version is not None and self._version == self._version_now()

    async def read(self) -> Collection[str] | None:
        anew, version, rows = await anyio.to_thread.run_sync(self._read, limiter=self._limiter)
        # set only after the read: until then `unchanged` must return False
        self._version = version
        if anew:
            self._rows.last = rows[0][0]
            return None
        return self._rows.keys(rows)

    async def close(self) -> None:
        if self._own is not None:
            self._own.close()
        self._own = self._version = None

    def _read(self) -> tuple[bool, int | None, list[Any]]:
        """Read the new rows of `lookup_changes`, in a worker thread.

        Return whether the call opened the connection, the file's data version before the read (None
        if the file is locked), and the rows as (serial, key). If the call opened the connection,
        the only row is (newest serial,), from which the next call continues.
        """
        with translated_errors(self._engine):
            anew = self._own is None
            if self._own is None:
                self._own = OwnConnection(self._engine)
                # the event loop reads the version, and must not wait for a lock on the file
                self._own.driver.execute("PRAGMA busy_timeout=0")
            version = self._version_now()  # first: rows committed meanwhile are read once more
            with reading(self._engine) as connection:
                if anew:
                    found = connection.exec_driver_sql(_NEWEST)
                else:
                    found = connection.exec_driver_sql(_SINCE.format("?"), (self._rows.last,))
                return anew, version, [tuple(row) for row in found]

    def _version_now(self) -> int | None:
        """Return the file's data version, which changes with each commit of another connection.

        Return None if the file is locked.
        """
        own = self._own
        try:
            if own is not None:
                return int(own.driver.execute("PRAGMA data_version").fetchone()[0])
        except self._engine.dialect.loaded_dbapi.Error:
            pass  # the next read of the rows raises the reason
        return None


class PostgresChanges:
    """Reads which workloads and models have outdated entries in lookup caches, on PostgreSQL.

    Transactions add the keys of changed workloads and models to a table. The object reads new keys
    asynchronously, over a connection of its own.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._own: AsyncConnection[Any] | None = None
        self._rows = _Rows()

    def unchanged(self) -> bool:
        return False

    async def read(self) -> Collection[str] | None:
        with translated_errors(self._engine):
            try:
                if self._own is None:
                    self._own = await self._connected()
                    self._rows.last = (await self._all(_NEWEST, ()))[0][0]
                    return None
                return self._rows.keys(await self._all(_SINCE.format("%s"), (self._rows.last,)))
            except self._engine.dialect.loaded_dbapi.Error as error:
                await self.close()
                raise sa.exc.OperationalError(_SINCE, {}, error) from error

    async def _connected(self) -> AsyncConnection[Any]:
        from psycopg import AsyncConnection

        _, options = self._engine.dialect.create_connect_args(self._engine.url)
        return await AsyncConnection.connect(
            **options, autocommit=True, connect_timeout=_CONNECT_SECONDS
        )

    async def _all(self, query: str, values: tuple[int, ...]) -> list[Any]:
        assert self._own is not None
        return await (await self._own.execute(query, values)).fetchall()

    async def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            await own.close()
