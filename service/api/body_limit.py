"""Request bodies have a limit, whether or not they tell their length."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import too_large

UNLIMITED = frozenset({"/v1/models"})
"""Streamed uploads, which count for themselves against a limit of their own."""


class BodyLimitMiddleware:
    """Answers 413 before the body is read, or breaks off when there is too much of it."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNLIMITED:
            await self._app(scope, receive, send)
            return
        problem = too_large("the request body", self._limit_bytes)
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > self._limit_bytes:
            await problem.response()(scope, receive, send)
            return
        received = 0

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit_bytes:
                # the framework passes on an HTTPException from here, and nothing else
                raise HTTPException(problem.status, problem.detail)
            return message

        await self._app(scope, counting, send)
