"""JSON responses with an `ETag`, and 304 for `If-None-Match` (RFC 9110, section 13)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from starlette.types import Scope

_TAG = re.compile(r'(?:W/)?("[^"]*")')

_JSON = "application/json"

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has it: `If-None-Match` names its `ETag`"}
}
"""OpenAPI description of status 304, for routes that send an `ETag`."""


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """A JSON response, and the 304 response for a client that already has it.

    Attributes:
        whole: the response with the body.
        unchanged: the 304 response. None without a tag: then `whole` is always sent.
        tag: the `ETag` with its quotes, or "".
    """

    whole: Response
    unchanged: Response | None = None
    tag: str = ""

    @classmethod
    def plain(cls, content: bytes) -> JsonAnswer:
        """Return an answer with this JSON body and without an `ETag`."""
        return cls(Response(content, media_type=_JSON))

    @classmethod
    def tagged(cls, content: bytes) -> JsonAnswer:
        """Return an answer with this JSON body. Its `ETag` is derived from the body's SHA-256."""
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        whole = Response(content, headers=headers, media_type=_JSON)
        return cls(whole, Response(status_code=304, headers=headers), tag)

    def to(self, scope: Scope) -> Response:
        """Return the response, or the 304 response if the request's `If-None-Match` has the tag."""
        if self.unchanged is not None:
            given = [value for name, value in scope["headers"] if name == b"if-none-match"]
            if given and _names([value.decode("latin-1") for value in given], self.tag):
                return self.unchanged
        return self.whole


def tagged(request: Request, content: bytes) -> Response:
    """Return a response with a JSON body and an `ETag`, or 304 if the client has this body."""
    return JsonAnswer.tagged(content).to(request.scope)


def has(request: Request, tag: str) -> bool:
    """Whether the client already has the content with this `ETag`.

    This is so if the request's `If-None-Match` names the tag, or is `*`.
    """
    return _names(request.headers.getlist("if-none-match"), tag)


def _names(given: Sequence[str], tag: str) -> bool:
    joined = ", ".join(given)
    return joined.strip() == "*" or tag in _TAG.findall(joined)
