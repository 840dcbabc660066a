"""Tokens, scopes and the owner's file."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from db.storage import Storage
from db.stores.tokens import Scope
from service.embedded import owner_token, read_token
from service.settings import Settings


def bearer(storage: Storage, *scopes: Scope) -> dict[str, str]:
    secret, _ = storage.tokens.create("test", scopes)
    return {"Authorization": f"Bearer {secret}"}


PROTECTED = [
    ("GET", "/v1/models", Scope.READ),
    ("POST", "/v1/models", Scope.SUBMIT),
    ("GET", "/v1/jobs", Scope.READ),
    ("POST", "/v1/jobs", Scope.SUBMIT),
    ("GET", "/v1/jobs/x/events", Scope.READ),
    ("GET", "/v1/jobs/x/artifact", Scope.READ),
    ("POST", "/v1/schedules/lookup", Scope.READ),
    ("POST", "/v1/workers", Scope.MEASURE),
    ("POST", "/v1/leases/claim", Scope.MEASURE),
    ("GET", f"/v1/blobs/{'0' * 64}", Scope.MEASURE),
    ("GET", "/v1/metrics", Scope.READ),
    ("POST", "/v1/tokens", Scope.ADMIN),
]


@pytest.mark.parametrize(("method", "path", "scope"), PROTECTED)
def test_a_route_needs_a_token_with_its_scope(
    anonymous: TestClient, storage: Storage, method: str, path: str, scope: Scope
) -> None:
    none = anonymous.request(method, path)
    assert none.status_code == 401
    assert none.headers["www-authenticate"] == "Bearer"
    others = [other for other in Scope if other not in (scope, Scope.ADMIN)]
    wrong = anonymous.request(method, path, headers=bearer(storage, *others))
    assert (wrong.status_code, wrong.json()["type"]) == (403, "urn:tilewright:problem:forbidden")
    assert scope.value in wrong.json()["detail"]
    right = anonymous.request(method, path, headers=bearer(storage, scope))
    assert right.status_code not in (401, 403)


def test_every_route_but_health_is_protected(anonymous: TestClient) -> None:
    for path, operations in anonymous.get("/openapi.json").json()["paths"].items():
        for method in operations:
            filled = path.replace("{", "").replace("}", "")
            status = anonymous.request(method, filled).status_code
            assert status == (200 if path == "/v1/health" else 401), (method, path)


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
        "the owner's token was revoked or rotated; there is a new one"
    ]
    assert lines[0]["file"] == str(settings.token_file)
    assert owner_token(settings, storage) == second


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
