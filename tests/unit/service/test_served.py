"""Lookups: together in one query, each record made into bytes once, and never an old one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from compiler.schedule.schedule import Schedule
from compiler.target import resolve_target
from db.changes import Changes
from db.errors import StorageError, StorageKind
from db.standing import Backing
from db.storage import Storage
from service.api import served as api_served
from service.api.schemas import LookupView, RecordView
from service.api.served import ServedRecords
from tuner.measure.measurement import Measurement, RecordKey, Status, TuningRecord

TARGET = resolve_target("x86-64-v3").key
KIND = (TARGET, 1, "fast")


def record(workload: str, seconds: float = 1e-5) -> TuningRecord:
    samples = (2 * seconds, seconds, 1.5 * seconds)
    measurement = Measurement(Status.OK, samples_seconds=samples, max_error=1e-7, tolerance=1e-4)
    schedule = Schedule.of("direct", tile=4)
    return TuningRecord(RecordKey(workload, TARGET), schedule, measurement, "trial", "1", "0")


def served_of(storage: Storage) -> ServedRecords:
    return ServedRecords(storage.records, Changes(storage.engine))


class Counted:
    """What is asked of the database, and how often a record was made into an answer."""

    def __init__(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queries = 0
        self.views = 0
        sa.event.listen(storage.engine, "before_cursor_execute", self._query)
        view = api_served.record_view

        def counting(record: TuningRecord, backing: Backing) -> RecordView:
            self.views += 1
            return view(record, backing)

        monkeypatch.setattr(api_served, "record_view", counting)

    def _query(self, _c: Any, _cu: Any, statement: str, *_: Any) -> None:
        self.queries += statement.startswith("SELECT") and "FROM records" in statement


def test_lookups_that_come_together_are_one_query(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:064x}" for number in range(20)]
    for name in names:
        storage.records.add_record(record(name))
    served = served_of(storage)
    counted = Counted(storage, monkeypatch)

    async def ask() -> None:
        found = await asyncio.gather(*(served.find(KIND, [name]) for name in names))
        assert all(
            json.loads(each[name])["workload_key"] == name
            for each, name in zip(found, names, strict=True)
        )

    asyncio.run(ask())
    assert (counted.queries, counted.views) == (2, 20), "which are served, and what is in them"
    asyncio.run(ask())
    assert (counted.queries, counted.views) == (2, 20), "nothing was committed since"
    storage.records.add_record(record("f" * 64))
    asyncio.run(ask())
    assert (counted.queries, counted.views) == (3, 20), "what is in them is known still"
    served.close()


def test_a_record_that_was_replaced_or_found_since_is_served_at_once(storage: Storage) -> None:
    served = served_of(storage)

    def seconds() -> float | None:
        found = asyncio.run(served.find(KIND, ["a" * 64]))
        text = found["a" * 64]
        return None if text is None else json.loads(text)["run_seconds"]

    assert seconds() is None
    storage.records.add_record(record("a" * 64))
    assert seconds() == 1e-5
    storage.records.add_record(record("a" * 64, 5e-6))
    assert seconds() == 5e-6


def test_what_is_kept_is_bounded(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_served, "MOST_KEPT", 2)
    served = served_of(storage)
    names = [f"{number:064x}" for number in range(4)]
    for name in names:
        storage.records.add_record(record(name))
    for _ in range(3):
        found = asyncio.run(served.find(KIND, names))
        assert all(found[name] for name in names)
        assert len(served._kept) == 2
        assert served._count == 4


def test_a_database_that_is_away_fails_each_lookup_and_not_the_next(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = served_of(storage)

    def away(*_: object) -> None:
        raise StorageError("away", StorageKind.UNREACHABLE)

    async def ask() -> list[Any]:
        asked = (served.find(KIND, ["a"]), served.find(KIND, ["b"]))
        return await asyncio.gather(*asked, return_exceptions=True)

    with monkeypatch.context() as patched:
        patched.setattr(type(storage.records), "served_versions", away)
        assert [type(each) for each in asyncio.run(ask())] == [StorageError, StorageError]
    assert asyncio.run(ask())[0]["a"] is None


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
