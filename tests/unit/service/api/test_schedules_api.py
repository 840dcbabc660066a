"""Schedules over HTTP."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import problem, upload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord


def record(workload: str, seconds: float = 1e-5) -> TuningRecord:
    key = RecordKey(workload, resolve_target("x86-64-v3").key)
    samples = (2 * seconds, seconds, 1.5 * seconds)
    measurement = Measurement(Status.OK, samples_seconds=samples, max_error=1e-7, tolerance=1e-4)
    return TuningRecord(key, Schedule.of("direct", tile=4), measurement, "trial", "1", "0")


def test_a_schedule_is_looked_up_by_its_key(client: TestClient, storage: Storage) -> None:
    storage.records.add_record(record("a" * 64))
    query = {"workload": "a" * 64, "target": "x86-64-v3"}
    found = client.get("/v1/schedules", params=query).json()
    assert found["schedule"] == {"algorithm": "direct", "choices": {"tile": 4}}
    assert found["run_seconds"] == 1e-5, "the fastest of its samples"
    assert found["measurement"]["samples_seconds"] == pytest.approx([2e-5, 1e-5, 1.5e-5])
    assert found["interval"]["low"] < found["interval"]["high"] == 1e-5
    certificate = found["measurement"]["max_error"], found["measurement"]["tolerance"]
    assert certificate == (1e-7, 1e-4)
    by_key = client.get("/v1/schedules", params={**query, "target": found["target_key"]})
    assert by_key.json() == found
    for wrong in ({"workload": "b" * 64}, {"threads": 2}, {"numerics": "strict"}):
        assert problem(client.get("/v1/schedules", params={**query, **wrong}))[0] == 404


def test_schedules_of_a_list_come_in_its_order(client: TestClient, storage: Storage) -> None:
    storage.records.add_record(record("a" * 64))
    body = {"workloads": ["b" * 64, "a" * 64], "target": "x86-64-v3"}
    found = client.post("/v1/schedules/lookup", json=body).json()
    assert [entry["record"] is not None for entry in found["schedules"]] == [False, True]
    assert found["known"] == 1


def test_schedules_of_a_whole_model(client: TestClient, storage: Storage) -> None:
    body = {"model": upload(client), "dims": {"batch": 2}, "target": "x86-64-v3"}
    before = client.post("/v1/schedules/lookup", json=body).json()
    assert before["known"] == 0
    assert before["schedules"]
    storage.records.add_record(record(before["schedules"][0]["workload_key"]))
    assert client.post("/v1/schedules/lookup", json=body).json()["known"] == 1
    for wrong in ({}, {"model": body["model"], "workloads": []}):
        assert problem(client.post("/v1/schedules/lookup", json=wrong))[0] == 422
    unknown = client.post("/v1/schedules/lookup", json={**body, "model": "0" * 64})
    assert problem(unknown)[0] == 404
