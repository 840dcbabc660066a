"""Answers that need not be sent again: `ETag` and `If-None-Match` (RFC 9110, section 13)."""

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
"""OpenAPI responses of routes that send an `ETag`."""


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """A JSON body and its `ETag`. A body without a tag is always sent in full."""

    whole: Response
    unchanged: Response | None = None
    tag: str = ""

    @classmethod
    def plain(cls, content: bytes) -> JsonAnswer:
        """Return an answer of these bytes, without a tag."""
        return cls(Response(content, media_type=_JSON))

    @classmethod
    def tagged(cls, content: bytes) -> JsonAnswer:
        """Return an answer of these bytes, tagged with their digest."""
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        whole = Response(content, headers=headers, media_type=_JSON)
        return cls(whole, Response(status_code=304, headers=headers), tag)

    def to(self, scope: Scope) -> Response:
        """Return the full response, or 304 if the client's `If-None-Match` names the tag."""
        if self.unchanged is not None:
            given = [value for name, value in scope["headers"] if name == b"if-none-match"]
            if given and _names([value.decode("latin-1") for value in given], self.tag):
                return self.unchanged
        return self.whole


def tagged(request: Request, content: bytes) -> Response:
    """Return JSON tagged with its digest, or 304 if the client has that."""
    return JsonAnswer.tagged(content).to(request.scope)


def has(request: Request, tag: str) -> bool:
    """Whether the request's `If-None-Match` names this tag."""
    return _names(request.headers.getlist("if-none-match"), tag)


def _names(given: Sequence[str], tag: str) -> bool:
    joined = ", ".join(given)
    return joined.strip() == "*" or tag in _TAG.findall(joined)
