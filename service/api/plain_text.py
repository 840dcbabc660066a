"""Checks that URLs contain only text that every database can store.

Request bodies are checked in `service.api.schemas.bodies`.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from tilewright.service.api.errors import invalid


class PlainTextMiddleware:
    """Rejects URLs with null characters."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (
            "\0" in scope["path"] or b"\0" in unquote_to_bytes(scope["query_string"])
        ):
            await invalid("the URL holds a null character").response()(scope, receive, send)
            return
        await self._app(scope, receive, send)
