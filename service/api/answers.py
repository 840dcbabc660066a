"""Cache of complete lookup responses: a repeated request gets the same bytes while they are valid.

The cache key consists of the request's bytes and the owner of its token. The cache is consulted
after the access checks (`service.api.gate`) and before FastAPI, so a hit neither validates
parameters nor uses a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from tilewright.service.api.cache import LRU, Invalidation
from tilewright.service.api.conditional import JsonAnswer
from tilewright.service.api.gate import GatedRoute

MOST_BYTES = 64 << 20
"""Limit of the cached lookup requests and their responses together, in bytes."""

_ASKED = "tilewright_question"


@dataclass(frozen=True, slots=True)
class LookupQuestion:
    """A lookup request as a cache key: all parts of the request that determine its response.

    Attributes:
        sees: the owner whose models the token may see (`Token.sees`), or None for all owners.
        path: the path of the URL.
        query: the query string of the URL.
        content_type: the `Content-Type` header, or b"" without one.
        body: the complete body, or b"" for a route without a body.
    """

    sees: str | None
    path: str
    query: bytes
    content_type: bytes
    body: bytes


class KnownAnswers:
    """Caches the response to each `LookupQuestion` until a record or model in the response changes.

    Call all methods from one event loop.
    """

    def __init__(self, invalidation: Invalidation) -> None:
        self._invalidation = invalidation
        self._kept: LRU[LookupQuestion, JsonAnswer] = LRU(MOST_BYTES)
        invalidation.watch(self._kept)

    async def find(self, question: LookupQuestion) -> tuple[JsonAnswer | None, int]:
        """Return the cached response or None, and the present version number of the caches.

        If the version number changes before the call of `give`, the new response may be outdated,
        and `give` does not cache it.

        Raises:
            StorageError: if the changes of records and models cannot be read.
        """
        version = await self._invalidation.refresh()
        return self._kept.get(question), version

    def give(self, scope: Scope, answer: JsonAnswer, keys: Iterable[str]) -> Response:
        """Cache the response to a lookup request, and return it or a 304 response.

        A response is not cached if records or models changed after the call of `find` for this
        request, because the response may then be outdated.

        Args:
            scope: the ASGI scope of the request.
            answer: the response.
            keys: the keys of all workloads, and the digests of all models, on which the response
                depends. The response is cached until a record of these workloads, or one of these
                models, changes.
        """
        question, version = scope[_ASKED]
        if version == self._invalidation.version and question not in self._kept:
            size_bytes = len(question.query) + len(question.body) + len(answer.whole.body)
            self._kept.put(question, answer, size_bytes, keys)
        return answer.to(scope)


class LookupRoute(GatedRoute):
    """A route whose responses are cached in `KnownAnswers`.

    The function of the route runs only if the response to a request is not cached.
    """

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, again = b"", receive
        if self._reads_body:
            body, again = await _read(receive)
        kinds = (value for name, value in scope["headers"] if name == b"content-type")
        question = LookupQuestion(
            scope["tilewright_token"].sees,
            scope["path"],
            scope["query_string"],
            next(kinds, b""),
            body,
        )
        answers: KnownAnswers = scope["app"].state.answers
        known, version = await answers.find(question)
        if known is not None:
            await known.to(scope)(scope, receive, send)
            return
        scope[_ASKED] = question, version
        await super()._handle(scope, again, send)


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """Read the complete body of a request.

    Return it, and an ASGI function `receive` that delivers the same body once more.
    """
    messages: list[Message] = []
    while True:
        messages.append(await receive())
        if not messages[-1].get("more_body", False):
            break
    body = b"".join(message.get("body", b"") for message in messages)
    messages.reverse()

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return body, again
