"""Whether anything at all was committed since one looked last: what was read may be kept till then.

It is asked before reading. What is committed between the two is read and kept under the older
stamp, and read again at the next look; so nothing that is kept is ever older than its stamp says.
"""

from __future__ import annotations

import sqlalchemy as sa

from db.engine import OwnConnection, translated_errors


class Changes:
    """Stamps of a database. For one thread at a time."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._connections = 0
        self._own: OwnConnection | None = None
        # SQLite counts, for each connection, what others have committed; of PostgreSQL's
        # transactions that write, each changes what a snapshot sees of the others
        self._query = {
            "sqlite": "PRAGMA data_version",
            "postgresql": "SELECT pg_current_snapshot()::text",
        }[engine.dialect.name]

    def stamp(self) -> tuple[int, object]:
        """Another one if anything was committed since the last. Raises StorageError."""
        with translated_errors(self._engine):
            try:
                if self._own is None:
                    self._own = OwnConnection(self._engine)
                    self._connections += 1
                return self._connections, self._own.driver.execute(self._query).fetchone()[0]
            except self._engine.dialect.loaded_dbapi.Error as error:
                self.close()
                raise sa.exc.OperationalError(self._query, {}, error) from error

    def close(self) -> None:
        """End the connection."""
        if self._own is not None:
            self._own.close()
            self._own = None
