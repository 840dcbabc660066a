"""The checks of a request before its body is read, and clients that stall."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio.to_thread
import httpx2
import onnx
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper
from starlette.exceptions import HTTPException
from starlette.types import Message

from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope, Token, TokenStore
from tilewright.service.api.app import create_app, route_modules
from tilewright.service.api.gate import Body, GatedRoute, Pace, TokenCache
from tilewright.service.api.schemas.bodies import plain_body
from tilewright.service.api.server import HEAD_BYTES
from tilewright.service.settings import Settings
from tilewright.tuner.protocol.version import PROTOCOL


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Clients have a quarter of a second."""
    short = {"header_seconds": 0.25, "body_start_seconds": 0.25}
    return settings.model_copy(update=short)


def onnx_model() -> bytes:
    """A model that passes a tensor on."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    data: bytes = onnx.ModelProto.SerializeToString(helper.make_model(graph))
    return data


def connect(server: Any, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(sent)
    return connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the service closes the connection."""
    with connection:
        received = b""
        while data := connection.recv(65536):
            received += data
        return received


def head(server: Any, path: str, length: int, secret: str = "", method: str = "POST") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {secret}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/models", "/v1/leases/x/result"])
def test_a_half_body_without_a_token_is_answered_and_then_closed(server: Any, path: str) -> None:
    """Nobody waits for the rest of it: 408, 413 or 422 would mean that it was read."""
    connection = connect(server, head(server, path, 500_000, "wrong") + b"{" * 1000)
    assert rest(connection).startswith(b"HTTP/1.1 401")


def test_a_half_body_with_a_token_is_given_up(server: Any, owner: str) -> None:
    for path in ("/v1/jobs", "/v1/models"):
        received = rest(connect(server, head(server, path, 1000, owner) + b"{"))
        assert received.startswith(b"HTTP/1.1 408"), received
        assert b"came too slowly: 1 bytes" in received


def test_half_requests_are_closed(server: Any) -> None:
    halves = [b"", b"G", b"GET /v1/hea", b"GET /v1/health HTTP/1.1\r\nHost: h\r\nX-Slow: "]
    connections = [connect(server, half) for half in halves * 10]
    assert {rest(connection) for connection in connections} == {b""}


def test_a_second_half_request_is_closed_too(server: Any) -> None:
    connection = connect(server, b"GET /v1/health HTTP/1.1\r\nHost: h\r\n\r\n")
    while b'"ok"' not in connection.recv(65536):
        pass
    connection.sendall(b"GET /v1/he")
    assert rest(connection) == b""


def test_the_head_of_a_request_has_a_limit(server: Any) -> None:
    head = b"GET /v1/health HTTP/1.1\r\nHost: here\r\nConnection: close\r\nX-Long: "
    most = HEAD_BYTES - 1024
    assert rest(connect(server, head + b"x" * most + b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    connection = connect(server, head + b"x" * (HEAD_BYTES + 1024))
    with suppress(ConnectionResetError):  # unread bytes
        assert rest(connection).startswith(b"HTTP/1.1 400")


def test_bodies_that_are_no_models_have_a_megabyte(client: TestClient) -> None:
    large = json.dumps({"model": "0" * (1 << 20)}).encode()
    kind = {"Content-Type": "application/json"}
    assert client.post("/v1/jobs", content=large, headers=kind).status_code == 413
    assert client.post("/v1/schedules/lookup", content=large, headers=kind).status_code == 413
    many = {"workloads": [f"{number:064x}" for number in range(10_000)], "target": "x86-64-v3"}
    assert client.post("/v1/schedules/lookup", json=many).status_code == 200


def test_every_route_passes_the_gate() -> None:
    routes = [route for router in route_modules() for route in router.routes]
    assert len(routes) > 20
    assert all(isinstance(route, GatedRoute) for route in routes)


# ---- a body


def body_of(*messages: Message, pace: Pace, limit: int = 100) -> Body:
    waiting = list(messages)

    async def receive() -> Message:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    return Body(receive, "the body", limit, pace)


def chunk(data: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


NEVER = Pace(start_seconds=3600, bytes_per_second=1, most_seconds=3600)


def test_more_time_is_given_for_more_bytes_up_to_the_deadline() -> None:
    pace = Pace(start_seconds=10, bytes_per_second=100, most_seconds=60)
    assert [pace.seconds(received) for received in (0, 1000, 10**9)] == [10, 20, 60]


def test_a_body_that_stalls_is_408_and_says_how_much_came() -> None:
    async def run() -> None:
        body = body_of(chunk(b"12345"), pace=replace(NEVER, start_seconds=0.01))
        assert (await body.receive())["body"] == b"12345"
        body._pace = replace(NEVER, most_seconds=0.0)
        with pytest.raises(HTTPException) as raised:
            await body.receive()
        assert raised.value.status_code == 408
        assert "5 bytes" in raised.value.detail

    asyncio.run(run())


def test_a_body_is_cut_off_at_its_limit() -> None:
    async def run() -> None:
        body = body_of(chunk(b"1" * 60), chunk(b"2" * 41), pace=NEVER)
        await body.receive()
        with pytest.raises(HTTPException) as raised:
            await body.receive()
        assert raised.value.status_code == 413

    asyncio.run(run())


def test_who_waits_for_the_client_to_go_is_not_hurried() -> None:
    async def run() -> None:
        gone: Message = {"type": "http.disconnect"}
        body = body_of(chunk(b"", more=False), gone, pace=replace(NEVER, most_seconds=0.5))
        await body.receive()
        body._pace = replace(NEVER, most_seconds=-1.0)
        assert await body.receive() == gone

    asyncio.run(run())


# ---- tokens


def test_a_token_is_looked_up_once_a_second_and_again_once_one_was_revoked(
    storage: Storage,
) -> None:
    now = 0.0
    secret, token = storage.tokens.create("ci", [Scope.READ])

    async def run() -> None:
        nonlocal now
        cache = TokenCache(storage.tokens, clock=lambda: now)
        assert await cache.verify(secret) == token
        storage.tokens.revoke(token.id)
        assert await cache.verify(secret) == token  # not looked up again
        now = 1.0
        assert await cache.verify(secret) is None
        assert await cache.verify("unknown") is None

    asyncio.run(run())


def test_a_crowd_with_one_token_looks_it_up_once(storage: Storage) -> None:
    """However long the answer takes: otherwise each of a thousand workers asks while all threads
    are busy."""
    secret, token = storage.tokens.create("ci", [Scope.READ])
    tokens = CountingTokens(storage.tokens)

    async def run() -> None:
        cache = TokenCache(tokens, clock=lambda: 0.0)  # type: ignore[arg-type]
        asked = [asyncio.create_task(cache.verify(secret)) for _ in range(100)]
        while not tokens.asked:  # a client that goes away takes no answer from the others
            await asyncio.sleep(0)
        asked.pop(0).cancel()
        tokens.may_answer.set()
        assert await asyncio.gather(*asked) == [token] * 99
        assert tokens.asked == 1

    asyncio.run(run())


def test_what_was_asked_before_a_token_was_revoked_is_no_answer_after(storage: Storage) -> None:
    secret, token = storage.tokens.create("ci", [Scope.READ])
    tokens = CountingTokens(storage.tokens)

    async def run() -> None:
        cache = TokenCache(tokens, clock=lambda: 0.0)  # type: ignore[arg-type]
        before = asyncio.create_task(cache.verify(secret))
        while not tokens.asked:
            await asyncio.sleep(0)
        storage.tokens.revoke(token.id)
        cache.forget()
        after = asyncio.create_task(cache.verify(secret))
        while tokens.asked < 2:
            await asyncio.sleep(0)
        tokens.may_answer.set()
        assert await before == token and await after is None
        assert await cache.verify(secret) is None  # nor is it kept

    asyncio.run(run())


class CountingTokens:
    """Tokens whose look-ups read at once and answer when they may."""

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens
        self.asked = 0
        self.may_answer = threading.Event()

    def verify(self, secret: str) -> Token | None:
        token = self._tokens.verify(secret)
        self.asked += 1
        assert self.may_answer.wait(60)
        return token

    def use_is_old(self, token: Token) -> bool:
        return False


def test_a_token_that_another_process_revokes_is_refused_at_once(
    settings: Settings, storage: Storage, owner: str
) -> None:
    """The notice comes within the second for which a verified token is known."""
    with TestClient(create_app(settings, storage)) as client:
        cache = client.app.state.gate.tokens  # type: ignore[attr-defined]
        cache._clock = lambda: 0.0  # nothing is ever a second old
        secret, token = storage.tokens.create("ci", [Scope.READ])
        header = {"Authorization": f"Bearer {secret}"}
        assert client.get("/v1/jobs", headers=header).status_code == 200
        storage.tokens.revoke(token.id)
        while client.get("/v1/jobs", headers=header).status_code == 200:
            pass
        assert client.get("/v1/jobs", headers=header).status_code == 401


# ---- more slow uploads than there are threads


def test_slow_uploads_hold_no_thread(settings: Settings, storage: Storage, owner: str) -> None:
    """With as many of them as there are threads and five, the rest goes on as ever."""
    patient = settings.model_copy(update={"body_start_seconds": 3600.0, "header_seconds": 60.0})
    app = create_app(patient, storage)
    data = onnx_model()

    async def run() -> None:
        threads = anyio.to_thread.current_default_thread_limiter()
        threads.total_tokens = 2
        release = asyncio.Event()

        async def slowly(number: int) -> AsyncIterator[bytes]:
            yield data[:number]
            await release.wait()
            yield data[number:]

        transport = httpx2.ASGITransport(app)
        header = {"Authorization": f"Bearer {owner}"}
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://h", headers=header) as client,
        ):
            uploads = [
                asyncio.create_task(client.post("/v1/models", content=slowly(number)))
                for number in range(1, 8)
            ]
            staging = storage.blobs.place.staging
            while len(list(staging.iterdir())) < len(uploads):
                await asyncio.sleep(0)
            assert (await client.get("/v1/health")).status_code == 200
            assert (await client.get("/v1/jobs")).status_code == 200
            release.set()
            answers = await asyncio.gather(*uploads)
            assert sorted(answer.status_code for answer in answers)[0] in (200, 201)
            assert len({answer.json()["digest"] for answer in answers}) == 1
            assert list(staging.iterdir()) == []

    asyncio.run(asyncio.wait_for(run(), 120))


def test_health_waits_for_no_thread_of_the_others(
    settings: Settings, storage: Storage, owner: str
) -> None:
    app = create_app(settings, storage)

    async def run() -> None:
        transport = httpx2.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://h") as client,
        ):
            anyio.to_thread.current_default_thread_limiter().total_tokens = 1
            busy = threading.Event()
            waiting = asyncio.create_task(anyio.to_thread.run_sync(busy.wait))
            await asyncio.sleep(0)
            assert (await client.get("/v1/health")).status_code == 200
            busy.set()
            await waiting

    asyncio.run(asyncio.wait_for(run(), 120))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("text", ["\0", "\ud800", "a\0b"])
def test_text_that_no_database_holds_is_refused_however_it_is_sent(
    client: TestClient, text: str, escaped: bool, encoding: str
) -> None:
    worker = {"name": "w", "protocol": PROTOCOL, "targets": ["x86-64-v3", text]}
    body = json.dumps(worker, ensure_ascii=escaped).encode(encoding, "surrogatepass")
    header = {"Content-Type": "application/json"}
    answer = client.post("/v1/workers", content=body, headers=header)
    assert answer.status_code == 422
    assert "unknown-target" not in answer.json()["type"]  # it came no further than the body


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_body_is_plain_if_all_of_it_is_wherever_it_is_cut(cut: int) -> None:
    async def seen(data: bytes) -> bool:
        body = body_of(chunk(data[:cut]), chunk(data[cut:], more=False), pace=NEVER)
        for _ in range(2):
            await body.receive()
        return plain_body.get()

    assert asyncio.run(seen(rb'["abc", "\n"]'))
    assert not asyncio.run(seen(rb'["abc\u0000"]'))
    assert not asyncio.run(seen('["abcd\u00e9"]'.encode()))
    assert not plain_body.get()  # of another request nothing is known
