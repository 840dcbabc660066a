"""Bring a database to the schema of this release.

Migrations run in one transaction, also on SQLite. Other processes that start at the same time wait:
on PostgreSQL for an advisory lock, on SQLite for the write lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tilewright.db.engine import reading, translated_errors, write_immediately
from tilewright.db.errors import SchemaVersionError

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = 0x74696C65  # "tile": the key of the advisory lock

_MIGRATIONS = Path(__file__).parent / "migrations"

_VERSION = sa.table("alembic_version", sa.column("version_num", sa.Text))


def upgrade(engine: sa.Engine, revision: str = "head") -> None:
    """Apply every missing migration; safe if several processes start at once.

    A database that is up to date is only read, so it need not wait for writers. Alembic is then not
    imported, which takes as long as all the rest of opening a database.

    Raises SchemaVersionError if the database is of a newer release, StorageError.
    """
    if revision == "head" and current_revision(engine) == head_revision():
        return
    from alembic import command

    _migrate(engine, lambda config: command.upgrade(config, revision))


def downgrade(engine: sa.Engine, revision: str) -> None:
    """Undo migrations back to `revision` ("base": an empty database)."""
    from alembic import command

    _migrate(engine, lambda config: command.downgrade(config, revision))


def current_revision(engine: sa.Engine) -> str | None:
    """The revision of the database; None if it was never migrated."""
    with reading(engine) as connection:
        if not sa.inspect(connection).has_table(_VERSION.name):
            return None
        return connection.execute(sa.select(_VERSION.c.version_num)).scalar()


def head_revision() -> str:
    """The revision of this release, which is the last file of migrations."""
    names = [path.stem for path in _MIGRATIONS.glob("versions/v*.py")]
    assert names, "the migrations are packaged with the code"
    return max(names)[1:].partition("_")[0]


def known_revisions() -> frozenset[str]:
    """The revisions that this release can migrate from."""
    names = (path.stem for path in _MIGRATIONS.glob("versions/v*.py"))
    return frozenset(name[1:].partition("_")[0] for name in names)


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    # A percent sign in a path is not an interpolation.
    folder = str(_MIGRATIONS).replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "os")
    return config


def _migrate(engine: sa.Engine, run: Callable[[Config], None]) -> None:
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

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
    """A transaction during which no other migration runs."""
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
