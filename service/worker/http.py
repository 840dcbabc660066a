"""A minimal HTTP client for workers, which sends and receives JSON. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

from tilewright.service.worker.cache import partial_file

CHUNK_BYTES = 1 << 20
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 5.0


PROBLEM_TYPE, PROBLEM_PREFIX = "application/problem+json", "urn:tilewright:problem:"
"""Media type, and prefix of the problem type, of the service's error responses. They distinguish
these from a proxy's error responses. `service.api.errors` defines the same values."""

TRY_AGAIN = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})

MOST_ANSWER_BYTES = 1 << 30
"""Limit of a JSON response in bytes. It suffices for the payloads of a few leases."""

LONGEST_SECONDS = 3600.0
"""Upper limit in seconds of an interval that the service sets."""


class Unreachable(Exception):
    """The service did not answer, or asked for a retry; it may have executed the request anyway."""


class Damaged(Unreachable):
    """A complete download has a wrong digest.

    A single damaged download may be a network error, so that a retry may succeed.
    """


class Refused(Exception):
    """The service rejected the request; a repetition would be rejected as well."""

    def __init__(self, status: int, slug: str, detail: str, what: str = "") -> None:
        self.status = status
        self.slug = slug
        self._what = what
        super().__init__(f"{detail} ({status})")

    @property
    def worker_unknown(self) -> bool:
        """Whether the service does not know this worker, so that it must register again."""
        return self.slug == "not-found" and self._what == "worker"

    @property
    def ends_worker(self) -> bool:
        """Whether every further request would be rejected: wrong token or protocol version."""
        return self.slug in ("unauthorized", "forbidden", "protocol-version")


class Distrusted(Exception):
    """The service has another public key than the worker has stored, or a signature is wrong.

    The worker does not run code from such a server.
    """


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats an HTTP redirect as an error, because the token would be sent to another host."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class Api:
    """Sends requests to the service, with the worker's token.

    Methods raise Unreachable if the service does not answer or asks for a retry, and Refused if it
    rejects the request.

    Args:
        server: the URL of the service.
        token: the worker's token.
        timeout_seconds: the timeout of a request.
    """

    def __init__(self, server: str, token: str, timeout_seconds: float = 30.0) -> None:
        self.server = server.rstrip("/")
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._opener = urllib.request.build_opener(_NoRedirects)

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        extra_seconds: float = 0.0,
    ) -> dict[str, Any]:
        """Send a request, and return the JSON object in the answer; {} if the answer is empty.

        Args:
            method: the HTTP method.
            path: the path on the server.
            body: the JSON body; None to send none.
            extra_seconds: the extension of the timeout, for long polling.
        """
        data = None if body is None else json.dumps(body).encode()
        request = self._request(method, path, data)
        try:
            timeout = self._timeout_seconds + extra_seconds
            with self._opener.open(request, timeout=timeout) as answer:
                text = answer.read(MOST_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            raise _problem(error) from error
        except (OSError, HTTPException) as error:
            raise Unreachable(f"{self.server} does not answer: {error}") from error
        try:
            found = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise Unreachable(f"{self.server} does not answer in JSON") from error
        if not isinstance(found, dict):
            raise Unreachable(f"{self.server} does not answer with a JSON object")
        return found

    def download(
        self,
        path: str,
        digest: str,
        target: Path,
        most_bytes: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Download a file to `target` after verifying its SHA-256.

        If the download breaks off or is stopped, the received bytes are kept in a temporary file,
        and the next call resumes the download. A damaged file is deleted.

        Args:
            path: the path on the server.
            digest: the SHA-256 of the file.
            target: the path of the file on disk.
            most_bytes: the largest accepted size; None for no limit.
            stopped: returns whether to stop the download.

        Raises:
            Unreachable: if the download is incomplete; it may be retried.
            Damaged: if the complete file has another digest; it may be retried after a pause.
            Refused: if the service does not have the file, or the file exceeds `most_bytes`.
        """
        partial = partial_file(target)
        checksum, done = _digest_of(partial)
        request = self._request("GET", path, None)
        if done:
            request.add_header("Range", f"bytes={done}-")
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                if answer.status == 200 and done:  # the whole file, though a part was requested
                    checksum, done = hashlib.sha256(), 0
                elif done and not answer.headers.get("Content-Range", "").startswith(
                    f"bytes {done}-"
                ):
                    raise Unreachable(f"blob {digest} was answered with another part of it")
                left = int(answer.headers.get("Content-Length", 0))
                with partial.open("r+b" if done else "wb") as file:
                    file.seek(done)
                    while not stopped() and (chunk := answer.read(CHUNK_BYTES)):
                        checksum.update(chunk)
                        file.write(chunk)
                        done, left = done + len(chunk), left - len(chunk)
                        if most_bytes is not None and done > most_bytes:
                            break
        except urllib.error.HTTPError as error:
            # no bytes follow the received part: it is complete, or too long
            if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise _problem(error) from error
            left = 0
        except (OSError, HTTPException) as error:
            raise Unreachable(f"blob {digest} could not be fetched: {error}") from error
        if most_bytes is not None and done > most_bytes:
            partial.unlink(missing_ok=True)
            raise Refused(200, "too-large", f"blob {digest} has more than {most_bytes} bytes")
        if left > 0:
            raise Unreachable(f"blob {digest} broke off after {done} bytes")
        if checksum.hexdigest() != digest:
            partial.unlink(missing_ok=True)
            raise Damaged(f"blob {digest} arrived damaged")
        partial.chmod(0o644)  # the sandbox may be another user
        partial.replace(target)

    def _request(self, method: str, path: str, data: bytes | None) -> urllib.request.Request:
        headers = {"Authorization": f"Bearer {self._token}"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        return urllib.request.Request(self.server + path, data, headers, method=method)


class Backoff:
    """Pauses between retries, whose length doubles up to a limit.

    Each pause is shortened by a random fraction, so that many workers do not retry at the same
    moment.
    """

    def __init__(
        self, stopping: threading.Event, longest_seconds: float = LAST_PAUSE_SECONDS
    ) -> None:
        self._stopping = stopping
        self._longest_seconds = longest_seconds
        self._pause = FIRST_PAUSE_SECONDS

    def reset(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS

    def wait(self) -> None:
        """Sleep for the next pause; return early if the worker is stopped."""
        self._stopping.wait(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(self._pause * 2, self._longest_seconds)


def _digest_of(file: Path) -> tuple[hashlib._Hash, int]:
    """Return the SHA-256 state and the size of a partial file; a missing file counts as empty.

    The caller continues the SHA-256 with the remaining bytes.
    """
    checksum = hashlib.sha256()
    size = 0
    with contextlib.suppress(FileNotFoundError), file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            checksum.update(chunk)
            size += len(chunk)
    return checksum, size


def _problem(error: urllib.error.HTTPError) -> Exception:
    """Convert an HTTP error to an exception.

    It is Refused if the service rejected the request. It is Unreachable if the service failed,
    asked for a retry, or a proxy answered instead.
    """
    said = f"{error.code} {error.reason}"
    if 300 <= error.code < 400:
        return Unreachable(f"the answer is a redirect ({said}), which is not followed")
    try:
        body = json.loads(error.read(CHUNK_BYTES))
        kind, detail, what = str(body["type"]), str(body["detail"]), str(body.get("what", ""))
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return Unreachable(f"the answer is not the service's: {said}")
    media_type = error.headers.get_content_type()
    if media_type != PROBLEM_TYPE or not kind.startswith(PROBLEM_PREFIX):
        return Unreachable(f"the answer is not the service's: {said}")
    slug = kind.removeprefix(PROBLEM_PREFIX)
    no_route = slug == "not-found" and not what
    if error.code >= 500 or error.code in TRY_AGAIN or no_route:
        return Unreachable(f"the service failed: {detail}")
    return Refused(error.code, slug, detail, what)


_Kind = TypeVar("_Kind", str, int, list[Any], dict[str, Any])


def field(answer: object, name: str, kind: type[_Kind]) -> _Kind:
    """Return a field of a JSON answer. Raises Unreachable if it is missing or has another type."""
    found = answer.get(name) if isinstance(answer, dict) else None
    if type(found) is not kind:
        raise Unreachable(f"the answer is not the service's: it has no '{name}'")
    return found


def seconds_of(answer: Mapping[str, Any], name: str) -> float:
    """Return an interval in seconds from a JSON answer, clamped to a valid range.

    Raises Unreachable if it is not a number.
    """
    found = answer.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool) or found != found:
        raise Unreachable(f"the answer is not the service's: it has no '{name}'")
    return float(min(max(found, 0.05), LONGEST_SECONDS))
