"""Notices between processes: a transaction publishes topics, and its commit wakes the waiters.

On PostgreSQL, notices use LISTEN and NOTIFY. SQLite has neither. There a transaction adds a row to
the table `notices`, which keeps the newest 1000 rows. One poller per process detects that the file
has changed (`PRAGMA data_version`, which reads no table) and reads the new rows.

A notice may be lost, for example if a connection breaks. So waiters also query `topic_states` from
time to time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from tilewright.db.engine import OwnConnection, reading, translated_errors
from tilewright.db.models import JobRow, NoticeRow, RequestRow, WorkerRow
from tilewright.db.stores.statements import chunks, table_of

CHANNEL = "tilewright"

KEPT = 1000
"""Number of the newest rows that the table `notices` keeps. A reader that is further behind assumes
that everything changed."""

POLL_SECONDS = 0.02
"""Interval in seconds at which the SQLite file is checked for changes."""

TOKENS = "tokens"
"""Notification topic for the creation and revocation of tokens."""

_notices = table_of(NoticeRow)
_jobs = table_of(JobRow)
_requests = table_of(RequestRow)
_workers = table_of(WorkerRow)


# created once: they run in every transaction that others wait for
_NOTIFY = sa.select(sa.func.pg_notify(CHANNEL, sa.bindparam("topic")))
_ADD = sa.insert(_notices)
_DROP_OLD = sa.delete(_notices).where(
    _notices.c.serial <= sa.select(sa.func.max(_notices.c.serial)).scalar_subquery() - KEPT
)


def job_topic(job_id: str) -> str:
    """Return the notice topic that is published when a job gets a new event."""
    return f"job:{job_id}"


def queue_topic(target_key: str) -> str:
    """Return the notice topic that is published when a target has measurement requests to claim."""
    return f"queue:{target_key}"


def worker_topic(worker_id: str) -> str:
    """Return the notice topic that is published when a worker is drained, resumed or removed."""
    return f"worker:{worker_id}"


def announce(connection: sa.Connection, topics: Iterable[str]) -> None:
    """Notify the waiters for these topics when the connection's transaction commits."""
    named = sorted(set(topics))
    if not named:
        return
    match connection.dialect.name:
        case "postgresql":
            for topic in named:
                connection.execute(_NOTIFY, {"topic": topic})
        case _:
            connection.execute(_ADD, [{"topic": topic} for topic in named])
            connection.execute(_DROP_OLD)


def topic_states(engine: sa.Engine, topics: Collection[str]) -> Mapping[str, int]:
    """Return a number for each topic. A changed number shows that the topic has had a new event.

    A topic is left out if its job or worker does not exist, or its target has no queued request.

    Raises:
        StorageError: if the database fails.
    """
    wanted: dict[str, list[str]] = defaultdict(list)
    for topic in topics:
        kind, _, name = topic.partition(":")
        wanted[kind].append(name)
    gone, draining = (sa.cast(_workers.c[name], sa.Integer) for name in ("gone", "draining"))
    queries = {
        "job": sa.select(_jobs.c.id, _jobs.c.event_sequence).where(_jobs.c.id.in_(_names)),
        "queue": sa.select(_requests.c.target_key, sa.func.max(_requests.c.serial))
        .where(is_queued(), _requests.c.target_key.in_(_names))
        .group_by(_requests.c.target_key),
        "worker": sa.select(_workers.c.id, gone * 2 + draining).where(_workers.c.id.in_(_names)),
    }
    found: dict[str, int] = {}
    with reading(engine) as connection:
        for kind, query in queries.items():
            for some in chunks(wanted[kind]):
                rows = connection.execute(query, {"names": list(some)})
                found.update({f"{kind}:{name}": int(state) for name, state in rows})
    return found


_names: sa.BindParameter[Any] = sa.bindparam("names", expanding=True)


def is_queued() -> sa.ColumnElement[bool]:
    """Return the SQL condition that selects queued requests by their partial index.

    The state is a literal in the SQL: with a bound parameter, no query planner would use that
    index.
    """
    return _requests.c.state == sa.literal_column("'queued'")


class NoticeSource(Protocol):
    """Receives the messages by which transactions of all processes announce changes (notices).

    Use each instance in one thread only.
    """

    def wait(self, seconds: float) -> Sequence[str] | None:
        """Wait up to `seconds` for notices, and return their topics; empty at the timeout.

        None means that notices may have been lost, so every topic may have changed. The result is
        None at the first call, and at the first call after a connection broke.

        Raises:
            StorageError: if the database fails.
        """

    def close(self) -> None:
        """Close the database connection."""


def open_source(engine: sa.Engine) -> NoticeSource:
    """Create a receiver of notices, the messages by which transactions announce changes.

    The first call of its method `wait` opens a database connection.
    """
    return PostgresSource(engine) if engine.dialect.name == "postgresql" else SqliteSource(engine)


class PostgresSource:
    """Receives notices by LISTEN, on a PostgreSQL connection of its own.

    A notice is a message by which a transaction announces a change.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._own: OwnConnection | None = None

    def wait(self, seconds: float) -> Sequence[str] | None:
        with translated_errors(self._engine):
            try:
                if self._own is None:
                    self._own = OwnConnection(self._engine)
                    self._own.driver.execute(f"LISTEN {CHANNEL}")
                    return None
                heard = self._own.driver.notifies(timeout=seconds, stop_after=1)
                return [notice.payload for notice in heard]
            except self._engine.dialect.loaded_dbapi.Error as error:
                self.close()
                raise sa.exc.OperationalError(f"LISTEN {CHANNEL}", {}, error) from error

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
            self._own = None


class SqliteSource:
    """Receives notices, the messages by which transactions announce changes, on SQLite.

    Whenever the database file has changed, it reads the new rows of the table `notices`.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._own: OwnConnection | None = None
        self._version = 0
        self._last = 0

    def wait(self, seconds: float) -> Sequence[str] | None:
        ends = time.monotonic() + seconds
        with translated_errors(self._engine):
            try:
                if self._own is None:
                    self._own = OwnConnection(self._engine)
                    self._version = self._one("PRAGMA data_version")
                    self._last = self._one("SELECT coalesce(max(serial), 0) FROM notices")
                    return None
                while (version := self._one("PRAGMA data_version")) == self._version:
                    if time.monotonic() >= ends:
                        return ()
                    time.sleep(POLL_SECONDS)
                self._version = version
                return self._new_topics()
            except self._engine.dialect.loaded_dbapi.Error as error:
                self.close()
                raise sa.exc.OperationalError("notices", {}, error) from error

    def _new_topics(self) -> Sequence[str] | None:
        assert self._own is not None
        query = "SELECT serial, topic FROM notices WHERE serial > ? ORDER BY serial"
        rows = self._own.driver.execute(query, (self._last,)).fetchall()
        if not rows:
            return ()
        expected, self._last = self._last + 1, rows[-1][0]
        return [topic for _, topic in rows] if rows[0][0] == expected else None

    def _one(self, query: str) -> int:
        assert self._own is not None
        return int(self._own.driver.execute(query).fetchone()[0])

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
            self._own = None
