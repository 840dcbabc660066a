"""The name of a request, from its header to its answer and every line that is logged about it."""

from __future__ import annotations

import re
import uuid

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"

_HEADER = HEADER.lower().encode()
_SANE = re.compile(rb"[!-~]{1,128}")  # printable, without spaces: it goes into logs as it is


def current_request_id() -> str:
    """The id of the request that is being answered; a new one outside of requests."""
    found = structlog.contextvars.get_contextvars().get("request_id")
    return found if isinstance(found, str) else uuid.uuid4().hex


class RequestIdMiddleware:
    """Takes the client's id if it is sane, else makes one.

    The server answers each request in a context of its own. The id stays in it to the very end, so
    that the answer to a bug, which is made outside of all middleware, has it too.
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
