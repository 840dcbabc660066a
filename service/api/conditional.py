"""Answers that need not be sent again: `ETag` and `If-None-Match` (RFC 9110, section 13)."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from fastapi import Request, Response

_TAG = re.compile(r'(?:W/)?("[^"]*")')

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has it: `If-None-Match` names its `ETag`"}
}
"""What routes with tags say in their description."""


def tagged(request: Request, content: bytes) -> Response:
    """JSON with its tag, or 304 for a client that has it.

    The tag is the digest of what would be sent: whatever changes, the tag does.
    """
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if has(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="application/json")


def has(request: Request, tag: str) -> bool:
    """Whether the client says that it has what this tag names."""
    given = ", ".join(request.headers.getlist("if-none-match"))
    return given.strip() == "*" or tag in _TAG.findall(given)
