"""JSON over HTTP with the standard library: what a worker needs of a client, and no more."""

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
from typing import Any

from service.worker.cache import partial_file

CHUNK_BYTES = 1 << 20
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 5.0


class Unreachable(Exception):
    """No answer, or one that says to try again: nothing is known of the request's effect."""


class Refused(Exception):
    """The service answered with a problem that trying again does not change."""

    def __init__(self, status: int, slug: str, detail: str) -> None:
        self.status = status
        self.slug = slug
        super().__init__(f"{detail} ({status})")


class Api:
    """Calls to one service. Methods raise Unreachable or Refused."""

    def __init__(self, server: str, token: str, timeout_seconds: float = 30.0) -> None:
        self.server = server.rstrip("/")
        self._token = token
        self._timeout_seconds = timeout_seconds

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        extra_seconds: float = 0.0,
    ) -> dict[str, Any]:
        """One request with a JSON body, the JSON answer ({} for an empty one)."""
        data = None if body is None else json.dumps(body).encode()
        request = self._request(method, path, data)
        try:
            timeout = self._timeout_seconds + extra_seconds
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise _problem(error) from error
        except (OSError, HTTPException) as error:
            raise Unreachable(f"{self.server} does not answer: {error}") from error
        if not text:
            return {}
        try:
            found = json.loads(text)
        except ValueError as error:
            raise Refused(200, "not-json", f"{self.server} does not answer in JSON") from error
        if not isinstance(found, dict):
            raise Refused(200, "not-json", f"{self.server} does not answer with a JSON object")
        return found

    def download(
        self,
        path: str,
        digest: str,
        target: Path,
        most_bytes: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Fetch a file and check that its SHA-256 is `digest` before it appears at `target`.

        What arrived stays beside it when the download breaks off, or is `stopped`: the next one
        goes on there. What turns out to be damaged is thrown away.

        Raises:
            Unreachable: if it is not there yet; it may be tried again.
            Refused: if the service has no such file, or one of more than `most_bytes`.
        """
        partial = partial_file(target)
        checksum, done = _digest_of(partial)
        request = self._request("GET", path, None)
        if done:
            request.add_header("Range", f"bytes={done}-")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_seconds) as answer:
                if answer.status == 200 and done:  # all of it, though a part was asked for
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
            # that nothing comes after what is here: it is all there, or too much
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
            raise Unreachable(f"blob {digest} arrived damaged")
        partial.replace(target)

    def _request(self, method: str, path: str, data: bytes | None) -> urllib.request.Request:
        headers = {"Authorization": f"Bearer {self._token}"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        return urllib.request.Request(self.server + path, data, headers, method=method)


class Backoff:
    """Pauses that double up to a limit, with jitter so that a fleet does not come back at once."""

    def __init__(
        self, stopping: threading.Event, longest_seconds: float = LAST_PAUSE_SECONDS
    ) -> None:
        self._stopping = stopping
        self._longest_seconds = longest_seconds
        self._pause = FIRST_PAUSE_SECONDS

    def reset(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS

    def wait(self) -> None:
        """Sleep, but not beyond the worker's end."""
        self._stopping.wait(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(self._pause * 2, self._longest_seconds)


def _digest_of(file: Path) -> tuple[hashlib._Hash, int]:
    """The checksum of a file so far, and its size; of nothing if it is not there."""
    checksum = hashlib.sha256()
    size = 0
    with contextlib.suppress(FileNotFoundError), file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            checksum.update(chunk)
            size += len(chunk)
    return checksum, size


def _problem(error: urllib.error.HTTPError) -> Exception:
    try:
        body = json.loads(error.read())
        slug, detail = str(body["type"]).rpartition(":")[2], str(body["detail"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        slug, detail = "unknown", f"{error.code} {error.reason}"
    if error.code >= 500 or error.code in (408, 429):
        return Unreachable(f"the service failed: {detail}")
    return Refused(error.code, slug, detail)
