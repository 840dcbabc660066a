"""Requests with an `Idempotency-Key` are executed once, however often a client sends them.

The body is hashed while it is received. After its last byte, and before the route's function runs,
the key is looked up. The first successful response (2xx) is stored and sent to every repetition.
Any other response means that nothing changed, so a repetition is executed again.

A response may contain the secret of a new token, which must not be readable in the database. So
responses are encrypted with a key derived from the secret of the client's own token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Mapping
from contextlib import suppress

import anyio
import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tilewright.db.errors import DatabaseError, StorageError
from tilewright.db.stores.idempotency import HELD_SECONDS, Answered, HeldKey, IdempotencyStore
from tilewright.service.api.errors import ApiProblem, database_problem, invalid

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
LONGEST_KEY = 200

_HEADER = HEADER.lower().encode()
_NONCE_BYTES = 12

log = structlog.get_logger("tilewright.web")


class AnswerAtOnceError(HTTPException):
    """Ends a request early with a response: a stored response to an earlier request, or a problem.

    It is an HTTPException, because FastAPI answers 400 to any other exception that is raised while
    it reads a body.
    """

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def key_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the `Idempotency-Key` of a request, or None without this header.

    Raises:
        ApiProblem: 422, if the key is not 1 to `LONGEST_KEY` printable ASCII characters.
    """
    given = headers.get(_HEADER)
    if given is None:
        return None
    key = given.decode("latin-1")
    if not 0 < len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise invalid(f"{HEADER}: give 1 to {LONGEST_KEY} printable characters of ASCII")
    return key


class Once:
    """Ensures that requests of a token with the same `Idempotency-Key` are executed only once.

    One object serves one request. Wrap the request's ASGI functions with `receiving` and `sending`,
    and call `end` at its end.
    """

    def __init__(
        self, store: IdempotencyStore, token_id: str, secret: bytes, key: str, scope: Scope
    ) -> None:
        self._store = store
        self._token_id = token_id
        self._cipher = AESGCM(hmac.digest(secret, b"tilewright: answers that are kept", "sha256"))
        self._key = key
        self._digest = hashlib.sha256()
        for part in (scope["method"], scope["path"], scope["query_string"].decode("latin-1")):
            self._digest.update(part.encode("utf-8", "surrogatepass") + b"\n")
        self._held: HeldKey | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._start: Message | None = None
        self._body = bytearray()

    async def begin(self) -> None:
        """Reserve the key for this request, and renew the reservation in the background.

        Raises:
            AnswerAtOnceError: with the stored response if the request was already executed, or with
                a problem if the database reports an error.
        """
        try:
            found = await run_in_threadpool(
                self._store.begin, self._token_id, self._key, self._digest.hexdigest()
            )
        except DatabaseError as error:
            raise AnswerAtOnceError(database_problem(error).response()) from error
        if isinstance(found, Answered):
            raise AnswerAtOnceError(self._replay(found))
        self._held = found
        self._renewing = asyncio.create_task(self._renew(found))

    def receiving(self, receive: Receive) -> Receive:
        """Return a replacement for the ASGI function `receive` of the request.

        It hashes the body, and calls `begin` after the last byte.
        """

        async def hashed() -> Message:
            message = await receive()
            if message["type"] == "http.request" and self._held is None:
                self._digest.update(message.get("body", b""))
                if not message.get("more_body", False):
                    await self.begin()
            return message

        return hashed

    def sending(self, send: Send) -> Send:
        """Return a replacement for the ASGI function `send` of the request.

        It stores a successful response (2xx) before any of it is sent to the client. Before it
        sends any other response, it ends the reservation of the key, so that a repetition of the
        request is executed.
        """

        async def kept(message: Message) -> None:
            if self._held is None:
                await send(message)
            elif message["type"] == "http.response.start" and not 200 <= message["status"] < 300:
                await self.end()
                await send(message)
            elif message["type"] == "http.response.start":
                self._start = message
            else:
                assert self._start is not None
                self._body += message.get("body", b"")
                if not message.get("more_body", False):
                    await self._finish(self._held, self._start["status"], bytes(self._body))
                    await send(self._start)
                    await send({"type": "http.response.body", "body": bytes(self._body)})

        return kept

    async def end(self) -> None:
        """End the reservation of the key, so that a repetition of the request is executed.

        If a successful response was stored, it stays stored, and every repetition gets it.
        """
        held, self._held = self._held, None
        if self._renewing is not None:
            self._renewing.cancel()
        if held is not None:
            with anyio.CancelScope(shield=True), suppress(StorageError):  # then the key expires
                await run_in_threadpool(self._store.release, held)

    async def _finish(self, held: HeldKey, status: int, body: bytes) -> None:
        nonce = os.urandom(_NONCE_BYTES)
        answer = nonce + self._cipher.encrypt(nonce, body, None)
        try:
            await run_in_threadpool(self._store.finish, held, status, answer)
        except StorageError as error:  # the request succeeded: still answer the client
            log.warning("an answer was not kept", key=self._key, error=str(error))
        self._held = None

    def _replay(self, found: Answered) -> Response:
        nonce, sealed = found.answer[:_NONCE_BYTES], found.answer[_NONCE_BYTES:]
        try:
            body = self._cipher.decrypt(nonce, sealed, None)
        except InvalidTag:
            return ApiProblem(
                409,
                "conflicting-state",
                f"the request with the key '{self._key}' was done, and its answer can only be read"
                " with the secret that the token had then",
            ).response()
        headers = {REPLAYED: "true"}
        return Response(body, found.status, headers, media_type="application/json")

    async def _renew(self, held: HeldKey) -> None:
        while True:
            await asyncio.sleep(HELD_SECONDS / 3)
            try:
                await run_in_threadpool(self._store.renew, held)
            except StorageError as error:  # the next round tries again
                log.warning("a key was not renewed", key=self._key, error=str(error))
