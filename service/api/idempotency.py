"""Requests with an `Idempotency-Key`: done once, however often they are sent.

It is decided as soon as the body is there, and before anything is done with it: the body is hashed
as it goes by. The first answer that says that something was done (2xx) is kept; any other one has
changed nothing, and a repetition is tried anew.

Answers may hold a secret (that of a new token), which the database must not know. They are
encrypted with what only the client has: the secret of its own token.
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
    """Ends a request with an answer that is there already; it passes through the framework from
    wherever the body is read."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def key_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The key of a request. Raises a 422 problem for one that is no key."""
    given = headers.get(_HEADER)
    if given is None:
        return None
    key = given.decode("latin-1")
    if not 0 < len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise invalid(f"{HEADER}: give 1 to {LONGEST_KEY} printable characters of ASCII")
    return key


class Once:
    """One request with a key."""

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
        """Go on if nobody has done this yet. Raises AnswerAtOnceError."""
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
        """The body, hashed; with its end the request begins."""

        async def hashed() -> Message:
            message = await receive()
            if message["type"] == "http.request" and self._held is None:
                self._digest.update(message.get("body", b""))
                if not message.get("more_body", False):
                    await self.begin()
            return message

        return hashed

    def sending(self, send: Send) -> Send:
        """Keeps an answer before the client has it, and lets go before it hears of a failure."""

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
        """Let go of a request that was not answered, or not with success."""
        held, self._held = self._held, None
        if self._renewing is not None:
            self._renewing.cancel()
        if held is not None:
            with anyio.CancelScope(shield=True), suppress(StorageError):  # then it runs out
                await run_in_threadpool(self._store.release, held)

    async def _finish(self, held: HeldKey, status: int, body: bytes) -> None:
        nonce = os.urandom(_NONCE_BYTES)
        answer = nonce + self._cipher.encrypt(nonce, body, None)
        try:
            await run_in_threadpool(self._store.finish, held, status, answer)
        except StorageError as error:  # what was done is done: the client has to know
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
            except StorageError as error:  # the next time, maybe
                log.warning("a key was not renewed", key=self._key, error=str(error))
