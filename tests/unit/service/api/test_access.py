"""Tokens over HTTP and from the command line, the audit log, and rate limits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import onnx_bytes, problem, submit, upload
from tests.unit.service.conftest import with_scopes
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.app import create_app
from tilewright.service.cli import run as run_cli
from tilewright.service.embedded import owner_token, read_token
from tilewright.service.settings import Settings
from tilewright.service.show.units import moment
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord
from tilewright.tuner.protocol.version import PROTOCOL


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/tokens", None),
        ("POST", "/v1/tokens", {"name": "x", "scopes": ["admin"]}),
        ("POST", "/v1/tokens/ID/rotate", {}),
        ("DELETE", "/v1/tokens/ID", None),
        ("GET", "/v1/audit", None),
    ],
)
def test_only_an_admin_sees_or_changes_tokens(
    anonymous: TestClient, storage: Storage, method: str, path: str, body: Any
) -> None:
    """Neither a reader, nor a token with all scopes except that one."""
    secret, victim = storage.tokens.create("victim", [Scope.READ])
    header = with_scopes(storage, Scope.READ, Scope.SUBMIT, Scope.MEASURE)
    answer = anonymous.request(method, path.replace("ID", victim.id), json=body, headers=header)
    assert problem(answer)[:2] == (403, "forbidden")
    assert storage.tokens.holds(secret)
    assert len(storage.tokens.list()) == 2


def test_nobody_but_its_owner_and_an_admin_cancels_a_job(
    anonymous: TestClient, storage: Storage, owner: str
) -> None:
    submitter = with_scopes(storage, Scope.SUBMIT, Scope.READ)
    secret, _ = storage.tokens.create("other", [Scope.SUBMIT], all_owners=True)
    other = {"Authorization": f"Bearer {secret}"}
    anonymous.headers.update(submitter)
    jobs = [submit(anonymous)["id"] for _ in range(2)]
    refused = anonymous.post(f"/v1/jobs/{jobs[0]}:cancel", headers=other)
    assert problem(refused)[:2] == (403, "forbidden")
    assert anonymous.get(f"/v1/jobs/{jobs[0]}").json()["state"] != "cancelled"
    admin = {"Authorization": f"Bearer {owner}"}
    for job, header in zip(jobs, (submitter, admin), strict=True):
        assert anonymous.post(f"/v1/jobs/{job}:cancel", headers=header).status_code == 200


def test_a_rotated_secret_is_taken_for_its_time(client: TestClient) -> None:
    made = client.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]}).json()
    path = f"/v1/tokens/{made['id']}/rotate"
    second = client.post(path, json={"grace_seconds": 600}).json()
    assert second["id"] == made["id"] and second["previous_until"] > made["created_at"]

    def status(secret: str) -> int:
        header = {"Authorization": f"Bearer {secret}"}
        return client.get("/v1/jobs", headers=header).status_code

    assert (status(made["secret"]), status(second["secret"])) == (200, 200)
    (listed,) = [one for one in client.get("/v1/tokens").json() if one["id"] == made["id"]]
    assert listed["previous_until"] == second["previous_until"]
    third = client.post(path, json={"grace_seconds": 0}).json()
    assert [status(each["secret"]) for each in (made, second, third)] == [401, 401, 200]
    client.delete(f"/v1/tokens/{made['id']}")
    assert problem(client.post(path, json={}))[:2] == (409, "conflicting-state")
    assert client.post("/v1/tokens/nope/rotate", json={}).status_code == 404
    assert client.post(path, json={"grace_seconds": -1}).status_code == 422


def test_the_owners_secret_is_rotated_in_its_file(
    client: TestClient, settings: Settings, storage: Storage, owner: str
) -> None:
    (token,) = client.get("/v1/tokens").json()
    rotated = client.post(f"/v1/tokens/{token['id']}/rotate", json={}).json()
    assert read_token(settings) == rotated["secret"] != owner
    assert settings.token_file.stat().st_mode & 0o777 == 0o600
    assert owner_token(settings, storage) == rotated["secret"]
    # an admin who puts the old file back gets a new token, and not the old one again
    settings.token_file.write_text(owner)
    assert owner_token(settings, storage) not in (owner, rotated["secret"])
    assert len(storage.tokens.list()) == 2


def test_tokens_tell_when_they_were_used(client: TestClient, storage: Storage) -> None:
    header = with_scopes(storage, Scope.READ)
    client.get("/v1/jobs", headers=header)
    used = {token["name"]: token["last_used_at"] for token in client.get("/v1/tokens").json()}
    assert used["test"] == pytest.approx(storage.clock(), abs=60)
    storage.tokens.create("new", [Scope.READ])
    used = {token["name"]: token["last_used_at"] for token in client.get("/v1/tokens").json()}
    assert used["new"] is None


def test_a_full_disk_keeps_nobody_from_reading(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space", StorageKind.FULL)

    monkeypatch.setattr(type(storage.tokens), "used", full)
    assert client.get("/v1/jobs", headers=with_scopes(storage, Scope.READ)).status_code == 200


def test_what_is_done_is_written_down(client: TestClient, storage: Storage) -> None:
    made = client.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]}).json()
    client.post(f"/v1/tokens/{made['id']}/rotate", json={})
    client.delete(f"/v1/tokens/{made['id']}")
    job = submit(client)["id"]
    client.post(f"/v1/jobs/{job}:cancel")
    worker = storage.workers.register("board", ["a" * 64], {}).id
    client.post(f"/v1/workers/{worker}/drain", json={"draining": True})
    client.post(f"/v1/workers/{worker}/drain", json={"draining": False})
    facts = {"feature_version": 1, "objective": "ndcg", "rows": 1, "tasks": 1, "trials": 1}
    for _ in range(2):
        storage.cost_models.add("a" * 64, b"trees", **facts, scores={}, chance={})
    for version in (1, 2):
        body = {"target": "a" * 64, "version": version}
        assert client.post("/v1/cost-models/promote", json=body).status_code == 200
    client.post("/v1/cost-models/rollback", json={"target": "a" * 64})
    entries = client.get("/v1/audit").json()
    assert [(entry["action"], entry["subject"]) for entry in reversed(entries)] == [
        ("token.created", made["id"]),
        ("token.rotated", made["id"]),
        ("token.revoked", made["id"]),
        ("job.cancelled", job),
        ("worker.drained", worker),
        ("worker.resumed", worker),
        ("cost-model.promoted", "a" * 64),
        ("cost-model.promoted", "a" * 64),
        ("cost-model.rolled-back", "a" * 64),
    ]
    assert {(entry["actor_name"], entry["origin"]) for entry in entries} == {
        ("owner", "testclient")
    }
    assert made["secret"] not in json.dumps(entries)
    page = client.get("/v1/audit", params={"limit": 2})
    more = {"page_token": page.headers["X-Next-Page-Token"]}
    rest = client.get("/v1/audit", params=more)
    assert page.json() + rest.json() == entries


def test_what_cannot_be_written_down_is_not_done(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, facts = "a" * 64, {"feature_version": 1, "objective": "ndcg", "rows": 1, "tasks": 1}
    token = client.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]}).json()
    jobs = {name: submit(client)["id"] for name in ("cancel", "pause", "resume")}
    client.post(f"/v1/jobs/{jobs['resume']}:pause")
    worker = storage.workers.register("board", [target], {}).id
    for version in (1, 2, 3):
        storage.cost_models.add(target, b"trees", **facts, trials=1, scores={}, chance={})
        if version < 3:
            storage.cost_models.promote(target, version)
    made = TuningRecord(
        RecordKey("w" * 64, target),
        Schedule.of("direct", tile=4),
        Measurement(Status.OK, samples_seconds=(1e-3,), worker=worker),
        "trial",
    )
    storage.records.add_record(made)

    def everything() -> list[Any]:
        paths = ("tokens", "jobs", "workers", "cost-models", "records", "audit")
        return [client.get(f"/v1/{path}").json() for path in paths]

    def refuse(*_: object, **__: object) -> None:
        raise StorageError("no space", StorageKind.FULL)

    before = everything()
    monkeypatch.setattr(type(storage.audit), "add", refuse)
    acts: list[tuple[str, str, Any]] = [
        ("POST", "/v1/tokens", {"name": "other", "scopes": ["read"]}),
        ("POST", f"/v1/tokens/{token['id']}/rotate", {}),
        ("DELETE", f"/v1/tokens/{token['id']}", None),
        *(("POST", f"/v1/jobs/{job}:{name}", None) for name, job in jobs.items()),
        ("POST", f"/v1/workers/{worker}/drain", {"draining": True}),
        ("POST", "/v1/cost-models/promote", {"target": target, "version": 3}),
        ("POST", "/v1/cost-models/rollback", {"target": target}),
        ("POST", "/v1/records:withdraw", {"workers": ["board"], "reason": "sick"}),
    ]
    for method, path, body in acts:
        assert client.request(method, path, json=body).status_code == 507, path
    after = everything()
    for worker_view in (before[2][0], after[2][0]):
        worker_view.pop("last_heartbeat")
    for listed in (*before[0], *after[0]):
        listed.pop("last_used_at")
    assert after == before


def test_commands_for_tokens_and_the_audit_log(
    server: Any,
    storage: Storage,
    owner: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TILEWRIGHT_SERVER", server.url)
    monkeypatch.setenv("COLUMNS", "250")
    assert run_cli(["token", "create", "ci", "--scope", "read", "--days", "7"]) == 0
    first = capsys.readouterr().out.strip()
    made = storage.tokens.find(first)
    assert made is not None
    assert run_cli(["token", "rotate", made.id, "--grace", "5", "--days", "1"]) == 0
    second = capsys.readouterr().out.strip()
    assert storage.tokens.verify(first) and storage.tokens.holds(second)
    assert run_cli(["token", "list"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if made.id[:12] in line]
    found = storage.tokens.find(second)
    assert found is not None and found.previous_until is not None
    assert moment(found.previous_until) in line and "ci" in line
    assert run_cli(["token", "revoke", made.id[:9]]) == 0
    assert storage.tokens.verify(second) is None
    capsys.readouterr()
    assert run_cli(["server", "audit", "--subject", made.id, "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(entry["action"], entry["actor_name"]) for entry in entries] == [
        ("token.revoked", "owner"),
        ("token.rotated", "owner"),
        ("token.created", "tilewright token create"),
    ]
    assert "@" in entries[-1]["origin"]
    assert run_cli(["server", "audit", "--action", "token.revoked"]) == 0
    out = capsys.readouterr().out
    assert "token.revoked" in out and "token.rotated" not in out
    assert run_cli(["token", "revoke", "nobody"]) == 1
    assert "token 'nobody' does not exist" in capsys.readouterr().err


# ---- rate limits


def limited(settings: Settings, **limits: int) -> Settings:
    return settings.model_copy(update=limits)


def test_uploads_have_a_limit_that_two_replicas_share(
    settings: Settings, storage: Storage, owner: str
) -> None:
    few = limited(settings, uploads_per_minute=2)
    header = {"Authorization": f"Bearer {owner}"}
    with TestClient(create_app(few, storage)) as one, TestClient(create_app(few, storage)) as two:
        for replica in (one, two):
            answer = replica.post("/v1/models", content=onnx_bytes(), headers=header)
            assert answer.status_code in (200, 201)
        for replica in (one, two):
            answer = replica.post("/v1/models", content=onnx_bytes(), headers=header)
            assert problem(answer)[:2] == (429, "too-many-requests")
            assert 1 <= int(answer.headers["retry-after"]) <= 30
        other = with_scopes(storage, Scope.SUBMIT)
        answer = one.post("/v1/models", content=onnx_bytes(), headers=other)
        assert answer.status_code == 200, "each token for itself"


def test_jobs_and_lookups_by_model_have_limits(
    settings: Settings, storage: Storage, owner: str
) -> None:
    few = limited(settings, jobs_per_minute=1, model_lookups_per_minute=1)
    with TestClient(create_app(few, storage)) as client:
        client.headers["Authorization"] = f"Bearer {owner}"
        model = upload(client)
        job = {"model": model, "dims": {"batch": 2}}
        lookup = {**job, "target": "host"}
        by_key = {"workloads": ["0" * 64], "target": "host"}
        other = {**lookup, "dims": {"batch": 3}}
        for path, body, again in (
            ("/v1/jobs", job, job),
            ("/v1/schedules/lookup", lookup, other),
        ):
            assert client.post(path, json=body).status_code in (200, 201)
            assert problem(client.post(path, json=again))[:2] == (429, "too-many-requests")
        assert client.post("/v1/schedules/lookup", json=lookup).status_code == 200, "it is known"
        for _ in range(3):
            assert client.post("/v1/schedules/lookup", json=by_key).status_code == 200


def test_explanations_of_schedules_have_a_limit(
    settings: Settings, storage: Storage, owner: str
) -> None:
    """The answer for a workload without a record compares it with many others."""
    with TestClient(create_app(limited(settings, explanations_per_minute=1), storage)) as client:
        client.headers["Authorization"] = f"Bearer {owner}"
        asked = {"workload": "0" * 64, "target": "host"}
        ask = lambda: problem(client.get("/v1/schedules:explain", params=asked))[:2]  # noqa: E731
        assert ask() == (404, "not-found")
        assert ask() == (429, "too-many-requests")


def test_leases_are_spelled_out_within_a_limit(settings: Settings, storage: Storage) -> None:
    """Generating arrays costs the service more than asking for them costs a worker."""
    with TestClient(create_app(limited(settings, spellings_per_minute=1), storage)) as client:
        header = with_scopes(storage, Scope.MEASURE)
        body = {"name": "phone", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
        worker = client.post("/v1/workers", json=body, headers=header).json()["worker"]["id"]

        def spell() -> tuple[int, str, str]:
            asked = {"worker_id": worker}
            return problem(client.post(f"/v1/leases/{'0' * 32}/plain", json=asked, headers=header))

        assert spell()[:2] == (404, "not-found")
        assert spell()[:2] == (429, "too-many-requests")


def test_no_limit_asks_the_database_nothing(
    settings: Settings, storage: Storage, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        pytest.fail("the database was asked")

    monkeypatch.setattr(type(storage.rate_limits), "take", asked)
    with TestClient(create_app(limited(settings, uploads_per_minute=0), storage)) as client:
        client.headers["Authorization"] = f"Bearer {owner}"
        upload(client)
