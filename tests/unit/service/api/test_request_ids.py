"""Every answer, problem document and log line names the request."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import structlog
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from tests.unit.service.conftest import LiveServer
from tilewright.db.errors import SchemaVersionError, StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.service.api.app import create_app
from tilewright.service.settings import Settings

HEADER = "X-Request-Id"


def test_the_clients_id_comes_back(client: TestClient) -> None:
    answer = client.get("/v1/jobs", headers={HEADER: "trace-7/a"})
    assert answer.headers[HEADER] == "trace-7/a"
    refused = client.get("/v1/jobs/none", headers={HEADER: "trace-8"})
    assert (refused.headers[HEADER], refused.json()["request_id"]) == ("trace-8", "trace-8")


@pytest.mark.parametrize(
    "given", ["", "x" * 129, "two words", "\x1b[31m", "\u00e9".encode(), "a\tb"]
)
def test_an_id_that_is_not_sane_is_replaced(client: TestClient, given: str) -> None:
    made = {client.get("/v1/health", headers={HEADER: given}).headers[HEADER] for _ in range(2)}
    assert len(made) == 2
    assert all(len(one) == 32 and one.isalnum() for one in made)


@pytest.mark.parametrize("path", ["/v1/health", "/v1/jobs", "/nowhere", "/v1/jobs/a%00b"])
def test_every_answer_has_one(anonymous: TestClient, path: str) -> None:
    answer = anonymous.get(path)
    assert len(answer.headers.get_list(HEADER)) == 1
    if answer.status_code != 200:
        assert answer.json()["request_id"] == answer.headers[HEADER]


def test_a_bug_is_found_in_the_log_by_its_id(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(storage.jobs), "list", broken)
    with capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        answer = client.get("/v1/jobs", headers={HEADER: "find-me"})
    assert answer.status_code == 500
    assert answer.headers.get_list(HEADER) == ["find-me"]
    assert answer.json()["request_id"] == "find-me"
    assert [line["request_id"] for line in lines if line["event"] == "unhandled"] == ["find-me"]


@pytest.mark.parametrize(
    "error",
    [
        StorageError("locked", StorageKind.LOCKED),
        StorageError("no server", StorageKind.UNREACHABLE),
        SchemaVersionError("newer"),
    ],
)
def test_who_is_told_to_come_again_is_told_when(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuses(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(type(storage.jobs), "list", refuses)
    answer = client.get("/v1/jobs")
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1


def test_too_many_connections_are_told_when_to_come_again(
    settings: Settings, storage: Storage, owner: str
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    few = settings.model_copy(update={"max_connections": 1})
    server = LiveServer(few, storage, port)
    server.start()
    try:
        with (
            socket.create_connection(("127.0.0.1", port)) as first,
            socket.create_connection(("127.0.0.1", port), timeout=60) as second,
        ):
            first.sendall(b"GET /v1/health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert first.recv(65536).startswith(b"HTTP/1.1 200")
            second.sendall(b"GET /v1/health HTTP/1.1\r\nHost: h\r\n\r\n")
            received = b""
            while data := second.recv(65536):  # and then it is closed
                received += data
    finally:
        server.stop()
    assert received.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1\r\n" in received.lower()
    assert b"urn:tilewright:problem:too-many-connections" in received


def test_create_app_names_requests_once(settings: Settings, storage: Storage) -> None:
    """The id of one request differs from the next one's on the same connection."""
    with TestClient(create_app(settings, storage)) as client:
        assert client.get("/v1/health", headers={HEADER: "first"}).headers[HEADER] == "first"
        assert client.get("/v1/health").headers[HEADER] != "first"
