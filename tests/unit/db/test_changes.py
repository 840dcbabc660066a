"""Changes to the answers of lookups: every commit that changes one is announced, and no other."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db import changes as db_changes
from tilewright.db.changes import (
    LookupChanges,
    PostgresChanges,
    SqliteChanges,
    invalidate_lookups,
    open_changes,
)
from tilewright.db.engine import open_engine, writing
from tilewright.db.errors import DatabaseError, StorageError
from tilewright.db.models import LookupChangeRow
from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.db.stores.claim_rows import record_id
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.retention import Retention, RetentionStore
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tokens import Scope, TokenStore
from tilewright.db.stores.workers import WorkerStore
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord

Heard = Collection[str] | None


def with_changes(engine: sa.Engine, run: Callable[[LookupChanges], Awaitable[None]]) -> None:
    """Run something with changes that have been read once."""

    async def all_of_it() -> None:
        changes = open_changes(engine)
        try:
            assert not changes.unchanged()
            assert await changes.read() is None, "at first anything may have changed"
            await run(changes)
        finally:
            await changes.close()

    asyncio.run(all_of_it())


def say(engine: sa.Engine, *keys: str) -> None:
    with writing(engine) as connection:
        invalidate_lookups(connection, keys)


def test_what_was_committed_is_heard_of_once(engine: sa.Engine) -> None:
    async def run(changes: LookupChanges) -> None:
        assert await changes.read() == ()
        say(engine, "b", "a", "b")
        say(engine, "c")
        assert set(await changes.read() or ()) == {"a", "b", "c"}
        assert await changes.read() == ()

    with_changes(engine, run)


def test_other_commits_change_no_lookup(engine: sa.Engine) -> None:
    async def run(changes: LookupChanges) -> None:
        TokenStore(engine).create("ci", [Scope.READ])
        assert await changes.read() == ()

    with_changes(engine, run)


def test_what_is_not_committed_is_heard_of_when_it_is(engine: sa.Engine) -> None:
    async def run(changes: LookupChanges) -> None:
        with writing(engine) as connection:
            invalidate_lookups(connection, ["a"])
            assert await changes.read() == ()
        assert await changes.read() == {"a"}
        with pytest.raises(ZeroDivisionError), writing(engine) as connection:
            invalidate_lookups(connection, ["b"])
            raise ZeroDivisionError
        assert await changes.read() == ()

    with_changes(engine, run)


def test_who_is_too_far_behind_assumes_that_everything_changed(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_changes, "KEPT", 2)

    async def run(changes: LookupChanges) -> None:
        say(engine, "z")
        await changes.read()
        say(engine, "a", "b")
        assert await changes.read() == {"a", "b"}
        say(engine, "c", "d", "e")
        assert await changes.read() is None
        assert await changes.read() == ()
        say(engine, "f")
        assert await changes.read() == {"f"}

    with_changes(engine, run)
    with engine.connect() as connection:
        kept = sa.select(sa.func.count()).select_from(table_of(LookupChangeRow))
        assert connection.execute(kept).scalar() == 2


def test_a_connection_that_broke_is_an_error_once(engine: sa.Engine) -> None:
    async def run(changes: LookupChanges) -> None:
        assert isinstance(changes, SqliteChanges | PostgresChanges) and changes._own is not None
        if isinstance(changes, PostgresChanges):
            await changes._own.close()
            with pytest.raises(StorageError):
                await changes.read()
        else:
            await changes.close()
        assert not changes.unchanged()
        assert await changes.read() is None

    with_changes(engine, run)


def test_a_database_that_is_away_is_an_error(tmp_path: Path, empty_sqlite: Path) -> None:
    path = tmp_path / "tilewright.db"
    shutil.copy(empty_sqlite, path)
    engine = open_engine(f"sqlite:///{path}")

    async def run(changes: LookupChanges) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE lookup_changes")
        assert not changes.unchanged()
        with pytest.raises(DatabaseError):
            await changes.read()
        assert not changes.unchanged(), "nothing was read"

    with_changes(engine, run)
    engine.dispose()


def test_sqlite_tells_without_a_query_that_nobody_has_committed(
    tmp_path: Path, empty_sqlite: Path
) -> None:
    path = tmp_path / "tilewright.db"
    shutil.copy(empty_sqlite, path)
    engine = open_engine(f"sqlite:///{path}")

    async def run(changes: LookupChanges) -> None:
        assert changes.unchanged()
        TokenStore(engine).create("ci", [Scope.READ])
        assert not changes.unchanged(), "somebody has, and of what is not known"
        reading = asyncio.ensure_future(changes.read())
        while not reading.done():
            assert not changes.unchanged(), "whoever asked has not heard of it yet"
            await asyncio.sleep(0)
        assert await reading == () and changes.unchanged()

    with_changes(engine, run)
    engine.dispose()


# ---- the sources of announcements


WORKLOAD, OTHER = "a" * 64, "b" * 64


def record(workload: str = WORKLOAD, seconds: float = 1e-3, trial: str = "t") -> TuningRecord:
    measurement = Measurement(Status.OK, samples_seconds=(seconds,), worker="w")
    key = RecordKey(workload, "t" * 64)
    return TuningRecord(key, Schedule.of("direct", tile=4), measurement, trial, "1", "0")


def name(of: TuningRecord) -> str:
    return record_id(of.key, of.schedule.digest, of.trial_id)


def test_every_change_of_what_is_served_is_told(engine: sa.Engine) -> None:
    records, ledger = SqlRecordStore(engine), ClaimLedger(engine)
    first, second = record(), record(seconds=5e-4, trial="u")
    again = Measurement(Status.OK, samples_seconds=(1e-3,))

    async def run(changes: LookupChanges) -> None:
        async def heard(act: Callable[[], Any]) -> set[str]:
            act()
            return set(await changes.read() or ())

        assert await heard(lambda: records.add_record(first)) == {WORKLOAD}
        assert not await heard(lambda: ledger.propose(second, "job")), "it is not served yet"
        confirm = lambda: ledger.confirm(name(second), again.to_json(), "", ours=True)  # noqa: E731
        assert await heard(confirm) == {WORKLOAD}
        carry = lambda: ledger.revalidate([name(second)], "2", "1")  # noqa: E731
        assert await heard(carry) == {WORKLOAD}, "the answer says which code generation"
        assert not await heard(lambda: ledger.use([name(second)], "job"))
        withdraw = lambda: ledger.withdraw("bad", record_ids=[name(second)])  # noqa: E731
        assert await heard(withdraw) == {WORKLOAD}
        assert not await heard(withdraw), "it was taken back before"
        assert await heard(lambda: ledger.adopt([(record(OTHER, trial="v"), None)])) == {OTHER}
        slower = record(OTHER, seconds=1.0, trial="x")
        assert not await heard(lambda: ledger.adopt([(slower, None)])), "a faster one is served"

    with_changes(engine, run)


def test_what_a_second_worker_takes_from_a_record_is_told(engine: sa.Engine) -> None:
    """It is served still; whose word it is has changed."""
    records, ledger, workers = SqlRecordStore(engine), ClaimLedger(engine), WorkerStore(engine)
    for worker in ("w", "v"):
        workers.register(worker, [], {}, worker_id=worker, owner=worker)
    again = Measurement(Status.OK, samples_seconds=(1e-3,), worker="v")
    ledger.propose(record(), "job")
    ledger.confirm(name(record()), again.to_json(), again.worker)

    async def run(changes: LookupChanges) -> None:
        ledger.withdraw("bad", workers=["v"])
        assert await changes.read() == {WORKLOAD}
        ledger.dispute(name(record()), again.to_json(), "it is slower")
        assert await changes.read() == {WORKLOAD}
        assert records.best_record(record().key) is None

    with_changes(engine, run)


def test_a_model_that_is_forgotten_is_told(
    engine: sa.Engine, model_digest: str, clock: Any
) -> None:
    async def run(changes: LookupChanges) -> None:
        clock.advance(10 * 86400.0)
        assert RetentionStore(engine, clock).apply(Retention(models=1.0))["models"] == 1
        assert await changes.read() == {model_digest}

    with_changes(engine, run)
