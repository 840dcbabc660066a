"""The answers to unknown paths, and to requests that the service fails to handle."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from tests.unit.service.api_calls import problem, submit
from tilewright.db.errors import DatabaseError, SchemaVersionError, StorageError, StorageKind
from tilewright.db.storage import Storage


def test_unknown_paths_and_methods_are_problems(client: TestClient) -> None:
    assert problem(client.get("/v1/none"))[:2] == (404, "not-found")
    assert problem(client.put("/v1/jobs"))[:2] == (405, "method-not-allowed")
    assert problem(client.post("/v1/jobs", content=b"{"))[:2] == (422, "invalid-request")


def test_a_refusal_names_every_field_that_is_wrong(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json={"model": "x", "threads": 0, "trials": -1}).json()
    assert {error["field"] for error in answer["errors"]} >= {"body.threads", "body.trials"}


def test_a_bug_is_a_problem_without_its_traceback(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    class Log:
        lines: list[dict[str, Any]] = []  # noqa: RUF012

        def error(self, event: str, **fields: Any) -> None:
            self.lines.append(fields)

    monkeypatch.setattr("tilewright.service.api.errors.log", Log())
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
