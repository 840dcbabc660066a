"""Request ids: read from the request, returned in the response, added to each log entry."""

from __future__ import annotations

import re
import uuid

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"

_HEADER = HEADER.lower().encode()
_SANE = re.compile(rb"[!-~]{1,128}")  # printable, without spaces: logs contain it unescaped


def current_request_id() -> str:
    """Return the id of the current request, or a new id outside of requests."""
    found = structlog.contextvars.get_contextvars().get("request_id")
    return found if isinstance(found, str) else uuid.uuid4().hex


class RequestIdMiddleware:
    """ASGI middleware that gives each request an id, and returns it in the header `X-Request-Id`.

    A valid id from the client is used; otherwise an id is generated. It stays set in the request's
    context until the request ends, so even the response to an unexpected error, which is created
    outside of all middleware, has the id.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        request_id = given.decode("ascii") if _SANE.fullmatch(given) else uuid.uuid4().hex
        structlog.contextvars.bind_contextvars(request_id=request_id)
        header = (_HEADER, request_id.encode("ascii"))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope, receive, sending)
