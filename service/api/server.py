"""The HTTP server of the application. It closes connections that make no progress in time."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tilewright.service.api.errors import ApiProblem
from tilewright.service.api.request_ids import RequestIdMiddleware
from tilewright.service.settings import Settings

HEAD_BYTES = 32 << 10
"""Limit of the head of an HTTP request (request line and headers), in bytes."""


class PromptProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which also closes connections that make no progress.

    uvicorn waits indefinitely for the first request, for the rest of the request headers, and for
    the rest of a body whose request was already answered. This class closes such a connection after
    a deadline. Bodies that the application reads are limited by `service.api.gate`.
    """

    def __init__(self, config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        assert isinstance(config.app, FastAPI)
        settings: Settings = config.app.state.settings
        self._seconds = settings.header_seconds
        self._most_connections = settings.max_connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most_connections:
            self.app = _overloaded
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Update the deadline after data arrived or a response ended.

        A deadline is set while a request is incomplete and the application is not handling it.
        Otherwise it is cancelled.
        """
        serving = self.cycle is not None and not self.cycle.response_complete
        between = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if serving or (between and self.cycle is not None):
            self._relax()  # between requests uvicorn's own timer runs
        elif self._deadline is None:
            self._expect()

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(self._seconds, self.transport.close)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


async def _overloaded(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every request with 503: the ASGI application of connections above the limit."""
    headers = {"Retry-After": "1", "Connection": "close"}
    sentence = "the service has as many connections as it can bear: try again"
    problem = ApiProblem(503, "too-many-connections", sentence, headers=headers)
    await RequestIdMiddleware(problem.response())(scope, receive, send)


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration for serving the application."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=PromptProtocol,
        ws="none",
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        forwarded_allow_ips=settings.trusted_proxies,
        h11_max_incomplete_event_size=HEAD_BYTES,
        # for requests that do not check `stopping`
        timeout_graceful_shutdown=2,
        log_level="warning",
        access_log=False,
    )
