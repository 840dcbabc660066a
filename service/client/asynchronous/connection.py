"""HTTP requests to a service, with retries, paged lists and resumed downloads."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError

from tilewright.service.api.schemas.jobs import JobEventView
from tilewright.service.client.download import Download
from tilewright.service.client.errors import ClientError, UnreachableError, parsed, refusal
from tilewright.service.client.retries import Retries

ViewT = TypeVar("ViewT", bound=BaseModel)

CHUNK_BYTES = 1 << 20
PAGE = 1000
LONG_SECONDS = 600.0
"""Time limit in seconds of requests for which the service plans a whole model."""

PASSING = (
    httpx2.TimeoutException,
    httpx2.NetworkError,
    httpx2.RemoteProtocolError,
    httpx2.ProxyError,
)
NOT_MET = (httpx2.ConnectError, httpx2.ConnectTimeout)

Content = Callable[[], AsyncIterator[bytes]]


class AsyncConnection:
    """Sends requests to one service with one token.

    All methods raise ClientError if the service is unreachable or refuses the request.
    """

    def __init__(
        self,
        server: str,
        token: str,
        *,
        timeout_seconds: float = 60.0,
        patience_seconds: float = 60.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.server = server.rstrip("/")
        self._patience_seconds = patience_seconds
        self._met = False
        try:
            self._http = httpx2.AsyncClient(
                base_url=self.server,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=timeout_seconds,
                transport=transport,
            )
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise ClientError(f"'{server}' is not a URL: {error}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections to the service."""
        await self._http.aclose()

    def _retries(self) -> Retries:
        return Retries(self._patience_seconds)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        content: Content | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        **options: Any,
    ) -> httpx2.Response:
        """Send a request, and return the answer.

        Repeat it after temporary errors, as `Retries` decides.

        Args:
            content: returns a new body for each attempt.
            once: whether to send an idempotency key, so that the service executes the request only
                once even if it arrives repeatedly. A request that is idempotent itself needs no
                key.
        """
        sent = dict(headers or {})
        if once:
            sent.setdefault("Idempotency-Key", uuid.uuid4().hex)
        retries = self._retries()
        while True:
            body = {} if content is None else {"content": content()}
            try:
                return await self._answer(method, path, headers=sent, **body, **options)
            except ClientError as error:
                await asyncio.sleep(retries.pause(error))

    async def _answer(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send a request once, without retries, and return the answer."""
        try:
            answer = await self._http.request(method, path, **options)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        self._met = True
        if answer.status_code >= 400:
            raise refusal(answer)
        return answer

    async def _view(self, view: type[ViewT], method: str, path: str, **options: Any) -> ViewT:
        return parsed(view, (await self._send(method, path, **options)).text)

    async def _views(
        self,
        view: type[ViewT],
        path: str,
        params: Mapping[str, Any] | None = None,
        *,
        most: int | None,
    ) -> list[ViewT]:
        """Return the first `most` items of a paged list, as instances of `view`.

        If `most` is None, return all items.
        """
        kind = TypeAdapter(list[view])  # type: ignore[valid-type]
        found: list[ViewT] = []
        token: str | None = None
        while True:
            left = PAGE if most is None else min(PAGE, most - len(found))
            page = {} if token is None else {"page_token": token}
            answer = await self._send("GET", path, params={**(params or {}), "limit": left, **page})
            try:
                found += kind.validate_json(answer.text)
            except ValidationError as error:
                raise ClientError(
                    f"{self.server} does not answer as a Tilewright service"
                ) from error
            token = answer.headers.get("X-Next-Page-Token")
            if token is None or (most is not None and len(found) >= most):
                return found

    async def _stream(self, path: str, after: int, retries: Retries) -> AsyncIterator[JobEventView]:
        """Yield the job events with numbers above `after`, until the service ends the stream.

        The time at which the stream opens is recorded in `retries`. If the stream breaks later, the
        caller uses `retries` to decide when to connect again, and when to give up.

        Raises:
            UnreachableError: if the connection breaks.
        """
        headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
        try:
            async with self._http.stream("GET", path, headers=headers) as answer:
                self._met = True
                if answer.status_code >= 400:
                    await answer.aread()
                    raise refusal(answer)
                retries.opened()
                async for event in httpx2.EventSource(answer):
                    if event.data:  # a pause to be kept between attempts has none
                        yield parsed(JobEventView, event.data)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error

    async def _download(self, path: str, target: Path) -> None:
        """Download a file to `target`.

        A download that breaks off is resumed after the received bytes.
        """
        retries = self._retries()
        with Download(target) as download:
            while True:
                before = download.received
                try:
                    await self._part(path, download)
                    return
                except ClientError as error:
                    if download.received > before:
                        retries.over()
                    await asyncio.sleep(retries.pause(error))

    async def _part(self, path: str, download: Download) -> None:
        """Request the missing bytes of a download, and append them. Does not retry."""
        try:
            async with self._http.stream("GET", path, headers=download.headers) as answer:
                self._met = True
                if answer.status_code >= 400:
                    await answer.aread()
                    raise refusal(answer)
                download.starts(answer)
                async for chunk in answer.aiter_bytes():
                    download.write(chunk)
            download.finish()
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx2.HTTPError) -> UnreachableError:
        """Return the error to raise for a request that failed in the network.

        The error permits retries only if the service has answered before. Otherwise the address is
        probably wrong, and the message names the setting for it.
        """
        self._met = self._met or not isinstance(error, NOT_MET)
        remedy = (
            ""
            if self._met
            else "; start one with `tilewright server run`, or set TILEWRIGHT_SERVER to its address"
        )
        found = UnreachableError(f"the service at {self.server} does not answer: {error}{remedy}")
        found.passing = self._met and isinstance(error, PASSING)
        return found


def quoted(part: str) -> str:
    """Escape a text, such as a job's id, for use as one segment of a URL's path."""
    return quote(part, safe="")
