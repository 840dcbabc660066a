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
"""What routes with tags say in their description."""


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """JSON, and what a client is told that has what the tag names. Without a tag nobody has it."""

    whole: Response
    unchanged: Response | None = None
    tag: str = ""

    @classmethod
    def plain(cls, content: bytes) -> JsonAnswer:
        """Of bytes without a tag."""
        return cls(Response(content, media_type=_JSON))

    @classmethod
    def tagged(cls, content: bytes) -> JsonAnswer:
        """Of bytes whose tag is their digest: whatever changes, the tag does."""
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        whole = Response(content, headers=headers, media_type=_JSON)
        return cls(whole, Response(status_code=304, headers=headers), tag)

    def to(self, scope: Scope) -> Response:
        """All of it, or 304 for a client that has it."""
        if self.unchanged is not None:
            given = [value for name, value in scope["headers"] if name == b"if-none-match"]
            if given and _names([value.decode("latin-1") for value in given], self.tag):
                return self.unchanged
        return self.whole


def tagged(request: Request, content: bytes) -> Response:
    """JSON with its tag, or 304 for a client that has it."""
    return JsonAnswer.tagged(content).to(request.scope)


def has(request: Request, tag: str) -> bool:
    """Whether the client says that it has what this tag names."""
    return _names(request.headers.getlist("if-none-match"), tag)


def _names(given: Sequence[str], tag: str) -> bool:
    joined = ", ".join(given)
    return joined.strip() == "*" or tag in _TAG.findall(joined)
