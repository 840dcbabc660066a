"""Lookups: grouped in one query, each record encoded once, and never a stale one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.changes import SqliteChanges, open_changes
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.review_state import Attestation
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import StoredRecord
from tilewright.db.stores.tokens import Scope
from tilewright.service.api import record_cache
from tilewright.service.api.cache import Invalidation
from tilewright.service.api.record_cache import RecordCache
from tilewright.service.api.schemas.lookups import LookupView, RecordView
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord

TARGET = resolve_target("x86-64-v3").key
KIND = (TARGET, 1, "fast")


def record(workload: str, seconds: float = 1e-5) -> TuningRecord:
    samples = (2 * seconds, seconds, 1.5 * seconds)
    measurement = Measurement(Status.OK, samples_seconds=samples, max_error=1e-7, tolerance=1e-4)
    schedule = Schedule.of("direct", tile=4)
    return TuningRecord(RecordKey(workload, TARGET), schedule, measurement, "trial", "1", "0")


def with_served(storage: Storage, run: Callable[[RecordCache], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        invalidation = Invalidation(open_changes(storage.engine))
        try:
            await run(RecordCache(storage.ledger, invalidation))
        finally:
            await invalidation.close()

    asyncio.run(all_of_it())


class Counted:
    """The queries to the database, and how often a record was encoded into an answer."""

    def __init__(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queries = 0
        self.views = 0
        sa.event.listen(storage.engine, "before_cursor_execute", self._query)
        view = record_cache.record_view

        def counting(record: TuningRecord, attestation: Attestation) -> RecordView:
            self.views += 1
            return view(record, attestation)

        monkeypatch.setattr(record_cache, "record_view", counting)

    def _query(self, _c: Any, _cu: Any, statement: str, *_: Any) -> None:
        self.queries += statement.startswith("SELECT") and "FROM claims" in statement


def test_lookups_that_come_together_are_one_query(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:064x}" for number in range(20)]
    for name in names:
        storage.records.add_record(record(name))
    counted = Counted(storage, monkeypatch)

    async def run(served: RecordCache) -> None:
        async def ask() -> None:
            found = await asyncio.gather(*(served.find(KIND, [name]) for name in names))
            for each, name in zip(found, names, strict=True):
                assert json.loads(each[name] or b"")["workload_key"] == name

        await ask()
        assert (counted.queries, counted.views) == (1, 20)
        await ask()
        assert (counted.queries, counted.views) == (1, 20), "nothing was committed since"
        storage.tokens.create("ci", [Scope.READ])
        await ask()
        assert (counted.queries, counted.views) == (1, 20), "nothing of records was"
        storage.records.add_record(record("f" * 64))
        await ask()
        assert (counted.queries, counted.views) == (1, 20), "nothing of these records was"
        storage.records.add_record(record(names[0], 5e-6))
        await ask()
        assert (counted.queries, counted.views) == (2, 21), "one of them is another"

    with_served(storage, run)


def test_a_record_that_was_replaced_or_found_since_is_served_at_once(storage: Storage) -> None:
    async def run(served: RecordCache) -> None:
        async def seconds() -> float | None:
            found = await served.find(KIND, ["a" * 64])
            text = found["a" * 64]
            return json.loads(text)["run_seconds"] if text else None

        assert await seconds() is None
        storage.records.add_record(record("a" * 64))
        assert await seconds() == 1e-5
        storage.records.add_record(record("a" * 64, 5e-6))
        assert await seconds() == 5e-6

    with_served(storage, run)


class HeldRecords:
    """A ledger that reads at once and answers when it may."""

    def __init__(self, storage: Storage) -> None:
        self._ledger = storage.ledger
        self.has_read, self.may_answer = threading.Event(), threading.Event()

    def served(self, keys: Sequence[RecordKey]) -> dict[RecordKey, StoredRecord]:
        found = self._ledger.served(keys)
        self.has_read.set()
        assert self.may_answer.wait(60)
        return found


@pytest.mark.parametrize("everything", [False, True])
def test_what_changes_while_it_is_read_is_not_kept(storage: Storage, everything: bool) -> None:
    """The change is heard of before the answer to the query: it will not be heard of again."""
    storage.records.add_record(record("a" * 64))
    held = HeldRecords(storage)

    async def run() -> None:
        changes = open_changes(storage.engine)
        invalidation = Invalidation(changes)
        served = RecordCache(held, invalidation)  # type: ignore[arg-type]
        first = asyncio.create_task(served.find(KIND, ["a" * 64]))
        while not held.has_read.is_set():
            await asyncio.sleep(0)
        storage.records.add_record(record("a" * 64, 5e-6))
        if everything:
            await changes.close()
        await invalidation.refresh()
        held.may_answer.set()
        assert json.loads((await first)["a" * 64] or b"")["run_seconds"] == 1e-5
        found = await served.find(KIND, ["a" * 64])
        assert json.loads(found["a" * 64] or b"")["run_seconds"] == 5e-6
        await invalidation.close()

    asyncio.run(run())


def test_who_asks_after_a_commit_waits_for_a_look_that_began_after_it() -> None:
    """A look that is under way may have missed it."""

    class Looks:
        """Changes of which each call waits until it may go on."""

        def __init__(self) -> None:
            self.begun = 0
            self.may_go_on = asyncio.Event()

        def unchanged(self) -> bool:
            return False

        async def read(self) -> Collection[str] | None:
            self.begun += 1
            await self.may_go_on.wait()
            return ()

        async def close(self) -> None: ...

    async def run() -> None:
        looks = Looks()
        invalidation = Invalidation(looks)
        first = asyncio.create_task(invalidation.refresh())
        while not looks.begun:
            await asyncio.sleep(0)
        others = [asyncio.create_task(invalidation.refresh()) for _ in range(5)]
        await asyncio.sleep(0)
        others.pop().cancel()  # takes nothing from the others
        looks.may_go_on.set()
        await asyncio.gather(first, *others)
        assert looks.begun == 2, "one more, for all of them"

    asyncio.run(run())


def test_what_is_kept_is_bounded(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_cache, "MOST_KEPT", 5)
    names = [f"{number:064x}" for number in range(4)]
    for name in names:
        storage.records.add_record(record(name))

    async def run(served: RecordCache) -> None:
        for number in range(20):
            found = await served.find(KIND, names)
            assert all(found[name] for name in names)
            assert (await served.find(KIND, [f"{100 + number:064x}"])).popitem()[1] == b""
            assert len(served._kept) == served._kept.size <= 5

    with_served(storage, run)


def test_a_database_that_is_away_fails_each_lookup_and_not_the_next(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StorageError("away", StorageKind.UNREACHABLE)

    async def run(served: RecordCache) -> None:
        async def ask() -> list[Any]:
            asked = (served.find(KIND, ["a"]), served.find(KIND, ["b"]))
            return await asyncio.gather(*asked, return_exceptions=True)

        for kind, method in ((type(storage.ledger), "served"), (SqliteChanges, "_read")):
            with monkeypatch.context() as patched:
                patched.setattr(kind, method, away)
                storage.tokens.create("ci", [Scope.READ])
                assert [type(each) for each in await ask()] == [StorageError, StorageError]
        assert (await ask())[0]["a"] == b""

    with_served(storage, run)


def test_a_lookup_says_whose_word_it_answers_with(client: TestClient, storage: Storage) -> None:
    one, two = (storage.workers.register(n, [], {}, owner=n).id for n in ("mean", "honest"))
    made = record("a" * 64)
    said = replace(made.measurement, worker=one)
    storage.ledger.propose(replace(made, measurement=said), "job")
    (proposed,) = storage.ledger.provisional("job")
    params = {"workload": "a" * 64, "target": TARGET}

    def attestation() -> Any:
        return client.get("/v1/schedules", params=params).json().get("attestation")

    assert attestation() is None, "measured once: nobody is served"
    storage.ledger.confirm(proposed.id, said.to_json(), said.worker)
    assert attestation() == "one-worker"
    storage.ledger.confirm(proposed.id, said.to_json(), two)
    assert attestation() == "two-owners"
    storage.ledger.withdraw("sick", workers=[two])
    assert attestation() is None, "one report is left"


def test_answers_are_what_the_schemas_say(client: TestClient, storage: Storage) -> None:
    """They are put together as bytes, and no schema has seen them."""
    storage.records.add_record(record("a" * 64))
    single = client.get("/v1/schedules", params={"workload": "a" * 64, "target": TARGET})
    assert RecordView.model_validate_json(single.content).model_dump_json() == single.text
    body = {"workloads": ["a" * 64, "b" * 64], "target": "x86-64-v3"}
    bulk = client.post("/v1/schedules/lookup", json=body)
    view = LookupView.model_validate_json(bulk.content)
    assert view.model_dump_json() == bulk.text
    assert view.known == 1
    assert client.post("/v1/schedules/lookup", json={"workloads": []}).json()["schedules"] == []
