"""Models, jobs, events, artifacts and schedules over HTTP."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper
from structlog.testing import capture_logs

from compiler.schedule.schedule import Schedule
from compiler.target import resolve_target
from db.errors import DatabaseError, SchemaVersionError, StorageError, StorageKind
from db.job_states import JobState
from db.storage import Storage
from db.stores.blob_bytes import Staging
from db.stores.jobs import JobProgress
from db.stores.tokens import Scope
from db.stores.workers import RegisteredWorker
from service.api.app import create_app
from service.api.errors import MOST_FIELD_ERRORS
from service.settings import Settings
from service.worker.facts import registration_facts
from tests.unit.service.conftest import with_scopes
from tuner.measure.measurement import Measurement, RecordKey, Status, TuningRecord
from tuner.measure.wire import PROTOCOL

PROBLEM = "urn:tilewright:problem:"


def onnx_bytes(operator: str = "Relu", opset: int = 17) -> bytes:
    """y = relu(x @ w), with a named batch."""
    weights = np.ones((4, 4), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "fc"),
            helper.make_node(operator, ["h"], ["y"], "act"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    data: bytes = model.SerializeToString()
    return data


def upload(client: TestClient, data: bytes | None = None) -> str:
    answer = client.post("/v1/models", params={"name": "tiny.onnx"}, content=data or onnx_bytes())
    assert answer.status_code in (200, 201), answer.text
    digest: str = answer.json()["digest"]
    return digest


def submit(client: TestClient, **changes: Any) -> dict[str, Any]:
    """A job; one for this machine does not wait, if the token may bring a worker."""
    body = {"model": upload(client), "dims": {"batch": 2}, **changes}
    if "target" not in changes:
        here = {"name": "here", "targets": ["host"], "protocol": PROTOCOL}
        client.post("/v1/workers", json=here)  # refused for a token that may not measure
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return job


def problem(answer: Any) -> tuple[int, str, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert body["status"] == answer.status_code
    return answer.status_code, body["type"].removeprefix(PROBLEM), body["detail"]


# ---- models


def test_a_model_is_named_by_its_bytes(client: TestClient) -> None:
    data = onnx_bytes()
    first = client.post("/v1/models", params={"name": "a.onnx"}, content=data)
    second = client.post("/v1/models", params={"name": "b.onnx"}, content=data)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    digest = first.json()["digest"]
    assert client.get(f"/v1/models/{digest}/content").content == data
    assert [model["digest"] for model in client.get("/v1/models").json()] == [digest]


@pytest.mark.parametrize(
    "data", [b"", b"not a model at all", b"\x00\xff" * 500, onnx_bytes()[:-40]]
)
def test_what_is_no_model_is_refused_and_not_kept(
    client: TestClient, storage: Storage, data: bytes
) -> None:
    answer = client.post("/v1/models", params={"name": "bad.onnx"}, content=data)
    status, slug, detail = problem(answer)
    assert (status, slug) == (422, "invalid-model")
    assert "bad.onnx" in detail
    assert list(storage.blobs.digests()) == []


def test_a_model_that_is_too_large_is_refused_with_and_without_a_length(
    settings: Settings, storage: Storage, owner: str
) -> None:
    small = settings.model_copy(update={"max_model_bytes": 1000})
    with TestClient(create_app(small, storage)) as client:
        client.headers["Authorization"] = f"Bearer {owner}"
        told = client.post("/v1/models", content=b"x" * 1001)
        streamed = client.post("/v1/models", content=iter([b"x" * 600, b"x" * 600]))
    for answer in (told, streamed):
        assert problem(answer)[:2] == (413, "too-large")
    assert list(storage.blobs.digests()) == []


def test_a_body_that_is_too_large_is_refused(
    settings: Settings, storage: Storage, owner: str
) -> None:
    small = settings.model_copy(update={"max_body_bytes": 1000})
    with TestClient(create_app(small, storage)) as client:
        client.headers["Authorization"] = f"Bearer {owner}"
        told = client.post("/v1/jobs", json={"model": "x" * 2000})
        streamed = client.post("/v1/jobs", content=iter([b"{" + b" " * 800, b" " * 800]))
    for answer in (told, streamed):
        assert problem(answer)[:2] == (413, "too-large")


def test_a_full_disk_is_507(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space is left for blobs", StorageKind.FULL)

    monkeypatch.setattr(Staging, "write", full)
    assert problem(client.post("/v1/models", content=onnx_bytes()))[:2] == (
        507,
        "insufficient-storage",
    )
    assert list(storage.blobs.place.staging.iterdir()) == []


# ---- jobs


def test_a_job_is_queued_listed_and_read(client: TestClient) -> None:
    job = submit(client, trials=5)
    assert (job["state"], job["final"], job["options"]["trials"]) == ("queued", False, 5)
    assert client.get(f"/v1/jobs/{job['id']}").json() == job
    assert [j["id"] for j in client.get("/v1/jobs").json()] == [job["id"]]
    assert client.get("/v1/jobs", params={"state": "running"}).json() == []
    assert client.get(f"/v1/jobs/{job['id']}/tasks").json() == []


def test_a_job_has_what_the_command_line_has(client: TestClient, storage: Storage) -> None:
    job = submit(client, dims={"batch": [2, 4]}, pad=True, weight_limit=1 << 20)
    options = storage.jobs.get(job["id"]).options
    assert options["dims"] == {"batch": [2, 4]}
    assert (options["pad"], options["weight_limit"]) == (True, 1 << 20)


def worker(storage: Storage, name: str, *targets: str) -> RegisteredWorker:
    keys = [resolve_target(target).key for target in targets]
    return storage.workers.register(name, keys, {"model": name})


def test_host_is_resolved_once_where_the_job_is_made(client: TestClient, storage: Storage) -> None:
    job = submit(client)
    target = resolve_target("host")
    assert (job["target"], job["target_key"]) == ("host", target.key)
    assert storage.workloads.target(target.key)[0] == target.name


def test_a_job_for_a_worker_is_measured_by_it_alone(client: TestClient, storage: Storage) -> None:
    board = worker(storage, "board", "cortex-a72", "aarch64")
    for name in ("board", board.id):
        job = submit(client, target=name)
        assert job["target_key"] == resolve_target("cortex-a72").key, "the best that it runs"
        assert job["worker_id"] == board.id
    assert submit(client, target="cortex-a72")["worker_id"] is None
    looked = {"model": upload(client), "dims": {"batch": 2}, "target": "board"}
    found = client.post("/v1/schedules/lookup", json=looked).json()
    assert found["target_key"] == resolve_target("cortex-a72").key


@pytest.mark.parametrize("targets", [[], ["host:128", "x86-64-v2"]])
def test_a_job_for_a_worker_on_a_machine_like_the_services(
    client: TestClient, targets: list[str]
) -> None:
    """Its best target is `host`, or one with narrower vectors: no description has either."""
    body = {"name": "twin", "device": registration_facts(), "targets": targets}
    answer = client.post("/v1/workers", json={**body, "protocol": PROTOCOL})
    assert answer.status_code == 201, answer.text
    assert bool(answer.json()["recognised"]) is not bool(targets)
    job = submit(client, target="twin")
    assert job["target_key"] == resolve_target(targets[0] if targets else "host").key
    (shown,) = client.get("/v1/workers").json()
    assert len(shown["targets"]) == len(shown["target_keys"]), "each has a name"


def test_an_unknown_cpu_is_told_what_it_is_taken_for(client: TestClient) -> None:
    features = ["fpu", "sse2", "pni", "ssse3", "cx16", "sse4_1", "sse4_2", "popcnt", "lahf_lm"]
    facts = {**registration_facts(), "architecture": "x86_64", "system": "Linux"}
    facts |= {"model": "Zhaoxin", "processor": "CentaurHauls-7-91-0", "features": features}
    body = {"name": "odd", "device": facts, "targets": [], "protocol": PROTOCOL}
    answer = client.post("/v1/workers", json=body)
    assert answer.status_code == 201, answer.text
    said = answer.json()["recognised"]
    assert "'Zhaoxin' is described by no target" in said and "x86-64-v2 is the best" in said


def test_of_workers_with_one_name_the_one_alive_is_meant(
    client: TestClient, storage: Storage
) -> None:
    gone = worker(storage, "board", "cortex-a72")
    storage.workers.leave(gone.id)
    alive = worker(storage, "board", "riscv64")
    assert submit(client, target="board")["worker_id"] == alive.id
    # of two that are gone, the one that was heard of last
    storage.workers.leave(alive.id)
    assert submit(client, target="board")["worker_id"] == alive.id
    alive = worker(storage, "board", "riscv64")
    worker(storage, "board", "riscv64")
    body = {"model": upload(client), "dims": {"batch": 1}, "target": "board"}
    status, slug, detail = problem(client.post("/v1/jobs", json=body))
    assert (status, slug) == (422, "unknown-target") and alive.id in detail
    body["target"] = "bord"
    assert "those alive are board" in problem(client.post("/v1/jobs", json=body))[2]


def test_workers_are_listed_with_the_names_of_their_targets(
    client: TestClient, storage: Storage
) -> None:
    worker(storage, "board", "cortex-a72", "aarch64")
    (shown,) = client.get("/v1/workers").json()
    assert shown["targets"] == ["cortex-a72", "aarch64"]


def test_the_same_idempotency_key_is_the_same_job(client: TestClient) -> None:
    body = {"model": upload(client), "dims": {"batch": 1}}
    headers = {"Idempotency-Key": "once"}
    first = client.post("/v1/jobs", json=body, headers=headers).json()
    second = client.post("/v1/jobs", json=body, headers=headers).json()
    assert first["id"] == second["id"]
    assert len(client.get("/v1/jobs").json()) == 1


@pytest.mark.parametrize(
    ("changes", "slug", "words"),
    [
        ({"trials": -1}, "invalid-request", "trials"),
        ({"seconds": -5}, "invalid-request", "seconds"),
        ({"seconds": 0}, "invalid-request", "seconds"),
        ({"threads": 0}, "invalid-request", "threads"),
        ({"numerics": "sloppy"}, "invalid-request", "numerics"),
        ({"dims": {"batch": 0}}, "invalid-request", "dims"),
        ({"dims": {"batch": []}}, "invalid-request", "dims"),
        ({"dims": {"batch": list(range(1, 66))}}, "invalid-request", "dims"),
        ({"weight_limit": 0}, "invalid-request", "weight_limit"),
        ({"strategy": "guessing"}, "compiler-error", "guessing"),
        ({"pad": True}, "compiler-error", "nothing can be padded"),
        ({"trails": 5}, "invalid-request", "trails"),
        ({"target": "z80"}, "unknown-target", "z80"),
        ({"dims": {}}, "invalid-model", "batch"),
        ({"dims": {"batch": 10**12}}, "invalid-model", ""),
    ],
)
def test_a_wrong_job_is_refused_at_once(
    client: TestClient, changes: dict[str, Any], slug: str, words: str
) -> None:
    body = {"model": upload(client), "dims": {"batch": 1}, **changes}
    status, found, detail = problem(client.post("/v1/jobs", json=body))
    assert (status, found) == (422, slug)
    assert words in detail
    assert client.get("/v1/jobs").json() == []


def test_all_that_is_wrong_with_a_body_is_listed_up_to_a_limit(client: TestClient) -> None:
    wrong = {"model": "0" * 64, "trials": -1, "seconds": 0}
    errors = client.post("/v1/jobs", json=wrong).json()["errors"]
    assert [error["field"] for error in errors] == ["body.trials", "body.seconds"]
    assert "greater than or equal to 0" in errors[0]["message"]
    more = {f"x{number}": 1 for number in range(MOST_FIELD_ERRORS + 9)}
    errors = client.post("/v1/jobs", json={**wrong, **more}).json()["errors"]
    assert len(errors) == MOST_FIELD_ERRORS


def test_an_operator_that_is_not_implemented_is_named(client: TestClient) -> None:
    body = {"model": upload(client, onnx_bytes("NoSuchThing")), "dims": {"batch": 1}}
    answer = client.post("/v1/jobs", json=body)
    assert problem(answer)[:2] == (422, "unsupported-operator")
    assert (answer.json()["operator"], answer.json()["node"]) == ("NoSuchThing", "act")


def test_an_opset_from_the_future_is_refused(client: TestClient) -> None:
    body = {"model": upload(client, onnx_bytes(opset=999)), "dims": {"batch": 1}}
    status, slug, detail = problem(client.post("/v1/jobs", json=body))
    assert (status, slug) == (422, "invalid-model")
    assert "999" in detail


@pytest.mark.parametrize(
    "path",
    ["/v1/jobs/none", "/v1/jobs/none/tasks", "/v1/jobs/none/events", "/v1/jobs/none/artifact"],
)
def test_an_unknown_job_is_404(client: TestClient, path: str) -> None:
    assert problem(client.get(path))[:2] == (404, "not-found")


def test_a_job_is_paused_resumed_and_cancelled_and_twice_is_no_error(
    client: TestClient, storage: Storage
) -> None:
    job = submit(client)
    for change, state in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        for _ in range(2):
            answer = client.post(f"/v1/jobs/{job['id']}:{change}")
            assert (answer.status_code, answer.json()["state"]) == (200, state)
    assert client.post(f"/v1/jobs/{job['id']}:cancel").json()["state"] == "cancelled"
    for change in ("pause", "resume"):
        again = client.post(f"/v1/jobs/{job['id']}:{change}")
        assert problem(again)[:2] == (409, "conflicting-state")


@pytest.mark.parametrize("change", ["cancel", "pause", "resume"])
def test_nobody_stops_anothers_job(client: TestClient, storage: Storage, change: str) -> None:
    job = submit(client)
    path = f"/v1/jobs/{job['id']}:{change}"
    other = with_scopes(storage, Scope.SUBMIT, Scope.READ)
    status, slug, detail = problem(client.post(path, headers=other))
    assert (status, slug, detail) == (403, "forbidden", f"job '{job['id']}' is another token's")
    assert client.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"
    reader = with_scopes(storage, Scope.READ)
    assert problem(client.post(path, headers=reader))[0] == 403
    assert problem(client.post(f"/v1/jobs/none:{change}"))[0] == 404
    mine = client.post(
        "/v1/jobs", json={"model": job["model"], "dims": {"batch": 2}}, headers=other
    )
    admin = client.post(f"/v1/jobs/{mine.json()['id']}:{change}")
    assert admin.status_code == 200, "an admin may"


def test_a_job_without_a_worker_is_told_what_would_help(
    client: TestClient, storage: Storage
) -> None:
    laptop = resolve_target("x86-64-v3")
    storage.workers.register("laptop", [laptop.key], {})
    job = submit(client, target="cortex-a72")
    assert job["state"] == "waiting_for_worker"
    assert job["reason"] == (
        "no worker for target 'cortex-a72' is alive; start one on its device with "
        "`tilewright worker --server URL --target cortex-a72`; "
        "workers for other targets: 'laptop' (x86-64-v3)"
    )
    assert events_of_job(storage, job) == [{"state": "waiting_for_worker", "reason": job["reason"]}]
    body = {"name": "pi", "targets": ["cortex-a72"], "protocol": PROTOCOL}
    worker = client.post("/v1/workers", json=body).json()["worker"]
    woken = client.get(f"/v1/jobs/{job['id']}").json()
    assert (woken["state"], woken["reason"]) == ("queued", None)
    client.post(f"/v1/workers/{worker['id']}/drain", json={})
    drained = client.get(f"/v1/jobs/{job['id']}").json()
    assert "worker 'pi' is draining (`tilewright workers resume pi`" in drained["reason"]
    client.post(f"/v1/workers/{worker['id']}/drain", json={"draining": False})
    assert client.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"
    client.delete(f"/v1/workers/{worker['id']}")
    assert "worker 'pi' is gone" in client.get(f"/v1/jobs/{job['id']}").json()["reason"]


def test_a_paused_job_that_is_resumed_without_a_worker_waits(
    client: TestClient, storage: Storage
) -> None:
    job = submit(client, target="cortex-a72")
    client.post(f"/v1/jobs/{job['id']}:pause")
    resumed = client.post(f"/v1/jobs/{job['id']}:resume").json()
    assert resumed["state"] == "waiting_for_worker" and resumed["reason"]


def events_of_job(storage: Storage, job: dict[str, Any]) -> list[Any]:
    return [event.data for event in storage.events.since(job["id"])]


def test_a_token_has_no_more_open_jobs_than_its_quota(client: TestClient, storage: Storage) -> None:
    wanted = {"name": "small", "scopes": ["submit"], "max_open_jobs": 1, "max_running_jobs": 1}
    made = client.post("/v1/tokens", json=wanted).json()
    assert (made["max_open_jobs"], made["max_running_jobs"]) == (1, 1)
    header = {"Authorization": f"Bearer {made['secret']}"}
    body = {"model": upload(client), "dims": {"batch": 2}}
    first = client.post("/v1/jobs", json=body, headers={**header, "Idempotency-Key": "k"})
    assert first.status_code == 201
    refused = client.post("/v1/jobs", json=body, headers=header)
    status, slug, detail = problem(refused)
    assert (status, slug) == (429, "quota-exceeded")
    assert detail == "token 'small' has 1 open jobs, and its quota of open jobs is 1"
    assert (refused.json()["quota"], refused.json()["limit"]) == ("open-jobs", 1)
    assert int(refused.headers["retry-after"]) > 0
    again = client.post("/v1/jobs", json=body, headers={**header, "Idempotency-Key": "k"})
    assert again.json()["id"] == first.json()["id"]


def test_the_quota_of_the_service_holds_for_tokens_without_one(
    settings: Settings, storage: Storage, owner: str
) -> None:
    small = settings.model_copy(update={"max_open_jobs": 1})
    with TestClient(create_app(small, storage)) as client:
        client.headers["Authorization"] = f"Bearer {owner}"
        submit(client)
        body = {"model": upload(client), "dims": {"batch": 2}}
        assert problem(client.post("/v1/jobs", json=body))[0] == 429


def test_an_artifact_is_there_once_the_job_has_one(client: TestClient, storage: Storage) -> None:
    job = submit(client)
    path = f"/v1/jobs/{job['id']}/artifact"
    assert problem(client.get(path))[:2] == (409, "no-artifact")
    claimed = storage.jobs.claim("t", 60)
    assert claimed is not None
    claim, _ = claimed
    storage.jobs.transition(claim, JobState.VERIFYING)
    digest = storage.blobs.put(b"a tar file")
    storage.jobs.transition(claim, JobState.SUCCEEDED, artifact_digest=digest, result={})
    answer = client.get(path)
    assert answer.content == b"a tar file"
    assert client.get(path, headers={"Range": "bytes=2-4"}).content == b"tar"
    assert client.get(f"/v1/jobs/{job['id']}").json()["artifact"] == path


# ---- events


def events_of(text: str) -> list[tuple[str, str, Any]]:
    """(id, event, data) of each server-sent event."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line[1:])
        if "data" in fields:
            found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def finish(storage: Storage, steps: int = 3) -> None:
    claimed = storage.jobs.claim("t", 60)
    assert claimed is not None
    claim, _ = claimed
    for step in range(steps):
        storage.jobs.progress(claim, JobProgress(phase="tuning", trials_done=step))
    storage.jobs.transition(claim, JobState.FAILED, error="for the test")


def test_a_stream_replays_everything_and_ends_with_the_job(
    client: TestClient, storage: Storage
) -> None:
    job = submit(client)
    finish(storage)
    events = events_of(client.get(f"/v1/jobs/{job['id']}/events").text)
    assert [int(number) for number, _, _ in events] == list(range(1, len(events) + 1))
    progress = [data["data"]["trials_done"] for _, kind, data in events if kind == "progress"]
    assert progress == [0, 1, 2]
    assert (events[-1][1], events[-1][2]["data"]["state"]) == ("state", "failed")


def test_a_stream_goes_on_after_the_last_event_that_came(
    client: TestClient, storage: Storage
) -> None:
    path = f"/v1/jobs/{submit(client)['id']}/events"
    finish(storage)
    everything = events_of(client.get(path).text)
    rest = client.get(path, headers={"Last-Event-ID": everything[2][0]})
    assert events_of(rest.text) == everything[3:]
    assert events_of(client.get(path, params={"after": 3}).text) == everything[3:]


def test_a_stream_brings_events_as_they_happen(server: Any, storage: Storage) -> None:
    """Over a socket: the test client would wait for the whole stream."""
    import urllib.request

    secret = server.settings.token_file.read_text().strip()
    digest = storage.models.add(onnx_bytes(), "tiny").digest
    job = storage.jobs.create(digest, "host")
    later = threading.Timer(0.5, finish, [storage])
    request = urllib.request.Request(
        f"{server.url}/v1/jobs/{job.id}/events", headers={"Authorization": f"Bearer {secret}"}
    )
    with urllib.request.urlopen(request, timeout=10) as stream:
        first = stream.readline()
        later.start()
        assert b"state" in first
        rest = stream.read()
    assert b"for the test" in rest or b"failed" in rest
    later.join()


def test_a_stream_ends_with_the_last_event_whenever_it_comes(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is written just after the stream looked, and more than one look brings."""
    job = submit(client)
    since, looks = type(storage.events).since, []

    def late(store: Any, *arguments: Any, **more: Any) -> Any:
        found = since(store, *arguments, **more)
        looks.append(len(found))
        if looks == [1, 0]:
            finish(storage, steps=700)
        return found

    monkeypatch.setattr(type(storage.events), "since", late)
    events = events_of(client.get(f"/v1/jobs/{job['id']}/events").text)
    assert len(events) == 1 + 1 + 700 + 1
    assert events[-1][2]["data"] == {"state": "failed", "error": "for the test"}


# ---- schedules


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


# ---- what is not a route, and bugs


def test_unknown_paths_and_methods_are_problems(client: TestClient) -> None:
    assert problem(client.get("/v1/none"))[:2] == (404, "not-found")
    assert problem(client.put("/v1/jobs"))[:2] == (405, "method-not-allowed")
    assert problem(client.post("/v1/jobs", content=b"{"))[:2] == (422, "invalid-request")


def test_a_refusal_names_every_field_that_is_wrong(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json={"model": "x", "threads": 0, "trials": -1}).json()
    assert {error["field"] for error in answer["errors"]} >= {"body.threads", "body.trials"}


def test_programs_are_told_what_an_upload_is_made_of(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    body = described["paths"]["/v1/models"]["post"]["requestBody"]
    assert body["required"] and list(body["content"]) == ["application/octet-stream"]
    fields = described["components"]["schemas"]["JobRequest"]["properties"]
    assert fields["target"]["default"] == "host" and fields["threads"]["default"] == 1
    tags = {
        tag for path in described["paths"].values() for way in path.values() for tag in way["tags"]
    }
    assert "jobs" in tags and tags == {tag.lower() for tag in tags}


def test_a_bug_is_a_problem_without_its_traceback(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    class Log:
        lines: list[dict[str, Any]] = []  # noqa: RUF012

        def error(self, event: str, **fields: Any) -> None:
            self.lines.append(fields)

    monkeypatch.setattr("service.api.errors.log", Log())
    monkeypatch.setattr(type(storage.jobs), "list", broken)
    answer = client.get("/v1/jobs")
    assert problem(answer)[:2] == (500, "internal-error")
    assert "secret" not in answer.text
    assert [line["path"] for line in Log.lines] == ["/v1/jobs"]


def test_a_locked_database_says_when_to_try_again(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object, **__: object) -> None:
        raise StorageError("the database is locked", StorageKind.LOCKED)

    monkeypatch.setattr(type(storage.jobs), "list", locked)
    answer = client.get("/v1/jobs")
    assert problem(answer)[:2] == (503, "storage-unavailable")
    assert answer.headers["retry-after"] == "1"


SECRETS = "postgresql://u@db.internal:5432/x: connection to 10.0.0.7 refused; /srv/data/blobs/ab"


@pytest.mark.parametrize(
    ("error", "status", "slug", "sentence"),
    [
        (StorageError(SECRETS, StorageKind.FULL), 507, "insufficient-storage", "disk is full"),
        (StorageError(SECRETS, StorageKind.LOCKED), 503, "storage-unavailable", "is busy"),
        (StorageError(SECRETS, StorageKind.UNREACHABLE), 503, "storage-unavailable", "reached"),
        (StorageError(SECRETS, StorageKind.DENIED), 500, "storage-error", "storage failed"),
        (StorageError(SECRETS, StorageKind.CORRUPT), 500, "storage-error", "storage failed"),
        (StorageError(SECRETS, StorageKind.OTHER), 500, "storage-error", "storage failed"),
        (SchemaVersionError(SECRETS), 503, "wrong-schema-version", "another release"),
    ],
)
def test_a_problem_of_the_storage_names_no_address_and_no_path(
    client: TestClient,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    error: DatabaseError,
    status: int,
    slug: str,
    sentence: str,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(type(storage.jobs), "list", refuse)
    with capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        answer = client.get("/v1/jobs")
    assert problem(answer)[:2] == (status, slug) and sentence in answer.json()["detail"]
    for secret in ("db.internal", "10.0.0.7", "/srv", "postgresql"):
        assert secret not in answer.text
    (line,) = (line for line in lines if line["event"] == "storage")
    assert line["request_id"] == answer.json()["request_id"] and SECRETS in line["error"]


def test_metrics_count_requests_by_route(client: TestClient) -> None:
    job = submit(client)
    client.get(f"/v1/jobs/{job['id']}")
    text = client.get("/v1/metrics").text
    wanted = 'tilewright_http_requests_total{method="GET",route="/v1/jobs/{job_id}",status="200"} 1'
    assert wanted in text
    assert 'tilewright_jobs_open{state="queued"} 1.0' in text
    assert job["id"] not in text


def test_the_data_folder_holds_what_was_uploaded(settings: Settings, client: TestClient) -> None:
    upload(client)
    files = [p for p in Path(settings.blob_folder).rglob("*") if p.is_file()]
    assert len(files) == 1
    assert time.time() - files[0].stat().st_mtime < 60
