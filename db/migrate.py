"""Bring a database to the schema of this release.

Migrations run in one transaction, also on SQLite. Whoever else starts at the same time waits: for
an advisory lock on PostgreSQL, for the write lock on SQLite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from db.engine import reading, translated_errors, write_immediately
from db.errors import SchemaVersionError
from db.models import Base

_LOCK = 0x74696C65  # "tile": the key of the advisory lock


def upgrade(engine: sa.Engine, revision: str = "head") -> None:
    """Apply every migration that is missing; safe when several processes start at once.

    A database that is up to date is only read: whoever writes it at that time is not in the way.

    Raises SchemaVersionError if the database is of a newer release, StorageError.
    """
    if revision == "head" and current_revision(engine) == head_revision():
        return
    _migrate(engine, lambda config: command.upgrade(config, revision))


def downgrade(engine: sa.Engine, revision: str) -> None:
    """Undo migrations back to `revision` ("base": an empty database)."""
    _migrate(engine, lambda config: command.downgrade(config, revision))


def current_revision(engine: sa.Engine) -> str | None:
    """The revision the database is at; None for one that was never migrated."""
    with reading(engine) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head_revision() -> str:
    """The revision of this release."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "the migrations are packaged with the code"
    return head


def differences(engine: sa.Engine) -> list[object]:
    """What the database has that the tables of `db.models` have not, and the other way round.

    Empty after an upgrade: what `alembic check` asks.
    """
    with reading(engine) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, Base.metadata))


def _config() -> Config:
    config = Config()
    # A percent sign in a path is not an interpolation.
    folder = str(Path(__file__).parent / "migrations").replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "os")
    return config


def _migrate(engine: sa.Engine, run: Callable[[Config], None]) -> None:
    config = _config()
    with translated_errors(engine), _exclusive(engine) as connection:
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        current = MigrationContext.configure(connection).get_current_revision()
        if current is not None and current not in known:
            raise SchemaVersionError(
                f"the database {engine.url.render_as_string(hide_password=True)} is at revision"
                f" '{current}', which this release does not know: it was made by a newer one"
            )
        config.attributes["connection"] = connection
        run(config)


@contextmanager
def _exclusive(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that no other migration runs beside."""
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
