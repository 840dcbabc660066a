"""Opens a database, and defines two kinds of transaction: for writing and for reading.

On SQLite, a writing transaction is `BEGIN IMMEDIATE`: it acquires the write lock at the start, and
waits for it at most `busy_seconds`. With a plain `BEGIN`, the first write could fail although the
reads before it succeeded. On PostgreSQL both kinds run at READ COMMITTED and rely on row locks.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import event

from tilewright.db.errors import SchemaVersionError, StorageError, StorageKind
from tilewright.db.types import dump_json

_WRITING = "tilewright_writing"
_IDLE_SINCE = "tilewright_idle_since"

PING_SECONDS = 1.0
"""Idle seconds after which a connection to PostgreSQL is tested before use."""

# SQLSTATE of PostgreSQL -> kind: by code, else by class (its first two characters).
_POSTGRES_KINDS = {
    "53100": StorageKind.FULL,
    "53": StorageKind.UNREACHABLE,  # too many connections, out of memory
    "55": StorageKind.LOCKED,
    "40": StorageKind.LOCKED,  # deadlock, serialization failure
    "08": StorageKind.UNREACHABLE,
    "57": StorageKind.UNREACHABLE,  # the server shuts down
    "28": StorageKind.DENIED,
    "42501": StorageKind.DENIED,
    "25006": StorageKind.DENIED,  # read-only transaction
    "XX": StorageKind.CORRUPT,
}

_SQLITE_KINDS = {
    sqlite3.SQLITE_FULL: StorageKind.FULL,
    sqlite3.SQLITE_BUSY: StorageKind.LOCKED,
    sqlite3.SQLITE_LOCKED: StorageKind.LOCKED,
    sqlite3.SQLITE_READONLY: StorageKind.DENIED,
    sqlite3.SQLITE_PERM: StorageKind.DENIED,
    sqlite3.SQLITE_CANTOPEN: StorageKind.DENIED,
    sqlite3.SQLITE_CORRUPT: StorageKind.CORRUPT,
    sqlite3.SQLITE_NOTADB: StorageKind.CORRUPT,
}

_SENTENCES = {
    StorageKind.FULL: "the disk of the database is full",
    StorageKind.LOCKED: "the database is locked by another process",
    StorageKind.UNREACHABLE: "the database cannot be reached",
    StorageKind.DENIED: "the database may not be opened or written",
    StorageKind.CORRUPT: "the database is damaged, or no database",
    StorageKind.OTHER: "the database refused",
}


def open_engine(url: str, *, busy_seconds: float = 15.0, pool_size: int = 10) -> sa.Engine:
    """Create an engine for "sqlite:////path/file.db" or "postgresql://user:password@host/name".

    Missing SQLite files and folders are created, readable by the owner only. The schema is not
    migrated: call `db.migrate.upgrade(engine)`.

    Args:
        url: the address of the database, in one of these forms.
        busy_seconds: the longest wait for a lock or for a pooled connection.
        pool_size: number of pooled connections. Up to twice as many may be open.

    Raises:
        StorageError: if the URL is invalid or of another kind of database, the server cannot be
            reached, the folder is not writable, or SQLite is in memory.
    """
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise StorageError(f"'{url}' is not a database URL") from error
    match parsed.get_backend_name():
        case "sqlite":
            return _open_sqlite(parsed, busy_seconds, pool_size)
        case "postgresql":
            return _open_postgresql(parsed, busy_seconds, pool_size)
        case other:
            raise StorageError(f"database kind '{other}' is not supported: sqlite or postgresql")


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a writing transaction: it commits at the end, and rolls back on any exception.

    Inside a `together` context, `writing` opens a savepoint of the outer transaction instead.
    Raises StorageError if the disk is full, or the database is locked or unreachable.
    """
    joined = _joined_in(engine)
    if joined is not None:
        with translated_errors(engine), joined.begin_nested():
            yield joined
        return
    with translated_errors(engine), engine.connect() as connection:
        write_immediately(connection)
        with connection.begin():
            yield connection


@contextmanager
def together(engine: sa.Engine) -> Iterator[None]:
    """Run all reads and writes of this thread within the context in one transaction.

    All stores that use this engine take part. The transaction commits at the end of the context; an
    exception rolls everything back. Keep the context short: on SQLite no other transaction can
    write meanwhile.
    """
    with writing(engine) as connection:
        token = _joined.set((engine, connection, threading.get_ident()))
        try:
            yield
        finally:
            _joined.reset(token)


_joined: ContextVar[tuple[sa.Engine, sa.Connection, int] | None] = ContextVar(
    "tilewright_joined", default=None
)


def _joined_in(engine: sa.Engine) -> sa.Connection | None:
    """Return the database connection of the `together` context that this thread is in.

    All reads and writes inside `with together(engine)` run in one transaction on this connection.
    Return None outside such a context, or if the context belongs to another engine.
    """
    joined = _joined.get()
    if joined is None or joined[0] is not engine or joined[2] != threading.get_ident():
        return None
    return joined[1]


def write_immediately(connection: sa.Connection) -> None:
    """Make later transactions of this connection take SQLite's write lock when they begin."""
    connection.execution_options(**{_WRITING: True})


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that only reads. On SQLite, all its reads see one snapshot.

    On PostgreSQL each statement sees all earlier commits, with or without a transaction. So no
    transaction is begun, which saves two round trips to the server.

    Raises:
        StorageError: if the database is locked, unreachable or damaged.
    """
    joined = _joined_in(engine)
    if joined is not None:
        with translated_errors(engine):
            yield joined
        return
    with translated_errors(engine), engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            yield connection.execution_options(isolation_level="AUTOCOMMIT")
        else:
            with connection.begin():
                yield connection


class OwnConnection:
    """A database connection outside the engine's pool, in autocommit mode.

    Attributes:
        driver: the connection object of the database driver (sqlite3 or psycopg).
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._held = engine.connect()
        self._held.detach()
        self.driver = cast(Any, self._held.connection.dbapi_connection)
        if engine.dialect.name == "postgresql":  # SQLite's connections do not begin automatically
            self.driver.autocommit = True

    def close(self) -> None:
        """Close the connection."""
        self._held.close()


def ping(engine: sa.Engine) -> None:
    """Check that the database responds and that its schema was created.

    Raises:
        SchemaVersionError: if the database was never migrated.
        StorageError: if the database does not respond.
    """
    with reading(engine) as connection:
        connection.execute(sa.text("SELECT version_num FROM alembic_version"))


@contextmanager
def translated_errors(engine: sa.Engine) -> Iterator[None]:
    """Turn database errors caused by the environment, such as a full disk, into StorageError.

    A violated constraint or invalid SQL is a bug: its error passes unchanged.
    """
    try:
        yield
    except sa.exc.TimeoutError as error:
        raise StorageError(
            f"no free connection to {_name(engine)} in time", StorageKind.LOCKED
        ) from error
    except sa.exc.DBAPIError as error:
        raised = _translate(engine, error)
        if raised is error:
            raise
        raise raised from error


def _translate(engine: sa.Engine, error: sa.exc.DBAPIError) -> Exception:
    original = error.orig
    detail = str(original).strip().splitlines()[0] if str(original).strip() else repr(original)
    if isinstance(original, sqlite3.Error):
        # Constraint violations carry SQLITE_CONSTRAINT; older drivers' errors carry no code.
        code = getattr(original, "sqlite_errorcode", None)
        if "no such table" in detail or "no such column" in detail:
            return SchemaVersionError(f"{_name(engine)} is not migrated: {detail}")
        if code is None or not isinstance(original, sqlite3.DatabaseError):
            return error
        if isinstance(original, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            return error
        kind = _SQLITE_KINDS.get(code & 0xFF, StorageKind.OTHER)
        return StorageError(f"{_SENTENCES[kind]}: {_name(engine)}: {detail}", kind)
    state: str | None = getattr(original, "sqlstate", None)
    if state in ("42P01", "42703"):
        return SchemaVersionError(f"{_name(engine)} is not migrated: {detail}")
    found: StorageKind | None
    if state is None:
        # A connection that was never made, or broke, has no SQLSTATE.
        operational = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
        found = StorageKind.UNREACHABLE if operational else None
    else:
        found = _POSTGRES_KINDS.get(state) or _POSTGRES_KINDS.get(state[:2])
    if found is None:
        return error
    return StorageError(f"{_SENTENCES[found]}: {_name(engine)}: {detail}", found)


def _name(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _open_sqlite(url: sa.URL, busy_seconds: float, pool_size: int) -> sa.Engine:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise StorageError(
            f"'{url}' names no file: an SQLite database in memory cannot be shared between"
            " processes, and file: addresses are not supported"
        )
    path = Path(url.database)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise os_storage_error(error, path) from error
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"timeout": busy_seconds},
        json_serializer=dump_json,
        poolclass=sa.QueuePool,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=busy_seconds,
    )

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions: `_begin` does.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        # An acknowledged measurement survives a power cut, not only a killed process.
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        immediate = connection.get_execution_options().get(_WRITING, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    _use_wal(path, engine, busy_seconds)
    return engine


def _use_wal(path: Path, engine: sa.Engine, busy_seconds: float) -> None:
    """Switch the SQLite file permanently to write-ahead logging: readers never wait for writers.

    SQLite's busy timeout does not cover this switch. So if another process switches the file at the
    same time, the function itself retries for `busy_seconds`.
    """
    deadline = time.monotonic() + busy_seconds
    with translated_errors(engine):
        while True:
            connection = None
            try:
                connection = sqlite3.connect(path, timeout=busy_seconds)
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > deadline:
                    raise sa.exc.OperationalError("PRAGMA journal_mode=WAL", {}, error) from error
                time.sleep(0.01)
            except sqlite3.DatabaseError as error:
                raise sa.exc.DatabaseError("PRAGMA journal_mode=WAL", {}, error) from error
            finally:
                if connection is not None:
                    connection.close()


def _open_postgresql(url: sa.URL, busy_seconds: float, pool_size: int) -> sa.Engine:
    engine = sa.create_engine(
        url.set(drivername="postgresql+psycopg"),
        connect_args={
            "connect_timeout": max(2, int(busy_seconds)),
            "options": f"-c lock_timeout={int(busy_seconds * 1000)} -c timezone=UTC",
        },
        json_serializer=dump_json,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=busy_seconds,
    )
    _ping_after_a_pause(engine)
    with reading(engine) as connection:
        connection.execute(sa.select(1))
    return engine


def _ping_after_a_pause(engine: sa.Engine) -> None:
    """Make the pool test each connection that was idle for PING_SECONDS before it is used again.

    A restart of the server breaks idle connections; a broken one is replaced. More recently used
    connections are not tested, because each test costs one more round trip per transaction.
    """

    @event.listens_for(engine, "checkin")
    def _lies(_connection: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _taken(connection: Any, record: Any, _fairy: Any) -> None:
        idle_since = record.info.get(_IDLE_SINCE)
        if idle_since is None or time.monotonic() - idle_since < PING_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error  # the pool makes a new one


def os_storage_error(error: OSError, path: Path) -> StorageError:
    """Convert an error of the file system to a StorageError that names the path."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StorageError(f"the disk is full: '{path}' was not written", StorageKind.FULL)
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOTDIR | errno.EISDIR:
            reason = StorageKind.DENIED
        case _:
            reason = StorageKind.OTHER
    return StorageError(f"'{path}' cannot be used: {error.strerror or error}", reason)
