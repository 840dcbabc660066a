"""Whole answers to lookups: the same question gets the same bytes until the answer could differ.

A known answer is found by the bytes of its question and the owner who asks, behind the gate and
before the framework: no parameter is read or checked again, and no thread is asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from tilewright.service.api.conditional import JsonAnswer
from tilewright.service.api.freshness import Freshness
from tilewright.service.api.gate import GatedRoute

MOST_BYTES = 64 << 20
"""Of all answers that are kept, with their questions."""

_ASKED = "tilewright_question"


@dataclass(frozen=True, slots=True)
class LookupQuestion:
    """What was asked, to the byte, and the owner whose models there are (`Token.sees`)."""

    sees: str | None
    path: str
    query: bytes
    content_type: bytes
    body: bytes


class KnownAnswers:
    """What was answered last to each question. Of one event loop."""

    def __init__(self, freshness: Freshness) -> None:
        self._freshness = freshness
        freshness.tell(self._forget)
        self._kept: OrderedDict[LookupQuestion, tuple[JsonAnswer, frozenset[str]]] = OrderedDict()
        self._of_key: dict[str, set[LookupQuestion]] = {}
        self._bytes = 0

    async def find(self, question: LookupQuestion) -> tuple[JsonAnswer | None, int]:
        """The answer, if it is known, and the version of what lookups answer.

        Raises StorageError.
        """
        version = await self._freshness.freshen()
        kept = self._kept.get(question)
        if kept is None:
            return None, version
        self._kept.move_to_end(question)
        return kept[0], version

    def give(self, scope: Scope, answer: JsonAnswer, keys: Iterable[str]) -> Response:
        """Answer a request to a `LookupRoute`, and keep that until one of the keys changes.

        The answer must depend on nothing but the question and what lookups of these keys answer.
        """
        question, version = scope[_ASKED]
        if version == self._freshness.version and question not in self._kept:
            names = frozenset(keys)
            self._kept[question] = answer, names
            for name in names:
                self._of_key.setdefault(name, set()).add(question)
            self._bytes += _bytes(question, answer)
            while self._bytes > MOST_BYTES:
                self._drop(next(iter(self._kept)))
        return answer.to(scope)

    def _forget(self, changed: Collection[str] | None) -> None:
        old = list(self._kept) if changed is None else []
        for key in changed or ():
            old.extend(self._of_key.get(key, ()))
        for question in dict.fromkeys(old):
            self._drop(question)

    def _drop(self, question: LookupQuestion) -> None:
        answer, names = self._kept.pop(question)
        self._bytes -= _bytes(question, answer)
        for name in names:
            same = self._of_key[name]
            same.discard(question)
            if not same:
                del self._of_key[name]


def _bytes(question: LookupQuestion, answer: JsonAnswer) -> int:
    return len(question.query) + len(question.body) + len(answer.whole.body)


class LookupRoute(GatedRoute):
    """A route that asks `KnownAnswers` first."""

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
    """The whole body, and a way to receive it again."""
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
