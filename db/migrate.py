"""Migrates a database to the schema of this release.

A new database gets the tables of `db.models`, and is marked with the newest revision. A database at
an earlier revision gets the missing migrations. Either happens in one transaction, also on SQLite.
Other processes that start at the same time wait for its end: on PostgreSQL for an advisory lock, on
SQLite for the write lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from tilewright.db.engine import reading, translated_errors, write_immediately
from tilewright.db.errors import SchemaVersionError
from tilewright.db.models import Base

_LOCK = 0x74696C65  # "tile": the key of the advisory lock

_MIGRATIONS = Path(__file__).parent / "migrations"

# As alembic makes it: alembic is imported only to migrate, which takes longer than a new database.
_VERSION = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def upgrade(engine: sa.Engine, revision: str | None = None) -> None:
    """Migrate a database to a schema revision. Several processes may call it at the same time.

    If the database already has the revision, the call only reads, and does not wait for writers.

    Args:
        engine: the database, which may be empty.
        revision: a revision that this release knows; by default the newest.

    Raises:
        SchemaVersionError: if the database is from a newer release, or too old to be migrated.
        StorageError: if it cannot be read or written.
    """
    wanted = revision or head_revision()
    if current_revision(engine) == wanted:
        return
    with translated_errors(engine), _exclusive(engine) as connection:
        current = _revision(connection)
        if current is not None:
            require_known(
                current, f"the database {engine.url.render_as_string(hide_password=True)} is"
            )
        if current is None and wanted == head_revision():
            _create(connection)
        elif current != wanted:
            _migrate(connection, wanted)


def current_revision(engine: sa.Engine) -> str | None:
    """Return the schema revision of the database; None if it was never migrated."""
    with reading(engine) as connection:
        return _revision(connection)


def head_revision() -> str:
    """Return the newest schema revision of this release."""
    return max(known_revisions())


def known_revisions() -> frozenset[str]:
    """Return the schema revisions from which this release can migrate a database."""
    names = (path.stem for path in _MIGRATIONS.glob("versions/v*.py"))
    return frozenset(name[1:].partition("_")[0] for name in names)


def require_known(revision: str, subject: str) -> None:
    """Raise SchemaVersionError unless this release can migrate from a schema revision.

    Args:
        revision: the revision of a database or of an archive.
        subject: how the error message begins, such as "the database X is".
    """
    known = known_revisions()
    if revision in known:
        return
    oldest = min(known)
    if revision < oldest:
        raise SchemaVersionError(
            f"{subject} at revision '{revision}', and this release migrates from '{oldest}' on: run"
            f" `tilewright db migrate` of the source tree that migrated to '{oldest}' first"
            " (docs/database.md, Migrations), or begin with an empty database"
        )
    raise SchemaVersionError(
        f"{subject} at revision '{revision}', which this release does not know: it was made by a"
        " newer one"
    )


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(sa.select(_VERSION.c.version_num)).scalar()


def _create(connection: sa.Connection) -> None:
    """Create all tables and indexes, and mark the database with this release's revision."""
    for table in (*Base.metadata.sorted_tables, _VERSION):
        connection.execute(CreateTable(table))
        for index in sorted(table.indexes, key=_turn):
            connection.execute(CreateIndex(index))
    connection.execute(sa.insert(_VERSION).values(version_num=head_revision()))


def _turn(index: sa.Index) -> tuple[bool, str]:
    """Return a sort key for creating a table's indexes: partial indexes last, each group by name.

    If two indexes cost the same, SQLite's planner uses the one created last. The partial index is
    smaller and should be used. `table.indexes` is an unordered set, so the order must be set here.
    """
    return index.dialect_options["sqlite"]["where"] is not None, str(index.name)


def _migrate(connection: sa.Connection, revision: str) -> None:
    """Apply the missing migrations up to `revision`, in the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    # A percent sign in a path is not an interpolation.
    folder = str(_MIGRATIONS).replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


@contextmanager
def _exclusive(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a writing transaction that excludes migrations by other processes.

    Other migrations wait: on PostgreSQL for an advisory lock, on SQLite for the write lock.
    """
    with engine.connect() as connection:
        write_immediately(connection)
        sqlite = engine.dialect.name == "sqlite"
        if sqlite:
            # Batch mode drops and renames tables, which must not cascade. The pragma does nothing
            # inside a transaction, so it goes to the driver before one begins.
            connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                if not sqlite:
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
                yield connection
        finally:
            if sqlite:
                connection.connection.cursor().execute("PRAGMA foreign_keys=ON")
