from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.unit.db.later import LATER, later_release
from tilewright import db
from tilewright.db import migrate
from tilewright.db.engine import open_engine, reading, writing
from tilewright.db.errors import SchemaVersionError
from tilewright.db.migrate import current_revision, head_revision, upgrade
from tilewright.db.models import Base
from tilewright.db.stores.tokens import TokenStore


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path):
    """A database that was never migrated."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/fresh.db"
    else:
        admin = sa.create_engine(
            request.getfixturevalue("postgres_engine").url, isolation_level="AUTOCOMMIT"
        )
        with admin.connect() as connection:
            connection.exec_driver_sql("DROP DATABASE IF EXISTS fresh WITH (FORCE)")
            connection.exec_driver_sql("CREATE DATABASE fresh")
        admin.dispose()
        url = request.getfixturevalue("postgres_engine").url.set(database="fresh")
        url = url.render_as_string(hide_password=False)
    engine = open_engine(url)
    yield engine
    engine.dispose()


def differences(engine: sa.Engine) -> list[object]:
    """The differences between the database and the tables of `db.models`, in both directions.

    The comparison of `alembic check`.
    """
    with reading(engine) as connection:
        options = {"compare_type": True, "include_object": _is_comparable}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, Base.metadata))


def _is_comparable(_object: object, name: str | None, kind: str, *_: object) -> bool:
    """The order of an index with DESC is not read back; `test_notices` looks at its plan."""
    return (kind, name) != ("index", "ix_measure_requests_queued")


def table_names(engine: sa.Engine) -> set[str]:
    with reading(engine) as connection:
        return set(sa.inspect(connection).get_table_names())


def schema(engine: sa.Engine) -> set[str]:
    """Each column, constraint and index of the database; the order of columns is left out."""
    found = set()
    with reading(engine) as connection:
        inspector = sa.inspect(connection)
        for table in inspector.get_table_names():
            parts: list[Any] = [inspector.get_pk_constraint(table)]
            parts += [{**each, "type": str(each["type"])} for each in inspector.get_columns(table)]
            parts += inspector.get_foreign_keys(table)
            parts += inspector.get_unique_constraints(table)
            parts += inspector.get_check_constraints(table)
            found |= {f"{table}: {sorted(part.items())}" for part in parts}
        if engine.dialect.name == "sqlite":
            query = "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
            numbered = "SELECT name FROM sqlite_master WHERE sql LIKE '%AUTOINCREMENT%'"
            found |= set(connection.exec_driver_sql(numbered).scalars())
        else:
            query = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
        return found | {
            " ".join(sql.split()) for sql in connection.exec_driver_sql(query).scalars()
        }


def test_a_new_database_has_the_tables_of_the_models(
    fresh: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(migrate, "_migrate")  # alembic takes longer than all the rest
    assert current_revision(fresh) is None
    assert differences(fresh)
    upgrade(fresh)
    assert current_revision(fresh) == head_revision()
    assert differences(fresh) == []
    assert table_names(fresh) == set(Base.metadata.tables) | {"alembic_version"}


def test_sqlite_prefers_partial_indexes(tmp_path: Path) -> None:
    """It uses the index that was created last, if others cost the same."""
    engine = open_engine(f"sqlite:///{tmp_path}/fresh.db")
    upgrade(engine)
    query = (
        "SELECT tbl_name, sql LIKE '% WHERE %', name FROM sqlite_master"
        " WHERE sql LIKE '% INDEX %' ORDER BY rowid"
    )
    made: dict[str, list[Any]] = {}
    with reading(engine) as connection:
        for table, *index in connection.exec_driver_sql(query):
            made.setdefault(table, []).append(index)
    engine.dispose()
    assert [name for _, name in made["measure_requests"]] == [
        "ix_measure_requests_job_id",
        "ix_measure_requests_queued",
        "ix_measure_requests_unstored",
    ]
    assert made == {table: sorted(indexes) for table, indexes in made.items()}


def test_migrations_lead_to_the_schema_of_a_new_database(fresh: sa.Engine, tmp_path: Path) -> None:
    newest = head_revision()
    with later_release(tmp_path / "later"):  # a database at its newest revision is not migrated
        upgrade(fresh, newest)
    assert current_revision(fresh) == head_revision()
    migrated = schema(fresh)
    everything = sa.MetaData()
    with writing(fresh) as connection:
        everything.reflect(connection)
        everything.drop_all(connection)
    assert schema(fresh) == set()
    upgrade(fresh)
    assert schema(fresh) == migrated
    assert len(migrated) > 300


def test_the_keys_of_the_tables_are_those_of_the_models(fresh: sa.Engine) -> None:
    """`alembic check` does not compare them."""
    upgrade(fresh)
    for table in Base.metadata.tables.values():
        with reading(fresh) as connection:
            keys = sa.inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
        assert keys == [column.name for column in table.primary_key], table.name


def test_every_constraint_has_a_name() -> None:
    """Migrations of SQLite can drop only constraints with a name."""
    for table in Base.metadata.tables.values():
        assert table.primary_key.name == f"pk_{table.name}"
        assert all(constraint.name for constraint in table.constraints)


def test_the_head_is_what_alembic_takes_for_it() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(db.__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    assert head_revision() == ScriptDirectory.from_config(config).get_current_head()


def test_upgrade_twice_changes_nothing(fresh: sa.Engine) -> None:
    upgrade(fresh)
    TokenStore(fresh).create("kept", [])
    upgrade(fresh)
    assert [token.name for token in TokenStore(fresh).list()] == ["kept"]


def test_a_later_migration_is_applied(fresh: sa.Engine, tmp_path: Path) -> None:
    upgrade(fresh)
    TokenStore(fresh).create("kept", [])
    with later_release(tmp_path / "later"):
        upgrade(fresh)
        assert current_revision(fresh) == head_revision() == LATER
    assert table_names(fresh) == set(Base.metadata.tables) | {"alembic_version", "later"}
    assert [token.name for token in TokenStore(fresh).list()] == ["kept"]


@pytest.mark.parametrize("new", [True, False], ids=["a new database", "one to migrate"])
def test_processes_that_start_together_migrate_once(
    fresh: sa.Engine, tmp_path: Path, new: bool
) -> None:
    if not new:
        upgrade(fresh)
    url = fresh.url.render_as_string(hide_password=False)
    barrier = threading.Barrier(4)

    def start() -> None:
        engine = open_engine(url)
        barrier.wait()
        upgrade(engine)
        engine.dispose()

    with ExitStack() as stack:
        if not new:
            stack.enter_context(later_release(tmp_path / "later"))
        with ThreadPoolExecutor(4) as pool:
            for started in [pool.submit(start) for _ in range(4)]:
                started.result()
        assert current_revision(fresh) == head_revision()
    assert ("later" in table_names(fresh)) is not new


def test_a_new_database_is_complete_or_empty(
    fresh: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(migrate, "_turn", refuse)  # the first table is there by then
    with pytest.raises(RuntimeError, match="power cut"):
        upgrade(fresh)
    assert table_names(fresh) == set()


def test_a_failed_migration_leaves_nothing_behind(
    fresh: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import op

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    upgrade(fresh)
    before = table_names(fresh)
    monkeypatch.setattr(op, "create_index", refuse)
    with later_release(tmp_path / "later"), pytest.raises(RuntimeError, match="power cut"):
        upgrade(fresh)
    assert table_names(fresh) == before
    assert current_revision(fresh) == head_revision()


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        ("9999", "'9999', which this release does not know: it was made by a newer one"),
        ("0037", "'0037'.*migrates from '0038' on: run `tilewright db migrate` of the source tree"),
    ],
)
def test_a_database_of_another_revision_is_refused(
    fresh: sa.Engine, revision: str, said: str
) -> None:
    upgrade(fresh)
    TokenStore(fresh).create("kept", [])
    with writing(fresh) as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
    with pytest.raises(SchemaVersionError, match=said):
        upgrade(fresh)
    assert current_revision(fresh) == revision
    assert [token.name for token in TokenStore(fresh).list()] == ["kept"]


def test_a_store_on_an_unmigrated_database_says_so(fresh: sa.Engine) -> None:
    with pytest.raises(SchemaVersionError, match="not migrated"):
        TokenStore(fresh).list()
