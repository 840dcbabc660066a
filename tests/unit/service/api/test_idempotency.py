"""Requests that a client has named are done once, and answered as the first time."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import onnx_bytes, problem, submit, upload
from tests.unit.service.conftest import with_scopes
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.db.stores.idempotency import IdempotencyStore
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.housekeeping import remove_old_data
from tilewright.service.settings import Settings

KEY = {"Idempotency-Key": "once"}
REPLAYED = "Idempotency-Replayed"


def same(first: Any, again: Any) -> None:
    assert again.status_code == first.status_code
    assert again.content == first.content
    assert (first.headers.get(REPLAYED), again.headers.get(REPLAYED)) == (None, "true")


def test_a_token_is_made_once_and_its_secret_shown_again(
    client: TestClient, storage: Storage, settings: Settings
) -> None:
    body = {"name": "ci", "scopes": ["read"]}
    first = client.post("/v1/tokens", json=body, headers=KEY)
    assert first.status_code == 201
    same(first, client.post("/v1/tokens", json=body, headers=KEY))
    assert [token.name for token in storage.tokens.list()].count("ci") == 1
    # and yet no file of the service holds it
    secret = first.json()["secret"].encode()
    files = [path for path in settings.data_folder.rglob("*") if path.is_file()]
    assert files and not any(secret in path.read_bytes() for path in files)


def test_another_body_with_the_key_is_refused(client: TestClient, storage: Storage) -> None:
    client.post("/v1/tokens", json={"name": "a", "scopes": ["read"]}, headers=KEY)
    other = client.post("/v1/tokens", json={"name": "b", "scopes": ["read"]}, headers=KEY)
    assert problem(other)[:2] == (422, "idempotency-mismatch")
    job = submit(client)["id"]
    elsewhere = client.post(f"/v1/jobs/{job}:cancel", headers=KEY)
    assert problem(elsewhere)[:2] == (422, "idempotency-mismatch")
    assert storage.jobs.get(job).state == "queued"
    assert "b" not in [token.name for token in storage.tokens.list()]


def test_a_job_is_answered_as_the_first_time(client: TestClient, storage: Storage) -> None:
    body = {"model": upload(client), "dims": {"batch": 2}}
    first = client.post("/v1/jobs", json=body, headers=KEY)
    storage.jobs.cancel(first.json()["id"])
    same(first, client.post("/v1/jobs", json=body, headers=KEY))
    assert len(storage.jobs.list()) == 1


def test_routes_without_a_body_have_keys_too(client: TestClient, storage: Storage) -> None:
    job = submit(client)["id"]
    first = client.post(f"/v1/jobs/{job}:pause", headers=KEY)
    client.post(f"/v1/jobs/{job}:resume")
    same(first, client.post(f"/v1/jobs/{job}:pause", headers=KEY))
    assert storage.jobs.get(job).state == "queued", "it was not paused again"


def test_an_upload_has_one(client: TestClient, storage: Storage) -> None:
    first = client.post("/v1/models", content=onnx_bytes(), headers=KEY)
    assert first.status_code == 201
    same(first, client.post("/v1/models", content=onnx_bytes(), headers=KEY))
    other = client.post("/v1/models", content=onnx_bytes("Sigmoid"), headers=KEY)
    assert problem(other)[:2] == (422, "idempotency-mismatch")
    assert len(storage.models.list()) == 1
    named = client.post("/v1/models?name=b.onnx", content=onnx_bytes(), headers=KEY)
    assert problem(named)[:2] == (422, "idempotency-mismatch"), "the query counts, too"
    assert list(storage.blobs.place.staging.iterdir()) == []


def test_keys_are_a_tokens_own(client: TestClient, storage: Storage) -> None:
    model = upload(client)
    body = {"model": model, "dims": {"batch": 2}}
    ids = set()
    for _ in range(2):
        header = with_scopes(storage, Scope.SUBMIT)
        answer = client.post("/v1/jobs", json=body, headers={**header, **KEY})
        ids.add(answer.json()["id"])
    assert len(ids) == 2


def test_what_was_refused_is_tried_again(client: TestClient, storage: Storage) -> None:
    digest = "0" * 64
    first = client.post("/v1/jobs", json={"model": digest}, headers=KEY)
    assert first.status_code == 404
    body = {"model": upload(client), "dims": {"batch": 2}}
    assert client.post("/v1/jobs", json=body, headers=KEY).status_code == 201


def test_a_request_in_flight_is_not_done_twice(client: TestClient, storage: Storage) -> None:
    body = {"name": "a", "scopes": ["read"]}
    inner: list[Any] = []

    def slow(self: Any) -> Any:
        if not inner:
            inner.append(client.post("/v1/tokens", json=body, headers=KEY))
        return together(self)

    together = type(storage).together
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(storage), "together", slow)
        first = client.post("/v1/tokens", json=body, headers=KEY)
    assert first.status_code == 201
    assert problem(inner[0])[:2] == (409, "idempotency-in-flight")
    assert int(inner[0].headers["Retry-After"]) >= 1
    same(first, client.post("/v1/tokens", json=body, headers=KEY))


def test_a_bug_leaves_no_key_behind(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    body = {"name": "a", "scopes": ["read"]}
    with monkeypatch.context() as patch:
        patch.setattr(type(storage.tokens), "create", broken)
        assert client.post("/v1/tokens", json=body, headers=KEY).status_code == 500
    assert client.post("/v1/tokens", json=body, headers=KEY).status_code == 201


def test_an_answer_that_cannot_be_kept_is_given(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise StorageError("full", StorageKind.FULL)

    monkeypatch.setattr(IdempotencyStore, "finish", full)
    body = {"name": "a", "scopes": ["read"]}
    assert client.post("/v1/tokens", json=body, headers=KEY).status_code == 201


def test_an_answer_is_read_with_the_secret_of_then(client: TestClient, storage: Storage) -> None:
    secret, token = storage.tokens.create("mine", [Scope.SUBMIT], all_owners=True)
    body = {"model": upload(client), "dims": {"batch": 2}}
    before = {"Authorization": f"Bearer {secret}", **KEY}
    first = client.post("/v1/jobs", json=body, headers=before)
    assert first.status_code == 201
    secret, _ = storage.tokens.rotate(token.id, grace_seconds=60)
    after = {"Authorization": f"Bearer {secret}", **KEY}
    same(first, client.post("/v1/jobs", json=body, headers=before))
    assert problem(client.post("/v1/jobs", json=body, headers=after))[0] == 409
    assert len(storage.jobs.list()) == 1


@pytest.mark.parametrize("key", [b"", b"x" * 201, b"\xe9", b"a\tb"])
def test_a_key_is_printable_and_short(client: TestClient, key: bytes) -> None:
    body = {"name": "a", "scopes": ["read"]}
    answer = client.post("/v1/tokens", json=body, headers={b"Idempotency-Key": key})
    assert problem(answer)[:2] == (422, "invalid-request")


def test_every_post_that_changes_something_takes_a_key(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    taking = {
        path
        for path, verbs in paths.items()
        for each in verbs.get("post", {}).get("parameters", [])
        if each["name"] == "Idempotency-Key"
    }
    posts = {path for path, verbs in paths.items() if "post" in verbs}
    # a read; and the workers' requests, which are safe to repeat anyway
    rest = {path for path in posts if path.startswith(("/v1/leases", "/v1/workers"))}
    assert taking == posts - rest - {"/v1/schedules/lookup"}


def test_old_keys_are_forgotten(client: TestClient, storage: Storage, settings: Settings) -> None:
    body = {"name": "a", "scopes": ["read"]}
    client.post("/v1/tokens", json=body, headers=KEY)
    remove_old_data(storage, settings)
    assert client.post("/v1/tokens", json=body, headers=KEY).headers[REPLAYED] == "true"
    with sqlite3.connect(settings.data_folder / "tilewright.db") as database:
        database.execute("UPDATE idempotency_keys SET created_at = created_at - 90000, until = 0")
    remove_old_data(storage, settings)
    assert REPLAYED not in client.post("/v1/tokens", json=body, headers=KEY).headers


def test_a_long_request_is_held(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it lasts, however long, no other request takes it over."""
    renewed = threading.Event()
    monkeypatch.setattr("tilewright.service.api.idempotency.HELD_SECONDS", 0.1)
    monkeypatch.setattr(IdempotencyStore, "renew", lambda *_: renewed.set())
    made = type(storage.tokens).create

    def slow(self: Any, *arguments: Any, **options: Any) -> Any:
        assert renewed.wait(60)
        return made(self, *arguments, **options)

    monkeypatch.setattr(type(storage.tokens), "create", slow)
    body = {"name": "a", "scopes": ["read"]}
    assert client.post("/v1/tokens", json=body, headers=KEY).status_code == 201
