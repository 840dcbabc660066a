"""The gate: checks of a request's token, scope and content length before its body is read.

Then the gate reads the body within a size limit, at a minimum rate and before a deadline, without
occupying a thread. A route is subject to these checks if it is a `GatedRoute`; its dependency
`Needs` states the scope.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from tilewright.db.errors import StorageError
from tilewright.db.notices import TOKENS
from tilewright.db.stores.tokens import Scope, Token, TokenStore
from tilewright.service.api.cache import LRU
from tilewright.service.api.concurrency import SingleFlight
from tilewright.service.api.errors import forbidden, too_large, unauthorized
from tilewright.service.api.idempotency import HEADER, LONGEST_KEY, Once, key_of
from tilewright.service.api.notifier import Notifier
from tilewright.service.api.refusals import refusals_of
from tilewright.service.api.schemas.bodies import is_plain, plain_body
from tilewright.service.settings import Settings

KNOWN_SECONDS = 1.0
"""Seconds for which a verified token is cached. A notice of a revocation clears the cache
sooner."""

RESULT = "/leases/{lease_id}/result"

LARGE_BYTES = 1 << 16
"""Size in bytes above which the body of a result is limited to the largest result that the leased
request can have."""

_MOST_KNOWN = 10_000

log = structlog.get_logger("tilewright.web")


class Needs(HTTPBearer):
    """FastAPI dependency of a route that needs a token with the scope `scope`.

    The value of the dependency is the token. The token's scope was already checked by middleware
    (`service.api.gate`) before the dependency runs.
    """

    def __init__(self, scope: Scope) -> None:
        super().__init__(
            scheme_name="HTTPBearer", description="A token with the scope of the route"
        )
        self.scope = scope

    async def __call__(self, request: Request) -> Token:  # type: ignore[override]
        token = request.scope["tilewright_token"]
        assert isinstance(token, Token)
        return token


class TokenCache:
    """Caches verified tokens for a second (`KNOWN_SECONDS`), to save database queries."""

    def __init__(self, tokens: TokenStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._clock = clock
        self._known: LRU[str, tuple[float, Token]] = LRU(_MOST_KNOWN)
        self._flights: SingleFlight[str, Token | None] = SingleFlight()
        self._version = 0  # grows when tokens are forgotten

    async def verify(self, secret: str) -> Token | None:
        """Return the token with a secret, or None, as `TokenStore.verify` does.

        The answer may be cached. Concurrent requests with the same secret share one look-up. A
        cached token is looked up again in the background once half of `KNOWN_SECONDS` has passed.
        """
        found = self._known.get(secret)
        age = KNOWN_SECONDS if found is None else self._clock() - found[0]
        if age > KNOWN_SECONDS / 2:
            call = self._flights.start(secret, partial(self._look_up, secret))
        if found is not None and age < KNOWN_SECONDS:
            return found[1]
        return await asyncio.shield(call)

    async def _look_up(self, secret: str) -> Token | None:
        asked, version = self._clock(), self._version
        token = await run_in_threadpool(self._verify, secret)
        if token is None:
            self._known.drop(secret)
        elif version == self._version:  # else the answer may be older than a revocation
            self._known.put(secret, (asked, token))
        return token

    def _verify(self, secret: str) -> Token | None:
        token = self._tokens.verify(secret)
        if token is not None and self._tokens.use_is_old(token):
            try:
                self._tokens.used(token.id)
            except StorageError as error:  # a full disk must not block requests that only read
                log.warning("use of a token not noted", token=token.id, error=str(error))
        return token

    def forget(self) -> None:
        """Empty the cache, because tokens may have been created or revoked."""
        self._version += 1
        self._known.clear()
        self._flights.forget()

    async def follow(self, notifier: Notifier) -> None:
        """Empty the cache whenever any process creates, changes or revokes a token.

        Runs until cancelled.
        """
        with notifier.listening(TOKENS) as subscription:
            while True:
                await subscription.woken()
                self.forget()


@dataclass(frozen=True, slots=True)
class Pace:
    """The minimum rate at which a request body must arrive, and the longest time that it may take.

    Attributes:
        start_seconds: the grace period before the rate applies.
        bytes_per_second: the minimum rate.
        most_seconds: the longest time for the whole body.
    """

    start_seconds: float  # grace period before the rate applies
    bytes_per_second: float
    most_seconds: float

    def seconds(self, received: int) -> float:
        """Return when the next bytes of a body must have arrived, in seconds after its start.

        Args:
            received: the number of bytes that have arrived.
        """
        return min(self.start_seconds + received / self.bytes_per_second, self.most_seconds)


class Body:
    """Receives the body of one request, and limits its size and its time.

    `receive` raises an HTTPException: 413 if the body is too large, 408 if it arrives too slowly.
    Both errors close the connection. They are HTTPExceptions, because FastAPI answers 400 to any
    other exception that is raised while it reads a body.
    """

    def __init__(self, receive: Receive, what: str, limit_bytes: int, pace: Pace) -> None:
        self._receive = receive
        self._what = what
        self._limit_bytes = limit_bytes
        self._pace = pace
        self._began = time.monotonic()
        self._received = 0
        self._over = False
        self._plain = True
        self._last = b""

    async def receive(self) -> Message:
        if self._over:  # the body is complete: the next message is the client's disconnect
            return await self._receive()
        left = self._began + self._pace.seconds(self._received) - time.monotonic()
        try:
            async with asyncio.timeout(left):
                message = await self._receive()
        except TimeoutError:
            detail = f"{self._what} came too slowly: {self._received} bytes in time"
            raise HTTPException(408, detail, headers={"Connection": "close"}) from None
        data = message.get("body", b"")
        self._received += len(data)
        self._plain = self._plain and is_plain(self._last + data)
        self._last = data[-1:]
        self._over = not message.get("more_body", False)
        if self._received > self._limit_bytes:
            problem = too_large(self._what, self._limit_bytes)
            raise HTTPException(413, problem.detail, headers={"Connection": "close"})
        if self._over:
            plain_body.set(self._plain)
        return message


class Gate:
    """Checks the token, the scope and the body of every request to an application.

    Args:
        settings: the limits of the sizes and times of bodies.
        tokens: verifies tokens.
        most_of_result: returns the size in bytes of the largest possible result for a lease, given
            the lease's id. It is called in a thread.
    """

    def __init__(
        self, settings: Settings, tokens: TokenCache, most_of_result: Callable[[str], int]
    ) -> None:
        self.tokens = tokens
        self._most_of_result = most_of_result
        self._pace = Pace(
            settings.body_start_seconds,
            settings.body_bytes_per_second,
            settings.body_seconds,
        )
        self._limit = "the request body", settings.max_body_bytes
        self._limits = {
            "/models": ("the model", settings.max_model_bytes),
            "/samples": ("the samples", settings.max_samples_bytes),
            "/records:import": ("the records", settings.max_import_bytes),
            "/records/import": ("the records", settings.max_import_bytes),  # the dashboard's form
            RESULT: ("the result", settings.max_result_bytes),
        }

    async def authenticate(self, headers: Mapping[bytes, bytes], scope: Scope) -> Token:
        """Return the token of a request, which must have the scope `scope`.

        Raises:
            ApiProblem: 401 if the token is missing, invalid, revoked or expired; 403 if it lacks
                the scope.
        """
        secret = secret_of(headers)
        if not secret:
            raise unauthorized("a token is needed: send the header 'Authorization: Bearer TOKEN'")
        token = await self.tokens.verify(secret.decode("latin-1"))
        if token is None:
            raise unauthorized("the token is invalid, revoked or expired")
        if not token.allows(scope):
            raise forbidden(f"token '{token.name}' has no scope '{scope}'")
        return token

    async def body(
        self,
        path: str,
        named: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        receive: Receive,
    ) -> Receive:
        """Return an ASGI function `receive` that limits the size and the time of a request's body.

        Args:
            path: the path template of the route.
            named: the values of the path parameters, by name.
            headers: the headers of the request.
            receive: the server's function that receives the body.

        Raises:
            ApiProblem: 413, if the content length exceeds the limit.
            NotFoundError: if the body is the result of a lease that does not exist, and its length
                exceeds `LARGE_BYTES` or is unknown.
        """
        what, limit = self._limits.get(path, self._limit)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            raise too_large(what, limit)
        if path == RESULT and not (length.isdigit() and int(length) <= LARGE_BYTES):
            # parsing JSON blocks the event loop, so accept no more than the largest result
            limit = min(limit, await run_in_threadpool(self._most_of_result, named["lease_id"]))
            if length.isdigit() and int(length) > limit:
                raise too_large(what, limit)
        return Body(receive, what, limit, self._pace).receive


def secret_of(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the bearer token of a request, or b"" if it has none."""
    kind, _, secret = headers.get(b"authorization", b"").partition(b" ")
    return secret.strip() if kind.lower() == b"bearer" else b""


_KEY_PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[ -~]+$"},
    "description": "A name for the request: sent again it is not done again, and answered as the "
    "first time",
}


class GatedRoute(APIRoute):
    """A route whose requests must first pass the application's `Gate`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._needs = _needed(self.dependant)
        # workers' routes are idempotent already, and readers' routes change nothing
        changes = self._needs in (Scope.SUBMIT, Scope.ADMIN)
        self._once = changes and "POST" in (self.methods or ())
        described = self.openapi_extra or {}
        self._reads_body = self.body_field is not None or "requestBody" in described
        if self._once:
            self.openapi_extra = {**described, "parameters": [_KEY_PARAMETER]}

    @property
    def refusals(self) -> frozenset[int]:
        """Return the HTTP statuses of all errors of the route, for the OpenAPI document.

        Some follow from the checks of the gate. The decorator `refuses` declares the others on the
        route's function and its dependencies.
        """
        found = {413, 422, 500, 503, 507} | refusals_of(self.dependant)
        if self._needs is not None:
            found |= {401, 403}
        if self._reads_body:
            found.add(408)
        if self._once:
            found.add(409)
        if self.param_convertors:  # the path names a resource, which may not exist
            found.add(404)
        return frozenset(found)

    async def handle(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["method"] in (self.methods or ()):
            gate: Gate = scope["app"].state.gate
            headers = dict(scope["headers"])
            if self._needs is not None:
                scope["tilewright_token"] = await gate.authenticate(headers, self._needs)
            receive = await gate.body(self.path, scope["path_params"], headers, receive)
            key = key_of(headers) if self._once else None
            if key is not None:
                await self._handle_once(key, scope, receive, send)
                return
        await self._handle(scope, receive, send)

    async def _handle_once(self, key: str, scope: Connection, receive: Receive, send: Send) -> None:
        secret = secret_of(dict(scope["headers"]))
        store = scope["app"].state.storage.idempotency
        once = Once(store, scope["tilewright_token"].id, secret, key, scope)
        try:
            if not self._reads_body:
                await once.begin()
            await self._handle(scope, once.receiving(receive), once.sending(send))
        finally:
            await once.end()

    async def _handle(self, scope: Connection, receive: Receive, send: Send) -> None:
        await super().handle(scope, receive, send)
        if self._needs is Scope.ADMIN:  # the request may have revoked a token
            scope["app"].state.gate.tokens.forget()


def _needed(dependant: Dependant) -> Scope | None:
    """Return the scope that a route or one of its dependencies demands with `Needs`, or None."""
    if isinstance(dependant.call, Needs):
        return dependant.call.scope
    found = [_needed(each) for each in dependant.dependencies]
    return next((scope for scope in found if scope is not None), None)
