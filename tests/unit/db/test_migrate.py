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
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db import migrate
from tilewright.db.engine import open_engine, reading, writing
from tilewright.db.errors import SchemaVersionError
from tilewright.db.migrate import current_revision, head_revision, upgrade
from tilewright.db.models import Base
from tilewright.db.review_state import Attestation, ClaimReporter, ReviewState
from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.db.stores.claim_rows import claims, is_race, stored_race
from tilewright.db.stores.tokens import TokenStore
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status


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


def revisions_to(revision: str, engine: sa.Engine, folder: Path) -> None:
    """Make a database with the migrations up to a revision, not from the models."""
    with later_release(folder):  # so that no revision of this one is the newest
        upgrade(engine, revision)


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
    revisions_to(head_revision(), fresh, tmp_path / "later")
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


def test_rows_of_the_first_revision_survive_every_upgrade(fresh: sa.Engine, tmp_path: Path) -> None:
    """A database that the 36 migrations made before they were one is at this revision as well."""
    revisions_to("0036", fresh, tmp_path / "later")
    tables = sa.MetaData()
    with writing(fresh) as connection:
        tables.reflect(connection)
        for gone in ("alembic_version", "graph_plans"):
            tables.remove(tables.tables[gone])
        for table in tables.sorted_tables:
            connection.execute(sa.insert(table).values(_blank(table)))
    before = rows(fresh, tables)
    upgrade(fresh)
    assert current_revision(fresh) == head_revision()
    assert {name: len(found) for name, found in before.items()} == dict.fromkeys(before, 1)
    assert len(before) == 30
    claims = [before.pop(name) for name in ("records", "verdicts", "record_uses")]
    now = sa.MetaData()
    with reading(fresh) as connection:
        now.reflect(connection, only=before.keys())
        kept = sa.MetaData()
        kept.reflect(connection, only=["claims", "claim_uses"])
    assert rows(fresh, now) == before
    assert sum(map(len, rows(fresh, kept).values())) == len(claims)


def test_the_sizes_of_plans_and_the_verdicts_of_schedules_stay(
    fresh: sa.Engine, tmp_path: Path
) -> None:
    revisions_to("0036", fresh, tmp_path / "later")
    tables = sa.MetaData()
    plans = [
        ("fast", "a", '{"rows":8}'),
        ("fast", "b", '{"rows":8}'),
        ("strict bfloat16", "a", '{"rows":4}'),
        ("fast", "c", "{}"),
        ("fast", "d", '{"rows":"1..64"}'),
    ]
    with writing(fresh) as connection:
        tables.reflect(connection)
        plan, verdict = (tables.tables[name] for name in ("graph_plans", "verdicts"))
        for numerics, digest, dims in plans:
            made = {"numerics": numerics, "digest": digest, "dims": dims, "model_digest": "m"}
            connection.execute(sa.insert(plan).values({**_blank(plan), **made}))
        for serial, kind in enumerate(("schedules", "plan")):
            made = {"kind": kind, "identity": kind, "serial": serial, "state": "confirmed"}
            connection.execute(
                sa.insert(verdict).values({**_blank(verdict), **made, "backing": "own"})
            )
    upgrade(fresh)
    with reading(fresh) as connection:
        found = connection.execute(sa.select(Base.metadata.tables["tuned_sizes"])).all()
    assert sorted(row[3:] for row in found) == [
        ("fast", "float32", '{"rows":8}'),
        ("strict", "bfloat16", '{"rows":4}'),
    ]
    ledger = ClaimLedger(fresh)
    assert ledger.race("schedules") is not None and ledger.race("plan") is None


RECORD = {
    "workload_key": "w",
    "target_key": "t",
    "threads": 2,
    "numerics": "fast",
    "schedule": Schedule.of("direct").to_json(),
    "measurement": Measurement(Status.OK, samples_seconds=(1e-3,)).to_json(),
    "trial_id": "trial",
    "codegen_version": "cg1",
    "worker": "board",
    "owner": "one",
    "backing": "two-owners",
    "confirmed_by": "another",
    "confirmation": {"status": "ok", "samples_seconds": [2e-3]},
    "stored_at": 7.5,
}
VERDICT = {"served": "tuned", "outcome": "faster", "backing": "once"}
STATES = [state.value for state in ReviewState]


def test_records_and_verdicts_in_each_state_become_claims(fresh: sa.Engine, tmp_path: Path) -> None:
    revisions_to("0037", fresh, tmp_path / "later")
    tables = sa.MetaData()
    with writing(fresh) as connection:
        tables.reflect(connection)

        def insert(name: str, **values: Any) -> None:
            table = tables.tables[name]
            connection.execute(sa.insert(table).values({**_blank(table), **values}))

        insert("models", digest="m")
        mode = {"target_key": "t", "threads": 2, "numerics": "strict"}
        result = {"end_to_end": VERDICT, "other": 1}
        insert("jobs", id="job", model_digest="m", result=result, **mode)
        for serial, state in enumerate(STATES, 1):
            made = {"id": f"r-{state}", "serial": serial, "state": state, "reason": state}
            insert("records", **{**RECORD, **made})
            insert("record_uses", record_id=f"r-{state}", job_id="job")
        race = {"served": "tuned", "verdict": VERDICT, "worker": "board", "confirmation": {"c": 1}}
        race |= {"backing": "one-owner", "owner": "one", "confirmed_by": "another"}
        for serial, state in enumerate(STATES, 1):
            made = {"identity": state, "serial": serial, "state": state, "reason": state}
            insert("verdicts", **{**race, **made, "job_id": "job"})
            copy = {**made, "serial": serial + 50, "job_id": "used"}
            insert("verdicts", **{**race, **copy})
        newer = {"identity": "confirmed", "serial": 99, "state": "confirmed", "job_id": "gone"}
        insert("verdicts", **{**race, **newer, "served": "default", "verdict": {}})

    upgrade(fresh)

    ledger = ClaimLedger(fresh)
    records = {one.id: one for one in ledger.list()}
    assert list(records) == [f"r-{state}" for state in reversed(STATES)]
    for state in STATES:
        found = records[f"r-{state}"]
        assert (found.state, found.reason, found.stored_at) == (state, state, 7.5)
        assert found.reporter == ClaimReporter("board", "one")
        assert found.attestation is Attestation.TWO_OWNERS and found.review is not None
        assert found.review["samples_seconds"] == [2e-3]
        assert found.record.key == RecordKey("w", "t", 2, "fast")
        assert found.record.schedule.algorithm == "direct" and found.record.run_seconds == 1e-3
        assert (found.record.trial_id, found.record.codegen_version) == ("trial", "cg1")
        assert ledger.uses(found.id) == ["job"]
    races = sa.select(claims).where(is_race).order_by(claims.c.serial)
    with reading(fresh) as connection:
        rows_ = connection.execute(races).all()
        results = connection.execute(sa.select(Base.metadata.tables["jobs"].c.result)).scalars()
        assert list(results) == [{"end_to_end": stored_race(rows_[0]).verdict, "other": 1}]
    assert [row.subject for row in rows_] == [*STATES, "confirmed"]
    for row in rows_[:-1]:
        found_race = stored_race(row)
        state = "superseded" if row.subject == "confirmed" else row.subject
        assert (found_race.state, found_race.reason) == (state, row.subject)
        assert found_race.verdict == {"served": "tuned", "outcome": "faster", "attestation": "once"}
        assert (found_race.served, found_race.job_id, found_race.review) == (
            *("tuned", "job"),
            {"c": 1},
        )
        assert found_race.attestation is Attestation.ONE_OWNER and row.reviewer == "another"
        assert (row.target_key, row.threads, row.numerics) == ("t", 2, "strict")
        assert ledger.uses(row.id) == ["used"]
    served = ledger.race("confirmed")
    assert served is not None and (served.served, served.job_id) == ("default", "gone")
    assert ledger.race_counts() == {"tuned": 2 * len(STATES), "default": 1}
    assert "verdicts" not in table_names(fresh) and "records" not in table_names(fresh)


def rows(engine: sa.Engine, tables: sa.MetaData) -> dict[str, list[Any]]:
    with reading(engine) as connection:
        return {
            table.name: [row._asdict() for row in connection.execute(sa.select(table))]
            for table in tables.sorted_tables
        }


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
        ("0035", "'0035'.*migrates from '0036' on: run `tilewright db migrate` of a source tree"),
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
