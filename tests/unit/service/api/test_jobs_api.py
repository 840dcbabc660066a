"""Jobs and artifacts over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import onnx_bytes, problem, submit, upload
from tests.unit.service.conftest import with_scopes
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.db.stores.workers import RegisteredWorker
from tilewright.service.api.app import create_app
from tilewright.service.api.errors import MOST_FIELD_ERRORS
from tilewright.service.settings import Settings
from tilewright.service.worker.facts import registration_facts
from tilewright.tuner.protocol.version import PROTOCOL


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
        ({"dims": {"batch": "5..1"}}, "invalid-request", "dims"),
        ({"dims": {"batch": "1..-5"}}, "invalid-request", "dims"),
        ({"dims": {"batch": ["1..8", "x..y"]}}, "invalid-request", "dims"),
        ({"dims": {"batch": ["1..8", f"1..{1 << 41}"]}}, "invalid-request", "dims"),
        ({"dims": {"batch": ["1..4", "2..8"]}}, "invalid-request", "two ranges"),
        ({"dims": {"batch": "0..0"}}, "invalid-request", "dims"),
        ({"dims": {"batch": "1..8", "width": "1..2"}}, "compiler-error", "width"),
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("1..8@9", "dimension 'batch': hint 9 is not a size of 1..8; give a hint within"),
        ("1..8@3:0", "dimension 'batch': the share of hint 3 is '0', expected a number above 0"),
        ("@3:nan", "dimension 'batch': the share of hint 3 is 'nan'"),
        ([4, "@3"], "dimension 'batch' has hints alone next to sizes: give the hints a range"),
        ("7..7@7", "dimension 'batch' has the one size 7, which takes no hints"),
        ("seven", "dimension 'batch': 'seven' is not a size; write 7, 1..512"),
    ],
)
def test_a_wrong_hint_is_named_with_its_dimension(
    client: TestClient, given: Any, said: str
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [("/v1/jobs", {"model": "0" * 64})]
    if isinstance(given, str):
        asked.append(("/v1/schedules/lookup", {"model": "0" * 64}))
    for path, body in asked:
        answer = client.post(path, json={**body, "dims": {"batch": given}})
        assert answer.status_code == 422, path
        assert said in answer.json()["detail"], path


def test_hints_are_kept_in_one_form(client: TestClient, storage: Storage) -> None:
    for given, kept in (("1..8@2:0.50,4", "1..8@2:0.5,4"), ([" @5000:3,7:1"], ["@5000:3,7"])):
        job = submit(client, dims={"batch": given})
        assert storage.jobs.get(job["id"]).options["dims"] == {"batch": kept}
    body = {"model": upload(client), "dims": {"batch": "1..8"}, "shares": {"batch": {"3": 1}}}
    status, slug, said = problem(client.post("/v1/jobs", json=body))
    assert (status, slug) == (422, "invalid-request") and "shares" in said
    found = client.post(
        "/v1/schedules/lookup", json={"model": upload(client), "dims": {"batch": "@7"}}
    )
    assert found.status_code == 200 and found.json()["schedules"]


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
    assert (status, slug, detail) == (403, "forbidden", f"job '{job['id']}' is another owner's")
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
        "no worker runs target 'cortex-a72'; start one on its device with "
        "`tilewright server worker --server URL --target cortex-a72`; "
        "workers for other targets: 'laptop' (x86-64-v3)"
    )
    assert events_of_job(storage, job) == [{"state": "waiting_for_worker", "reason": job["reason"]}]
    body = {"name": "pi", "targets": ["cortex-a72"], "protocol": PROTOCOL}
    worker = client.post("/v1/workers", json=body).json()["worker"]
    woken = client.get(f"/v1/jobs/{job['id']}").json()
    assert (woken["state"], woken["reason"]) == ("queued", None)
    client.post(f"/v1/workers/{worker['id']}/drain", json={})
    drained = client.get(f"/v1/jobs/{job['id']}").json()
    assert "worker 'pi' is draining (`tilewright device resume pi`" in drained["reason"]
    client.post(f"/v1/workers/{worker['id']}/drain", json={"draining": False})
    assert client.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"
    client.delete(f"/v1/workers/{worker['id']}")
    assert "worker 'pi' is gone" in client.get(f"/v1/jobs/{job['id']}").json()["reason"]


def test_a_job_for_a_worker_that_is_gone_says_since_when_and_whether_its_name_lives(
    client: TestClient, storage: Storage
) -> None:
    body = {"name": "phone", "targets": ["cortex-a72"], "protocol": PROTOCOL}
    worker = client.post("/v1/workers", json=body).json()["worker"]
    job = submit(client, target="phone")
    assert (job["worker_id"], job["state"]) == (worker["id"], "queued")
    client.delete(f"/v1/workers/{worker['id']}")
    path = f"/v1/jobs/{job['id']}"
    heard = datetime.fromtimestamp(storage.workers.list()[0].last_heartbeat, UTC)
    gone = (
        "the job is for one worker alone: worker 'phone' is gone, heard of last on "
        f"{heard:%Y-%m-%d at %H:%M} UTC (start it again on its device)"
    )
    assert client.get(path).json()["reason"] == gone
    other = client.post("/v1/workers", json={**body, "targets": ["x86-64-v3"]}).json()["worker"]
    namesake = f"{gone}; another worker is called 'phone' now: submit the job again for it"
    assert client.get(path).json()["reason"] == namesake
    client.delete(f"/v1/workers/{other['id']}")
    assert client.get(path).json()["reason"] == gone
    back = client.post("/v1/workers", json={**body, "worker_id": worker["id"]})
    assert back.status_code == 201
    assert client.get(path).json()["state"] == "queued"


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
    quotas = {"max_open_jobs": 1, "max_running_jobs": 1}
    wanted = {"name": "small", "scopes": ["submit"], "all_owners": True, **quotas}
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


def test_a_job_and_its_parts_are_found_by_how_their_ids_begin(
    client: TestClient, storage: Storage
) -> None:
    job = submit(client)
    short = f"/v1/jobs/{job['id'][:8]}"
    assert client.get(short).json()["id"] == job["id"]
    for part in ("/tasks", "/log", "/curve", "/graph"):
        answer = client.get(short + part)
        assert (
            answer.status_code == 200
            and answer.json() == client.get(f"/v1/jobs/{job['id']}{part}").json()
        )
    for query in ("/v1/tasks", "/v1/trials"):
        assert client.get(query, params={"job": job["id"][:8]}).json() == []
        assert client.get(query, params={"job": "nope"}).json() == []
    assert client.post(f"{short}:cancel").json()["state"] == "cancelled"
    assert storage.audit.list()[0].subject == job["id"], "the audit names the whole id"
    storage.workloads.put_workloads({"ab" * 32: "a text"})
    assert client.get("/v1/workloads/abab").json() == {"key": "ab" * 32, "text": "a text"}
