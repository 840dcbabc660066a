from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tilewright import db
from tilewright.db.engine import open_engine, reading, writing
from tilewright.db.errors import SchemaVersionError
from tilewright.db.migrate import current_revision, downgrade, head_revision, upgrade
from tilewright.db.models import Base, BlobReferenceRow, BlobRow, ModelUploadRow, SampleUploadRow
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tokens import TokenStore
from tilewright.db.stores.workers import WorkerStore


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
    """What the database has that the tables of `db.models` have not, and the other way round.

    What `alembic check` asks.
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


def test_upgrade_from_empty_gives_the_tables_of_the_models(fresh: sa.Engine) -> None:
    assert current_revision(fresh) is None
    assert differences(fresh)
    upgrade(fresh)
    assert current_revision(fresh) == head_revision()
    assert differences(fresh) == []
    assert table_names(fresh) == set(Base.metadata.tables) | {"alembic_version"}


def test_the_keys_of_the_tables_are_those_of_the_models(fresh: sa.Engine) -> None:
    """Of which `alembic check` says nothing."""
    upgrade(fresh)
    for table in Base.metadata.tables.values():
        with reading(fresh) as connection:
            keys = sa.inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
        assert keys == [column.name for column in table.primary_key], table.name


def test_every_constraint_has_a_name() -> None:
    """Migrations of SQLite can drop only what has a name."""
    for table in Base.metadata.tables.values():
        assert table.primary_key.name == f"pk_{table.name}"
        assert all(constraint.name for constraint in table.constraints)


def test_the_head_is_what_alembic_takes_for_it() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(db.__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    assert head_revision() == ScriptDirectory.from_config(config).get_current_head()


def test_rows_of_the_first_release_survive_every_upgrade(fresh: sa.Engine) -> None:
    """Columns that later releases added have values in rows that were there before."""
    upgrade(fresh, "0001")
    tables = sa.MetaData()
    with reading(fresh) as connection:
        tables.reflect(connection)
    kinds = {sa.Text: "text", sa.JSON: {}, sa.Boolean: False}
    with writing(fresh) as connection:
        for name in ("trials", "graph_plans", "workers", "targets"):
            row = {
                column.name: next((v for kind, v in kinds.items() if _is(column, kind)), 1)
                for column in tables.tables[name].columns
            }
            connection.execute(sa.insert(tables.tables[name]).values(row))
    upgrade(fresh)
    with reading(fresh) as connection:
        for name in ("trials", "graph_plans", "workers", "targets"):
            assert len(connection.execute(sa.select(Base.metadata.tables[name])).all()) == 1
    assert differences(fresh) == []


def test_tokens_of_earlier_releases_see_what_they_saw(fresh: sa.Engine) -> None:
    """And who made a job of a model has a name for it, and may use its samples again."""
    upgrade(fresh, "0034")
    tables = sa.MetaData()
    with reading(fresh) as connection:
        tables.reflect(connection)

    def insert(connection: sa.Connection, table: str, **values: object) -> None:
        kinds = {sa.Text: "x", sa.JSON: {}}
        row = {
            column.name: next((v for kind, v in kinds.items() if _is(column, kind)), 1)
            for column in tables.tables[table].columns
            if not column.nullable
        }
        connection.execute(sa.insert(tables.tables[table]).values({**row, **values}))

    with writing(fresh) as connection:
        for name in ("ada", "bob"):
            insert(connection, "tokens", id=f"{name}-id", digest=name, name=name)
        insert(connection, "models", digest="m", name="net.onnx", owner="ada-id")
        for number in range(2):
            insert(connection, "jobs", id=f"j{number}", model_digest="m", owner="bob-id")
            given = {"digest": "s", "kind": "samples", "holder": f"j{number}"}
            connection.execute(sa.insert(tables.tables["blob_references"]).values(given))
        insert(connection, "blobs", digest="s")
    upgrade(fresh)
    with reading(fresh) as connection:
        uploads = connection.execute(sa.select(table_of(ModelUploadRow))).all()
        samples = connection.execute(sa.select(table_of(SampleUploadRow))).all()
    assert [(r.digest, r.owner) for r in samples] == [("s", "bob")]
    assert sorted((r.digest, r.owner, r.name) for r in uploads) == [
        ("m", "ada", "net.onnx"),
        ("m", "bob", "net.onnx"),
    ]
    assert {token.sees for token in TokenStore(fresh).list()} == {None}


def _is(column: sa.Column[Any], kind: type[Any]) -> bool:
    return isinstance(column.type, kind)


def _blank(table: sa.Table) -> dict[str, Any]:
    """Values of the columns that must have one."""
    kinds = {sa.Text: "", sa.JSON: {}, sa.Boolean: False}
    return {
        column.name: next((v for kind, v in kinds.items() if _is(column, kind)), 1)
        for column in table.columns
        if not column.nullable
    }


def test_upgrade_twice_changes_nothing(fresh: sa.Engine) -> None:
    upgrade(fresh)
    TokenStore(fresh).create("kept", [])
    upgrade(fresh)
    assert [token.name for token in TokenStore(fresh).list()] == ["kept"]


def test_downgrade_empties_the_database(fresh: sa.Engine) -> None:
    upgrade(fresh)
    downgrade(fresh, "base")
    assert table_names(fresh) == {"alembic_version"}
    upgrade(fresh)
    assert differences(fresh) == []


def test_processes_that_start_together_migrate_once(fresh: sa.Engine) -> None:
    url = fresh.url.render_as_string(hide_password=False)
    barrier = threading.Barrier(4)

    def start() -> None:
        engine = open_engine(url)
        barrier.wait()
        upgrade(engine)
        engine.dispose()

    with ThreadPoolExecutor(4) as pool:
        for started in [pool.submit(start) for _ in range(4)]:
            started.result()
    assert differences(fresh) == []


def test_a_failed_migration_leaves_nothing_behind(
    fresh: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import op

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(op, "create_index", refuse)
    with pytest.raises(RuntimeError, match="power cut"):
        upgrade(fresh)
    assert table_names(fresh) == set()


def test_a_newer_database_is_refused(fresh: sa.Engine) -> None:
    upgrade(fresh)
    with writing(fresh) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaVersionError, match="9999"):
        upgrade(fresh)


def test_a_store_on_an_unmigrated_database_says_so(fresh: sa.Engine) -> None:
    with pytest.raises(SchemaVersionError, match="not migrated"):
        TokenStore(fresh).list()


def test_what_earlier_rows_name_is_referred_to_after_the_upgrade(fresh: sa.Engine) -> None:
    upgrade(fresh, "0008")
    tables = sa.MetaData()
    with reading(fresh) as connection:
        tables.reflect(connection)

    def insert(name: str, **values: Any) -> None:
        table = tables.tables[name]
        connection.execute(sa.insert(table).values({**_blank(table), **values}))

    with writing(fresh) as connection:
        insert("models", digest="m", bytes=7)
        insert("jobs", id="j", model_digest="m", artifact_digest="a", idempotency_key="1")
        insert("jobs", id="k", model_digest="m", artifact_digest="m", idempotency_key="2")
        insert("jobs", id="l", model_digest="m", idempotency_key="3")
        insert("cost_models", target_key="t", version=2, digest="c")
        for serial, state in enumerate(("leased", "queued", "done")):
            insert(
                "measure_requests",
                serial=serial,
                id=state,
                state=state,
                blob_digests=["x", "x", state],
            )
    upgrade(fresh)
    with reading(fresh) as connection:
        references = connection.execute(
            sa.select(BlobReferenceRow.kind, BlobReferenceRow.holder, BlobReferenceRow.digest)
        ).all()
        sizes = connection.execute(sa.select(BlobRow.digest, BlobRow.bytes)).all()
    assert set(map(tuple, references)) == {
        ("model", "m", "m"),
        ("artifact", "j", "a"),
        ("artifact", "k", "m"),
        ("cost-model", "t/2", "c"),
        ("request", "leased", "x"),
        ("request", "leased", "leased"),
        ("request", "queued", "x"),
        ("request", "queued", "queued"),
    }
    expected = {"m": 7, **dict.fromkeys(("a", "c", "x", "leased", "queued"))}
    assert {row.digest: row.bytes for row in sizes} == expected


def test_trials_of_before_are_counted_for_the_workers_that_are_known(fresh: sa.Engine) -> None:
    upgrade(fresh, "0033")
    tables = sa.MetaData()
    with reading(fresh) as connection:
        tables.reflect(connection)
    workers, trials = tables.tables["workers"], tables.tables["trials"]
    with writing(fresh) as connection:
        connection.execute(sa.insert(workers).values(_blank(workers) | {"id": "board"}))
        ended = (("board", "ok"), ("board", "ok"), ("board", "crash"), ("key/board", "ok"))
        for number, (worker, status) in enumerate(ended):
            told = {"serial": number, "id": str(number), "worker": worker, "status": status}
            connection.execute(sa.insert(trials).values(_blank(trials) | told))
    upgrade(fresh)
    assert WorkerStore(fresh).outcomes(["board", "key/board"]) == {"board": {"ok": 2, "crash": 1}}
    downgrade(fresh, "0033")
    assert "worker_outcomes" not in table_names(fresh)
