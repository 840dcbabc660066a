"""Workers and leases over HTTP: claim, report, renew, give back."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.measured import honest
from tests.unit.service.lease_calls import TARGET, batch, claim, fail, queue, registered, report
from tilewright.compiler.targets.target import known_targets
from tilewright.db.engine import writing
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import LeaseStore, NewRequest, RequestState
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.app import create_app
from tilewright.service.settings import Settings
from tilewright.tuner.protocol.version import PROTOCOL


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the service has looked for requests for a first claim, which then waits.

    A test names it before `client`, whose application takes the function that is replaced here.
    """
    event, claim_all = threading.Event(), LeaseStore.claim_all

    def look(*arguments: Any, **options: Any) -> Any:
        found = claim_all(*arguments, **options)
        event.set()
        return found

    monkeypatch.setattr(LeaseStore, "claim_all", look)
    return event


@pytest.fixture
def worker(client: TestClient) -> str:
    return registered(client)


def test_claims_are_batched_and_never_shared(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a", "b", "c")
    first = claim(client, worker, limit=2)
    second = claim(client, worker, limit=2)
    assert [lease["request_id"] for lease in first] == ["a", "b"]
    assert [lease["request_id"] for lease in second] == ["c"]
    assert first[0]["attempt"] == 1
    assert first[0]["payload"] == batch("a").to_json()


def test_a_worker_gets_no_work_for_other_targets(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a", target=known_targets()["x86-64-v4"].key)
    assert claim(client, worker) == []


def test_a_long_poll_returns_as_soon_as_there_is_work(
    looked: threading.Event,
    client: TestClient,
    settings: Settings,
    storage: Storage,
    worker: str,
) -> None:
    patient = settings.model_copy(update={"long_poll_seconds": 30.0})
    cast(FastAPI, client.app).state.settings = patient

    def later() -> None:
        assert looked.wait(60.0)
        queue(storage, "late")

    thread = threading.Thread(target=later)
    thread.start()
    leases = claim(client, worker, wait=30.0)
    thread.join()
    assert [lease["request_id"] for lease in leases] == ["late"]


def test_a_result_may_be_reported_again_and_is_saved_once(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a")
    (lease,) = claim(client, worker)
    assert report(client, worker, lease).json() == {"completion": "accepted"}
    assert report(client, worker, lease).json() == {"completion": "duplicate"}
    other = report(client, worker, lease, "k2")
    assert (other.status_code, other.json()["type"]) == (409, "urn:tilewright:problem:stale-lease")
    assert storage.leases.status(["a"])["a"].result == honest(batch("a"), worker).to_json()


def test_a_lease_that_moved_on_is_refused(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a")
    (old,) = claim(client, worker)
    assert fail(client, worker, old).json() == {"state": "queued"}
    assert fail(client, worker, old).status_code == 409
    assert claim(client, worker) == [], "not at once"
    with writing(storage.engine) as connection:
        connection.execute(sa.text("UPDATE measure_requests SET not_before = 0"))
    (new,) = claim(client, worker)
    assert new["lease_id"] != old["lease_id"]
    assert report(client, worker, old).status_code == 409
    assert report(client, worker, new).status_code == 200


def test_another_tokens_worker_ends_no_lease(
    anonymous: TestClient, storage: Storage, owner: str
) -> None:
    """Neither by its own name nor by that of the worker whose lease it is."""
    clients = []
    for name in ("mine", "thief"):
        secret, _ = storage.tokens.create(name, [Scope.MEASURE])
        headers = {"Authorization": f"Bearer {secret}"}
        body = {"name": name, "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
        made = anonymous.post("/v1/workers", json=body, headers=headers).json()["worker"]["id"]
        clients.append((made, headers))
    (mine, my_token), (thief, his_token) = clients
    queue(storage, "a")
    body = {"worker_id": mine, "limit": 1}
    answer = anonymous.post("/v1/leases/claim", json=body, headers=my_token)
    (lease,) = answer.json()["leases"]
    path = f"/v1/leases/{lease['lease_id']}"
    for worker, status in ((thief, 404), (mine, 403)):
        lie = honest(batch("a"), seconds=1e-8).to_json()
        result = {"worker_id": worker, "result_key": "k", "result": lie}
        assert (
            anonymous.post(f"{path}/result", json=result, headers=his_token).status_code == status
        )
        failure = {"worker_id": worker, "cause": "service", "error": "no"}
        answer = anonymous.post(f"{path}/failure", json=failure, headers=his_token)
        assert answer.status_code == status
        release = {"worker_id": worker, "leases": [lease["lease_id"]]}
        answer = anonymous.post("/v1/leases/release", json=release, headers=his_token)
        assert answer.status_code == 403 if worker == mine else answer.json() == {"released": 0}
        beat = {"leases": [lease["lease_id"]]}
        answer = anonymous.post(f"/v1/workers/{worker}/heartbeat", json=beat, headers=his_token)
        assert answer.status_code == 403 if worker == mine else answer.json()["renewed"] == {}
    (row,) = storage.leases.history("a")
    assert row.ended_at is None and row.token_id is not None
    assert storage.leases.status(["a"])["a"].state is RequestState.LEASED


def test_a_name_of_a_lease_that_cannot_be_is_refused_and_no_error_of_the_service(
    client: TestClient, storage: Storage, worker: str
) -> None:
    """Numbers of more than 64 bits once ended in an error of the database."""
    for name in (10**30, -1, "x" * 5000, "1" * 31, None, {"a": 1}):
        beat = {"leases": [name]}
        assert client.post(f"/v1/workers/{worker}/heartbeat", json=beat).status_code == 422
        release = {"worker_id": worker, "leases": [name]}
        assert client.post("/v1/leases/release", json=release).status_code == 422
    for path in ("9" * 40, "x" * 5000, "%00", "..%2f..%2fblobs"):
        assert report(client, worker, {"lease_id": path}).status_code in (404, 405, 422)


def test_a_heartbeat_renews_and_names_what_is_lost(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a", "b")
    leases = [lease["lease_id"] for lease in claim(client, worker, limit=2)]
    storage.leases.cancel(request_ids=["b"])
    answer = client.post(f"/v1/workers/{worker}/heartbeat", json={"leases": leases}).json()
    assert list(answer["renewed"]) == leases[:1]


def test_released_leases_go_back_to_the_queue(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a")
    (lease,) = claim(client, worker)
    body = {"worker_id": worker, "leases": [lease["lease_id"]]}
    assert client.post("/v1/leases/release", json=body).json() == {"released": 1}
    assert storage.leases.status(["a"])["a"].state is RequestState.QUEUED
    (again,) = claim(client, worker)
    assert again["attempt"] == 1


def test_a_long_poll_ends_without_work_for_a_worker_that_is_drained_meanwhile(
    looked: threading.Event, client: TestClient, storage: Storage, worker: str
) -> None:
    def later() -> None:
        assert looked.wait(60.0)
        storage.workers.drain(worker)
        queue(storage, "late")

    thread = threading.Thread(target=later)
    thread.start()
    assert claim(client, worker, wait=0.5) == []
    thread.join()
    assert storage.leases.status(["late"])["late"].state is RequestState.QUEUED


def test_a_long_poll_ends_at_once_for_a_worker_that_leaves(
    settings: Settings, storage: Storage, owner: str, looked: threading.Event
) -> None:
    """The worker waits for this answer before it ends."""

    def later() -> None:
        assert looked.wait(60.0)
        storage.workers.leave(worker)

    patient = settings.model_copy(update={"long_poll_seconds": 120.0})
    header = {"Authorization": f"Bearer {owner}"}
    with TestClient(create_app(patient, storage), headers=header) as client:
        body = {"name": "bench-1", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
        worker = client.post("/v1/workers", json=body).json()["worker"]["id"]
        thread = threading.Thread(target=later)
        began = time.monotonic()
        thread.start()
        assert claim(client, worker, wait=100.0) == []
        thread.join()
    assert time.monotonic() - began < 90.0


def test_blobs_are_served_by_digest(client: TestClient, storage: Storage) -> None:
    digest = storage.blobs.put(b"kernel")
    assert client.get(f"/v1/blobs/{digest}").content == b"kernel"
    for missing in ("0" * 64, "..%2f..%2ftoken", "x"):
        assert client.get(f"/v1/blobs/{missing}").status_code == 404


def test_a_measure_token_reads_the_blobs_of_its_leases_alone(
    anonymous: TestClient, storage: Storage
) -> None:
    """By digest a worker could read every model; a blob that is not in its leases looks missing."""
    mine, other, model = (storage.blobs.put(data) for data in (b"mine", b"other", b"a model"))
    for name, digest in (("a", mine), ("b", other)):
        storage.leases.submit([NewRequest(name, TARGET, {}, (digest,))])
    clients = []
    for name in ("one", "two"):
        secret, _ = storage.tokens.create(name, [Scope.MEASURE])
        header = {"Authorization": f"Bearer {secret}"}
        body = {"name": "w", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
        made = anonymous.post("/v1/workers", json=body, headers=header).json()["worker"]["id"]
        clients.append((header, made))

    def status(header: dict[str, str], digest: str) -> int:
        answer = anonymous.get(f"/v1/blobs/{digest}", headers=header)
        assert answer.status_code == 200 or answer.json()["what"] == "blob"
        return answer.status_code

    (one, first), (two, second) = clients
    assert status(one, mine) == 404, "it has no lease yet"
    for header, worker, name in ((one, first, "a"), (two, second, "b")):
        body = {"worker_id": worker, "limit": 1}
        answer = anonymous.post("/v1/leases/claim", json=body, headers=header)
        assert [lease["request_id"] for lease in answer.json()["leases"]] == [name]
    assert [status(one, digest) for digest in (mine, other, model)] == [200, 404, 404]
    assert [status(two, digest) for digest in (mine, other, model)] == [404, 200, 404]
    storage.leases.cancel(request_ids=["a"])
    assert status(one, mine) == 404, "its lease is over"
    admin, _ = storage.tokens.create("root", [Scope.ADMIN])
    assert status({"Authorization": f"Bearer {admin}"}, model) == 200


def test_a_lease_runs_out_by_the_hand_of_the_service(settings: Settings, storage: Storage) -> None:
    worker = storage.workers.register("w", [TARGET], {})
    queue(storage, "a")
    storage.leases.claim(worker.id, [TARGET], limit=1, lease_seconds=0.2)
    started = time.monotonic()
    with TestClient(create_app(settings, storage)):
        while storage.leases.status(["a"])["a"].state is not RequestState.QUEUED:
            assert time.monotonic() - started < 60
            time.sleep(0.02)
