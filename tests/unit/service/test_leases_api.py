"""Workers and leases over HTTP: claim, report, renew, give back."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from rich.console import Console

from compiler.target import known_targets
from db.engine import writing
from db.storage import Storage
from db.stores.leases import LeaseStore, NewRequest, RequestState
from db.stores.tokens import Scope
from db.stores.workers import Health, WorkerStore
from service.api import pulse
from service.api.app import create_app
from service.api.schemas.workers import WorkerView
from service.cli.view import worker_table
from service.settings import Settings
from tests.measured import honest
from tests.unit.service.conftest import with_scopes
from tuner.measure.measurement import RecordKey
from tuner.measure.wire import PROTOCOL, Candidate, Case, MeasureRequest

TARGET = known_targets()["x86-64-v3"].key


@pytest.fixture
def worker(client: TestClient) -> str:
    body = {"name": "bench-1", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
    answer = client.post("/v1/workers", json=body)
    assert answer.status_code == 201
    worker_id: str = answer.json()["worker"]["id"]
    return worker_id


def batch(name: str) -> MeasureRequest:
    """A request of one candidate."""
    return MeasureRequest(
        request_id=name,
        key=RecordKey("w" * 64, TARGET),
        candidates=(Candidate(f"t-{name}", {}, "d" * 64, {}, "o" * 64),),
        library_digest="a" * 64,
        cases=(Case((), "e" * 64),),
        tolerance=1e-4,
    )


def queue(storage: Storage, *ids: str, target: str = TARGET) -> None:
    storage.leases.submit([NewRequest(i, target, batch(i).to_json()) for i in ids])


def claim(client: TestClient, worker: str, limit: int = 1, wait: float = 0.0) -> list[Any]:
    body = {"worker_id": worker, "limit": limit, "wait_seconds": wait}
    answer = client.post("/v1/leases/claim", json=body)
    assert answer.status_code == 200, answer.text
    leases: list[Any] = answer.json()["leases"]
    return leases


def report(client: TestClient, worker: str, lease: Any, key: str = "k1") -> Any:
    result = honest(batch(lease.get("request_id", "a"))).to_json()
    body = {"worker_id": worker, "result_key": key, "result": result}
    return client.post(f"/v1/leases/{lease['lease_id']}/result", json=body)


def fail(client: TestClient, worker: str, lease: Any, cause: str = "service") -> Any:
    body = {"worker_id": worker, "cause": cause, "error": "no"}
    return client.post(f"/v1/leases/{lease['lease_id']}/failure", json=body)


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
    client: TestClient, storage: Storage, worker: str
) -> None:
    def later() -> None:
        time.sleep(0.1)
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


def test_where_there_are_many_each_worker_says_less_often_that_it_lives(
    client: TestClient, storage: Storage, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its leases last as long as it takes to miss some of that."""
    path = f"/v1/workers/{worker}/heartbeat"
    assert client.post(path, json={}).json()["heartbeat_seconds"] == 0.2, "as is set"
    monkeypatch.setattr(pulse, "MOST_A_SECOND", 0.1)
    queue(storage, "a")
    (lease,) = claim(client, worker)
    assert lease["deadline"] < storage.clock() + 31
    answer = client.post(path, json={"leases": [lease["lease_id"]]}).json()
    assert answer["heartbeat_seconds"] == 10.0
    assert answer["renewed"][lease["lease_id"]] < storage.clock() + 31
    monkeypatch.setattr(pulse, "MOST_A_SECOND", 0.001)
    answer = client.post(path, json={"leases": [lease["lease_id"]]}).json()
    assert answer["heartbeat_seconds"] == 20.0, "none is lost who misses two"
    assert answer["renewed"][lease["lease_id"]] > lease["deadline"] + 29


def test_a_worker_that_is_forgotten_in_this_very_moment_is_named(
    client: TestClient, storage: Storage, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerStore, "heartbeats", lambda store, signs: [None for _ in signs])
    answer = client.post(f"/v1/workers/{worker}/heartbeat", json={})
    assert answer.status_code == 404 and f"'{worker}'" in answer.json()["detail"]


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


def test_a_drained_worker_finishes_what_it_has_and_gets_nothing_new(
    client: TestClient, storage: Storage, worker: str
) -> None:
    queue(storage, "a", "b")
    (lease,) = claim(client, worker)
    path = f"/v1/workers/{worker}/drain"
    drained = client.post(path, json={}).json()
    assert (drained["health"], drained["draining"], drained["in_hand"]) == ("draining", True, 1)
    assert claim(client, worker) == []
    # what it has goes on: its lease is renewed, its result taken
    beat = {"leases": [lease["lease_id"]]}
    answer = client.post(f"/v1/workers/{worker}/heartbeat", json=beat).json()
    assert list(answer["renewed"]) == beat["leases"] and answer["health"] == "draining"
    assert report(client, worker, lease).status_code == 200
    (listed,) = client.get("/v1/workers").json()
    assert (listed["draining"], listed["in_hand"]) == (True, 0)
    # also after a restart, and when it was silent meanwhile
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


def test_a_long_poll_ends_without_work_for_a_worker_that_is_drained_meanwhile(
    client: TestClient, storage: Storage, worker: str
) -> None:
    def later() -> None:
        time.sleep(0.1)
        storage.workers.drain(worker)
        queue(storage, "late")

    thread = threading.Thread(target=later)
    thread.start()
    assert claim(client, worker, wait=0.5) == []
    thread.join()
    assert storage.leases.status(["late"])["late"].state is RequestState.QUEUED


def test_a_long_poll_ends_at_once_for_a_worker_that_leaves(
    settings: Settings, storage: Storage, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker waits for this answer before it ends."""
    looked = threading.Event()
    claim_all = LeaseStore.claim_all

    def look(*arguments: Any, **options: Any) -> Any:
        looked.set()
        return claim_all(*arguments, **options)

    def later() -> None:
        looked.wait(60.0)
        storage.workers.leave(worker)

    monkeypatch.setattr(LeaseStore, "claim_all", look)
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
    assert statuses == [200, 403, 403, 200]


def test_a_worker_comes_back_under_its_id(client: TestClient, worker: str) -> None:
    body = {"name": "bench-1", "protocol": PROTOCOL, "worker_id": worker}
    assert client.post("/v1/workers", json=body).json()["worker"]["id"] == worker
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


def test_blobs_are_served_by_digest(client: TestClient, storage: Storage) -> None:
    digest = storage.blobs.put(b"kernel")
    assert client.get(f"/v1/blobs/{digest}").content == b"kernel"
    for missing in ("0" * 64, "..%2f..%2ftoken", "x"):
        assert client.get(f"/v1/blobs/{missing}").status_code == 404


def test_a_measure_token_reads_the_blobs_of_its_leases_alone(
    anonymous: TestClient, storage: Storage
) -> None:
    """By digest a worker could read every model; who is not told of a blob has no such file."""
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
    # only an admin may say that it is well again
    measurer = with_scopes(storage, Scope.MEASURE)
    path = f"/v1/workers/{worker}/drain"
    assert client.post(path, json={"draining": False}, headers=measurer).status_code == 403
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
    # what a heartbeat leaves out stays as it was
    assert client.post(path, json={"leases": []}).status_code == 200
    (after,) = client.get("/v1/workers").json()
    assert after["speed"] == speed
    assert "tilewright_workers_throttled 1.0" in client.get("/v1/metrics").text
    table = Console(width=200, file=io.StringIO())
    table.print(worker_table([WorkerView.model_validate(after)]))
    shown = table.file.getvalue()  # type: ignore[attr-defined]
    assert "throttled" in shown and "1.50" in shown
    assert client.post(path, json={"speed": {**speed, "memory_ratio": "x"}}).status_code == 422
