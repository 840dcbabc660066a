from __future__ import annotations

import contextvars
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from tilewright.db.engine import open_engine, reading, together, translated_errors, writing
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.migrate import upgrade
from tilewright.db.models import TargetRow
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tasks import WorkloadStore

targets = table_of(TargetRow)


def test_a_transaction_commits_or_leaves_nothing(engine: sa.Engine) -> None:
    row = {"key": "a", "name": "n", "description": {}, "created_at": 0.0}
    with pytest.raises(RuntimeError), writing(engine) as connection:
        connection.execute(sa.insert(targets), row)
        raise RuntimeError("dies")
    with writing(engine) as connection:
        connection.execute(sa.insert(targets), {**row, "key": "b"})
    with reading(engine) as connection:
        assert connection.execute(sa.select(targets.c.key)).scalars().all() == ["b"]


def test_a_reader_of_a_server_holds_no_transaction_and_a_writer_after_it_has_one(
    engine: sa.Engine,
) -> None:
    """Beginning and ending a transaction would be two more round trips to the server for each
    query."""
    if engine.dialect.name != "postgresql":
        pytest.skip("a file is read as of one moment")
    process, state = "SELECT pg_backend_pid()", "SELECT state FROM pg_stat_activity WHERE pid = :p"
    one = open_engine(engine.url.render_as_string(hide_password=False), pool_size=1)
    with reading(one) as connection, engine.connect() as other:
        reader = connection.execute(sa.text(process)).scalar_one()
        assert other.execute(sa.text(state), {"p": reader}).scalar_one() == "idle"
    with pytest.raises(RuntimeError), writing(one) as connection:
        assert connection.execute(sa.text(process)).scalar_one() == reader, "the same connection"
        connection.execute(sa.insert(targets), {**ROW, "key": "a"})
        raise RuntimeError("dies")
    assert keys(one) == []
    one.dispose()


ROW = {"name": "n", "description": {}, "created_at": 0.0}


def keys(engine: sa.Engine) -> list[str]:
    with reading(engine) as connection:
        return sorted(connection.execute(sa.select(targets.c.key)).scalars())


def insert(engine: sa.Engine, *names: str) -> None:
    rows = [{"key": name, "name": "n", "description": {}, "created_at": 0.0} for name in names]
    with writing(engine) as connection:
        connection.execute(sa.insert(targets), rows)


def test_what_is_written_together_is_one_transaction(engine: sa.Engine) -> None:
    with together(engine):
        insert(engine, "a")
        insert(engine, "b")
        assert keys(engine) == ["a", "b"], "it reads what it wrote"
    with pytest.raises(RuntimeError), together(engine):
        insert(engine, "c")
        raise RuntimeError("dies")
    with together(engine):
        insert(engine, "d")
        with pytest.raises(sa.exc.IntegrityError):
            insert(engine, "e", "a")
    assert keys(engine) == ["a", "b", "d"], "what failed inside left nothing, and the rest stands"
    insert(engine, "f")
    assert keys(engine)[-1] == "f"


def test_nobody_else_joins_a_transaction(engine: sa.Engine) -> None:
    """Another thread does not see uncommitted rows, although it has the context."""
    with together(engine):
        insert(engine, "a")
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(context.run, keys, engine).result() == []
    assert keys(engine) == ["a"]


def test_a_violated_constraint_is_a_bug_and_stays_one(engine: sa.Engine) -> None:
    row = {"key": "a", "name": "n", "description": {}, "created_at": 0.0}
    with pytest.raises(sa.exc.IntegrityError), writing(engine) as connection:
        connection.execute(sa.insert(targets), [row, row])


@pytest.mark.parametrize(
    ("url", "offender"),
    [
        ("no url", "no url"),
        ("mysql://localhost/x", "mysql"),
        ("sqlite://", "memory"),
        ("sqlite:///:memory:", "memory"),
        ("sqlite:///file:x?mode=memory&uri=true", "memory"),
    ],
)
def test_a_url_that_cannot_work_is_refused(
    url: str, offender: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=offender):
        open_engine(url)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StorageError) as caught:
        open_engine("postgresql://user:secret@127.0.0.1:1/none", busy_seconds=1)
    assert caught.value.kind is StorageKind.UNREACHABLE
    assert caught.value.retryable
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"this is text, and long enough to be looked at" * 100)
    with pytest.raises(StorageError) as caught:
        upgrade(open_engine(f"sqlite:///{path}"))
    assert caught.value.kind is StorageKind.CORRUPT


def test_readers_of_a_file_never_wait_for_a_writer(tmp_path: Path) -> None:
    """The file is in write-ahead mode from the start, and stays so for every later connection."""
    path = tmp_path / "x.db"
    open_engine(f"sqlite:///{path}").dispose()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        open_engine(f"sqlite:///{tmp_path}")
    assert caught.value.kind is StorageKind.DENIED
    assert str(tmp_path) in str(caught.value)


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "deep" / "x.db"
    upgrade(open_engine(f"sqlite:///{path}"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_locked_sqlite_is_a_typed_error_and_readers_go_on(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = open_engine(f"sqlite:///{path}", busy_seconds=0.05)
    upgrade(engine)
    store = WorkloadStore(engine)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError) as caught:
        store.put_workloads({"k": "text"})
    assert caught.value.kind is StorageKind.LOCKED
    assert caught.value.retryable
    assert store.workloads(["k"]) == {}
    other.execute("ROLLBACK")
    store.put_workloads({"k": "text"})
    assert store.workload("k") == "text"


@pytest.mark.parametrize("kind", [sqlite3.InterfaceError, sqlite3.ProgrammingError])
def test_a_call_that_the_driver_refuses_is_a_bug_and_stays_one(
    engine: sa.Engine, kind: type[sqlite3.Error]
) -> None:
    refused = sa.exc.DBAPIError("SELECT ?", {}, kind("parameter 0: of no type that SQLite has"))
    with pytest.raises(sa.exc.DBAPIError) as caught, translated_errors(engine):
        raise refused
    assert caught.value is refused


def test_a_full_disk_is_a_typed_error_and_nothing_is_lost(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/x.db")
    upgrade(engine)
    store = WorkloadStore(engine)
    store.put_workloads({"first": "text"})
    pages = {"limit": 0}

    @sa.event.listens_for(engine, "begin")
    def _limit(connection: sa.Connection) -> None:
        # SQLite's own quota: the same error code as a disk without space.
        if pages["limit"]:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages['limit']}")

    with reading(engine) as connection:
        pages["limit"] = connection.exec_driver_sql("PRAGMA page_count").scalar_one() + 2
    with pytest.raises(StorageError, match="full") as caught:
        store.put_workloads({"second": "x" * 1_000_000})
    assert caught.value.kind is StorageKind.FULL
    assert not caught.value.retryable
    pages["limit"] = 1_000_000
    assert store.workloads(["first", "second"]) == {"first": "text"}
    store.put_workloads({"second": "x" * 1_000_000})
    assert len(store.workload("second")) == 1_000_000


def test_what_a_device_says_may_hold_anything(engine: sa.Engine) -> None:
    store = WorkloadStore(engine)
    facts = {"model": "nul \x00 and \udc80", "hz": float("nan"), "most": [float("inf")], "n": 1.5}
    store.put_target("key", "name \x00 \udc80", facts)
    name, found = store.target("key")
    assert name == "name � ?"
    assert found == {
        "model": "nul \x00 and \udc80",
        "hz": "NaN",
        "most": ["Infinity"],
        "n": 1.5,
    }


@pytest.mark.parametrize("idle", [True, False])
def test_a_connection_that_broke_while_it_lay_idle_is_replaced(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    """A connection that was used a moment ago is not tested: its error asks for a retry."""
    monkeypatch.setattr("tilewright.db.engine.PING_SECONDS", 0.0 if idle else 3600.0)
    engine, other = open_engine(postgres_url), open_engine(postgres_url)
    number = sa.select(sa.func.pg_backend_pid())
    with reading(engine) as connection:
        before = connection.execute(number).scalar_one()
    with reading(other) as connection:
        connection.execute(sa.select(sa.func.pg_terminate_backend(before, 10_000)))
    if not idle:
        with pytest.raises(StorageError) as caught, reading(engine) as connection:
            connection.execute(number)
        assert caught.value.retryable
    with reading(engine) as connection:
        assert connection.execute(number).scalar_one() != before
    engine.dispose()
    other.dispose()
