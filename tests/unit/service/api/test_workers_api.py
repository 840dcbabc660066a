"""Workers over HTTP: their identity, their owners, and whether they get work."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from rich.console import Console

from tests.unit.db.test_records import GOOD, trial
from tests.unit.service.api_calls import problem
from tests.unit.service.conftest import with_scopes
from tests.unit.service.lease_calls import TARGET, claim, fail, queue, registered, report
from tilewright.db.engine import writing
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import RequestState
from tilewright.db.stores.tokens import Scope
from tilewright.db.stores.workers import Health, WorkerStore
from tilewright.service.api import heartbeat_pacing
from tilewright.service.api.schemas.workers import WorkerView
from tilewright.service.cli.view import worker_table
from tilewright.tuner.protocol.version import PROTOCOL


@pytest.fixture
def worker(client: TestClient) -> str:
    return registered(client)


def test_where_there_are_many_each_worker_says_less_often_that_it_lives(
    client: TestClient, storage: Storage, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its leases last long enough to miss some heartbeats."""
    path = f"/v1/workers/{worker}/heartbeat"
    assert client.post(path, json={}).json()["heartbeat_seconds"] == 0.2, "as is set"
    monkeypatch.setattr(heartbeat_pacing, "MOST_A_SECOND", 0.1)
    queue(storage, "a")
    (lease,) = claim(client, worker)
    assert lease["deadline"] < storage.clock() + 31
    answer = client.post(path, json={"leases": [lease["lease_id"]]}).json()
    assert answer["heartbeat_seconds"] == 10.0
    assert answer["renewed"][lease["lease_id"]] < storage.clock() + 31
    monkeypatch.setattr(heartbeat_pacing, "MOST_A_SECOND", 0.001)
    answer = client.post(path, json={"leases": [lease["lease_id"]]}).json()
    assert answer["heartbeat_seconds"] == 20.0, "none is lost who misses two"
    assert answer["renewed"][lease["lease_id"]] > lease["deadline"] + 29


def test_a_worker_that_is_forgotten_in_this_very_moment_is_named(
    client: TestClient, storage: Storage, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerStore, "heartbeats", lambda store, signs: [None for _ in signs])
    answer = client.post(f"/v1/workers/{worker}/heartbeat", json={})
    assert answer.status_code == 404 and f"'{worker}'" in answer.json()["detail"]


def test_a_drained_worker_finishes_what_it_has_and_gets_nothing_new(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a", "b")
    (lease,) = claim(client, worker)
    path = f"/v1/workers/{worker}/drain"
    drained = client.post(path, json={}).json()
    assert (drained["health"], drained["draining"], drained["in_hand"]) == ("draining", True, 1)
    assert claim(client, worker) == []
    # its work goes on: its lease is renewed, its result taken
    beat = {"leases": [lease["lease_id"]]}
    answer = client.post(f"/v1/workers/{worker}/heartbeat", json=beat).json()
    assert list(answer["renewed"]) == beat["leases"] and answer["health"] == "draining"
    assert report(client, worker, lease).status_code == 200
    (listed,) = client.get("/v1/workers").json()
    assert (listed["draining"], listed["in_hand"]) == (True, 0)
    # also after a restart, and if it was silent meanwhile
    body = {"name": "bench-1", "protocol": PROTOCOL, "targets": ["x86-64-v3"], "worker_id": worker}
    assert client.post("/v1/workers", json=body).status_code == 201
    assert claim(client, worker) == []
    with writing(storage.engine) as connection:
        connection.execute(sa.text("UPDATE workers SET last_heartbeat = 0"))
    assert storage.workers.get(worker).health is Health.LOST
    assert claim(client, worker) == []
    assert client.post(path, json={"draining": False}).json()["draining"] is False
    assert [lease["request_id"] for lease in claim(client, worker)] == ["b"]


def test_a_registration_that_comes_twice_makes_one_worker(
    client: TestClient, storage: Storage, anonymous: TestClient
) -> None:
    drawn = "0123456789abcdef" * 2
    body = {"name": "bench-1", "protocol": PROTOCOL, "targets": ["x86-64-v3"], "worker_id": drawn}
    answers = [client.post("/v1/workers", json=body) for _ in range(2)]
    assert [(a.status_code, a.json()["worker"]["id"]) for a in answers] == [(201, drawn)] * 2
    assert [worker.id for worker in storage.workers.list()] == [drawn]
    secret, _ = storage.tokens.create("other", [Scope.MEASURE])
    stolen = anonymous.post("/v1/workers", json=body, headers={"Authorization": f"Bearer {secret}"})
    assert stolen.status_code == 403
    for wrong in ("x", drawn.upper(), drawn + "0", "../" + drawn[3:]):
        assert client.post("/v1/workers", json={**body, "worker_id": wrong}).status_code == 422


def test_a_worker_is_drained_by_its_token_or_an_admin(
    anonymous: TestClient, storage: Storage
) -> None:
    headers = []
    for scope in (Scope.MEASURE, Scope.MEASURE, Scope.READ, Scope.ADMIN):
        secret, _ = storage.tokens.create(scope.value, [scope])
        headers.append({"Authorization": f"Bearer {secret}"})
    body = {"name": "w", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
    made = anonymous.post("/v1/workers", json=body, headers=headers[0]).json()["worker"]["id"]
    path = f"/v1/workers/{made}/drain"
    statuses = [anonymous.post(path, json={}, headers=some).status_code for some in headers]
    assert statuses == [200, 404, 403, 200]
    for given in (made, made[:8]):
        gone = [anonymous.delete(f"/v1/workers/{given}", headers=some) for some in headers[:3]]
        assert [one.status_code for one in gone] == [204, 404, 403]
        assert problem(gone[1])[2] == f"worker '{given}' does not exist", "it names no whole id"


def test_a_worker_comes_back_under_its_id(
    client: TestClient, storage: Storage, worker: str
) -> None:
    storage.records.add_trials([trial(1, replace(GOOD, worker=worker))])
    body = {"name": "bench-1", "protocol": PROTOCOL, "worker_id": worker}
    told = client.post("/v1/workers", json=body).json()["worker"]
    assert (told["id"], told["trials"]) == (worker, {"ok": 1})
    client.delete(f"/v1/workers/{worker}")
    assert client.get("/v1/workers", params={"alive": True}).json() == []


@pytest.mark.parametrize(
    ("protocol", "advice"),
    [
        (PROTOCOL - 1, "the worker is older; install the service's release of tilewright there"),
        (PROTOCOL + 1, "the service is older; update it, or install its release on the worker"),
    ],
)
def test_a_worker_of_another_protocol_is_told_which_side_is_old(
    client: TestClient, protocol: int, advice: str
) -> None:
    answer = client.post("/v1/workers", json={"name": "w", "protocol": protocol})
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:tilewright:problem:protocol-version"
    said = f"worker 'w' speaks protocol {protocol}, the service {PROTOCOL}"
    assert answer.json()["detail"] == f"{said}: {advice}"


def test_a_worker_that_outlived_an_update_of_the_service_is_told_so(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a")
    with writing(storage.engine) as connection:
        connection.execute(sa.text(f"UPDATE workers SET protocol = {PROTOCOL - 1}"))
    answer = client.post("/v1/leases/claim", json={"worker_id": worker, "limit": 1})
    assert answer.status_code == 409 and "the worker is older" in answer.json()["detail"]
    assert storage.leases.status(["a"])["a"].state is RequestState.QUEUED


def test_an_unknown_target_is_named(client: TestClient) -> None:
    body = {"name": "w", "protocol": PROTOCOL, "targets": ["z80"]}
    answer = client.post("/v1/workers", json=body)
    assert (answer.status_code, answer.json()["type"]) == (
        422,
        "urn:tilewright:problem:unknown-target",
    )
    assert "z80" in answer.json()["detail"]


def test_a_worker_belongs_to_the_token_that_registered_it(
    anonymous: TestClient, storage: Storage
) -> None:
    headers = []
    for name in ("one", "two"):
        secret, _ = storage.tokens.create(name, [Scope.MEASURE])
        headers.append({"Authorization": f"Bearer {secret}"})
    body = {"name": "w", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
    made = anonymous.post("/v1/workers", json=body, headers=headers[0]).json()["worker"]["id"]
    path = f"/v1/workers/{made}/heartbeat"
    assert anonymous.post(path, json={}, headers=headers[0]).status_code == 200
    assert anonymous.post(path, json={}, headers=headers[1]).status_code == 403


def test_a_worker_that_left_claims_nothing_until_it_introduces_itself_again(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a")
    assert client.delete(f"/v1/workers/{worker}").status_code == 204
    # messages that were on their way
    assert client.post(f"/v1/workers/{worker}/heartbeat", json={}).json()["health"] == "gone"
    answer = client.post("/v1/leases/claim", json={"worker_id": worker, "limit": 1})
    assert (answer.status_code, answer.json()["what"]) == (404, "worker")
    assert storage.leases.status(["a"])["a"].state is RequestState.QUEUED
    body = {"name": "bench-1", "protocol": PROTOCOL, "targets": ["x86-64-v3"], "worker_id": worker}
    assert client.post("/v1/workers", json=body).status_code == 201
    assert [lease["request_id"] for lease in claim(client, worker)] == ["a"]


def test_a_worker_in_quarantine_gets_nothing_and_says_why(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, *"abcdefg")
    for lease in claim(client, worker, limit=5):
        assert fail(client, worker, lease, "worker").json() == {"state": "queued"}
    assert claim(client, worker) == []
    (listed,) = client.get("/v1/workers").json()
    assert listed["health"] == "quarantined"
    assert listed["quarantine"]["reason"] == "5 failures of its own, the last: no"
    assert listed["quarantine"]["canary_at"] > listed["quarantine"]["since"]
    table = Console(width=200, file=io.StringIO())
    table.print(worker_table([WorkerView.model_validate(listed)]))
    shown = table.file.getvalue()  # type: ignore[attr-defined]
    assert "quarantined" in shown and "5 failures of its own, the last: no" in shown
    # only an admin may clear its fault
    measurer = with_scopes(storage, Scope.MEASURE)
    path = f"/v1/workers/{worker}/drain"
    assert client.post(path, json={"draining": False}, headers=measurer).status_code == 404
    answer = client.post(path, json={"draining": False})
    assert (answer.json()["health"], answer.json()["quarantine"]) == ("healthy", None)
    taken = {lease["request_id"] for lease in claim(client, worker, limit=9)}
    assert taken >= {"f", "g"}, "and those that wait for another attempt, if their time has come"


def test_the_owner_of_a_worker_does_not_end_its_quarantine(
    anonymous: TestClient, storage: Storage
) -> None:
    mine = with_scopes(storage, Scope.MEASURE)
    body = {"name": "w", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
    worker = anonymous.post("/v1/workers", json=body, headers=mine).json()["worker"]["id"]
    queue(storage, *"abcde")
    for lease in storage.leases.claim(worker, [TARGET], limit=5, lease_seconds=60):
        storage.leases.refuse(lease.lease_id, worker, "it lies")
    path = f"/v1/workers/{worker}/drain"
    answer = anonymous.post(path, json={"draining": False}, headers=mine)
    assert (answer.status_code, answer.json()["health"]) == (200, "quarantined")


def test_a_throttled_worker_is_marked(client: TestClient, worker: str, storage: Storage) -> None:
    (before,) = client.get("/v1/workers").json()
    assert before["speed"] is None
    speed = {
        "arithmetic_seconds": 4e-4,
        "memory_seconds": 5e-4,
        "arithmetic_ratio": 1.5,
        "memory_ratio": 1.0,
        "disturbed": True,
        "throttled": True,
    }
    path = f"/v1/workers/{worker}/heartbeat"
    assert client.post(path, json={"leases": [], "speed": speed}).status_code == 200
    # fields that a heartbeat leaves out stay as they were
    assert client.post(path, json={"leases": []}).status_code == 200
    (after,) = client.get("/v1/workers").json()
    assert after["speed"] == speed
    assert "tilewright_workers_throttled 1.0" in client.get("/v1/metrics").text
    table = Console(width=200, file=io.StringIO())
    table.print(worker_table([WorkerView.model_validate(after)]))
    shown = table.file.getvalue()  # type: ignore[attr-defined]
    assert "throttled" in shown and "0.67x" in shown
    assert client.post(path, json={"speed": {**speed, "memory_ratio": "x"}}).status_code == 422
