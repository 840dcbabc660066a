"""Tokens, scopes and the owner's file."""

from __future__ import annotations

import re
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.service.embedded import owner_token, read_token, worker_token
from tilewright.service.settings import Settings


def bearer(storage: Storage, *scopes: Scope) -> dict[str, str]:
    secret, _ = storage.tokens.create("test", scopes)
    return {"Authorization": f"Bearer {secret}"}


NEEDED: dict[str, Scope | None] = {
    "GET /v1/audit": Scope.ADMIN,
    "GET /v1/blobs/{digest}": Scope.MEASURE,
    "GET /v1/cost-models": Scope.READ,
    "GET /v1/health": None,
    "GET /v1/jobs": Scope.READ,
    "GET /v1/jobs/{job_id}": Scope.READ,
    "GET /v1/jobs/{job_id}/artifact": Scope.READ,
    "GET /v1/jobs/{job_id}/curve": Scope.READ,
    "GET /v1/jobs/{job_id}/events": Scope.READ,
    "GET /v1/jobs/{job_id}/graph": Scope.READ,
    "GET /v1/jobs/{job_id}/log": Scope.READ,
    "GET /v1/jobs/{job_id}/tasks": Scope.READ,
    "GET /v1/jobs/{job_id}/tasks/{workload}/code": Scope.READ,
    "GET /v1/jobs/{job_id}/tasks/{workload}/nest": Scope.READ,
    "GET /v1/jobs/{job_id}/tasks/{workload}/predictions": Scope.READ,
    "GET /v1/metrics": Scope.READ,
    "GET /v1/models": Scope.READ,
    "GET /v1/models/{digest}": Scope.READ,
    "GET /v1/models/{digest}/content": Scope.READ,
    "GET /v1/records": Scope.READ,
    "GET /v1/records/{record_id}": Scope.READ,
    "GET /v1/records:coverage": Scope.READ,
    "GET /v1/records:export": Scope.READ,
    "GET /v1/schedules": Scope.READ,
    "GET /v1/schedules:explain": Scope.READ,
    "GET /v1/signing-key": Scope.READ,
    "GET /v1/targets": Scope.READ,
    "GET /v1/tasks": Scope.READ,
    "GET /v1/tokens": Scope.ADMIN,
    "GET /v1/trials": Scope.READ,
    "GET /v1/workers": Scope.READ,
    "GET /v1/workloads": Scope.READ,
    "GET /v1/workloads/{key}": Scope.READ,
    "POST /v1/cost-models/promote": Scope.ADMIN,
    "POST /v1/cost-models/rollback": Scope.ADMIN,
    "POST /v1/jobs": Scope.SUBMIT,
    "POST /v1/jobs/{job_id}:cancel": Scope.SUBMIT,
    "POST /v1/jobs/{job_id}:pause": Scope.SUBMIT,
    "POST /v1/jobs/{job_id}:resume": Scope.SUBMIT,
    "POST /v1/leases/claim": Scope.MEASURE,
    "POST /v1/leases/release": Scope.MEASURE,
    "POST /v1/leases/{lease_id}/failure": Scope.MEASURE,
    "POST /v1/leases/{lease_id}/plain": Scope.MEASURE,
    "POST /v1/leases/{lease_id}/result": Scope.MEASURE,
    "POST /v1/models": Scope.SUBMIT,
    "POST /v1/samples": Scope.SUBMIT,
    "POST /v1/records:import": Scope.ADMIN,
    "POST /v1/records:withdraw": Scope.ADMIN,
    "POST /v1/schedules/lookup": Scope.READ,
    "POST /v1/tokens": Scope.ADMIN,
    "POST /v1/tokens/{token_id}/rotate": Scope.ADMIN,
    "POST /v1/workers": Scope.MEASURE,
    "POST /v1/workers/{worker_id}/drain": Scope.MEASURE,
    "POST /v1/workers/{worker_id}/heartbeat": Scope.MEASURE,
    "DELETE /v1/tokens/{token_id}": Scope.ADMIN,
    "DELETE /v1/workers/{worker_id}": Scope.MEASURE,
}
"""The scope that each route needs. Written by hand, so that a wider scope has to be granted here,
too."""

PROTECTED = sorted(route for route, scope in NEEDED.items() if scope is not None)


def test_the_table_has_every_route(anonymous: TestClient) -> None:
    paths = anonymous.get("/openapi.json").json()["paths"]
    routes = {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs}
    assert routes == set(NEEDED)


def test_a_route_needs_a_token_with_its_scope(anonymous: TestClient, storage: Storage) -> None:
    """Every route with no token, a wrong one, and one of each scope."""
    tokens = {scope: bearer(storage, scope) for scope in Scope}
    wrong = {"Authorization": "Bearer wrong"}
    for route in PROTECTED:
        method, _, template = route.partition(" ")
        path, scope = re.sub(r"{\w+}", "0" * 64, template), NEEDED[route]
        for headers in ({}, wrong):
            none = anonymous.request(method, path, headers=headers)
            assert none.status_code == 401, route
            assert none.headers["www-authenticate"] == "Bearer"
        for single, header in tokens.items():
            answer = anonymous.request(method, path, headers=header)
            if single in (scope, Scope.ADMIN):
                assert answer.status_code not in (401, 403), (route, single)
            else:
                assert answer.status_code == 403, (route, single)
                assert answer.json()["type"] == "urn:tilewright:problem:forbidden"
                assert f"'{scope}'" in answer.json()["detail"], route


def test_the_route_without_a_token_is_health(anonymous: TestClient) -> None:
    open_to_all = [route for route, scope in NEEDED.items() if scope is None]
    assert open_to_all == ["GET /v1/health"]
    assert anonymous.get("/v1/health").status_code == 200


def test_a_revoked_token_is_refused(client: TestClient) -> None:
    made = client.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]}).json()
    header = {"Authorization": f"Bearer {made['secret']}"}
    assert client.get("/v1/jobs", headers=header).status_code == 200
    assert client.delete(f"/v1/tokens/{made['id']}").json()["revoked_at"] is not None
    assert client.get("/v1/jobs", headers=header).status_code == 401
    listed = client.get("/v1/tokens").json()
    assert all("secret" not in token for token in listed)


def test_the_owner_token_is_made_once_and_for_its_owner_alone(
    settings: Settings, storage: Storage
) -> None:
    first = owner_token(settings, storage)
    assert owner_token(settings, storage) == first == read_token(settings)
    assert stat.S_IMODE(settings.token_file.stat().st_mode) == 0o600
    token = storage.tokens.verify(first)
    assert token is not None
    assert token.allows(Scope.ADMIN)
    assert len(first) >= 43  # 256 bits in base64


@pytest.mark.parametrize("content", [b"", b"\n", b"a b", b"a\x00b", b"\xff", "\u00e9".encode()])
def test_a_file_that_holds_no_token_is_never_taken_for_one(
    settings: Settings, content: bytes
) -> None:
    """An empty one would let everybody in."""
    settings.token_file.parent.mkdir(parents=True)
    settings.token_file.write_bytes(content)
    with pytest.raises(StorageError, match="holds no token: remove it") as refused:
        read_token(settings)
    assert refused.value.kind is StorageKind.CORRUPT


def test_a_revoked_owner_token_stays_revoked_after_a_restart(
    settings: Settings, storage: Storage
) -> None:
    first = owner_token(settings, storage)
    token = storage.tokens.verify(first)
    assert token is not None
    storage.tokens.revoke(token.id)
    with capture_logs() as lines:
        second = owner_token(settings, storage)
    assert storage.tokens.verify(first) is None
    assert second != first and second == read_token(settings)
    assert storage.tokens.verify(second) is not None
    assert stat.S_IMODE(settings.token_file.stat().st_mode) == 0o600
    assert [line["event"] for line in lines] == [
        "a token was revoked or rotated; there is a new one"
    ]
    assert (lines[0]["token"], lines[0]["file"]) == ("owner", str(settings.token_file))
    assert owner_token(settings, storage) == second


def test_the_token_of_the_local_worker_may_only_measure(
    settings: Settings, storage: Storage
) -> None:
    owner, first = owner_token(settings, storage), worker_token(settings, storage)
    file = settings.worker_token_file
    assert worker_token(settings, storage) == first == file.read_text().strip() != owner
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = storage.tokens.verify(first)
    assert token is not None and token.scopes == {Scope.MEASURE}
    storage.tokens.revoke(token.id)
    assert storage.tokens.verify(worker_token(settings, storage)) is not None
    assert owner_token(settings, storage) == owner


def test_processes_that_start_together_agree_on_the_new_owner_token(
    settings: Settings, storage: Storage
) -> None:
    token = storage.tokens.verify(owner_token(settings, storage))
    assert token is not None
    storage.tokens.revoke(token.id)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: owner_token(settings, storage), range(8)))
    assert len(found) == 1
    assert sum(t.revoked_at is None for t in storage.tokens.list()) == 1
