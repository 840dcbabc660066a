"""A download that can be resumed: received bytes, headers of the next request, and final check."""

from __future__ import annotations

import hashlib
import re
import uuid
from pathlib import Path
from types import TracebackType

import httpx2

from tilewright.service.client.errors import UnreachableError

_TOTAL = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19})")


class Download:
    """Context manager for a download to `target`, which may take several requests.

    The bytes are written to a temporary file, which is moved to `target` when it is complete and
    its digest is right. All answers must have the same entity tag, so that their bytes belong to
    the same version of the file.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
        self._file = self._partial.open("w+b")
        self._tag = self._digest = ""
        self._size: int | None = None
        self._begin_anew()

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the next request: a byte range after the bytes received so far."""
        return {"Range": f"bytes={self.received}-"} if self.received else {}

    def starts(self, answer: httpx2.Response) -> None:
        """Check the headers of an answer. Call it before `write`.

        If the service sends the whole file instead of the missing bytes, discard the bytes received
        so far.

        Raises:
            UnreachableError: if a partial answer does not continue the bytes received so far, or if
                its entity tag differs.
        """
        tag = answer.headers.get("ETag", "")
        part = _TOTAL.fullmatch(answer.headers.get("Content-Range", ""))
        if answer.status_code != 206 or part is None:
            self._begin_anew()
            size = answer.headers.get("Content-Length", "")
            self._size = int(size) if size.isdecimal() and len(size) < 20 else None
        elif int(part[1]) != self.received or tag != self._tag:
            self._begin_anew()
            raise UnreachableError("the file changed while it was fetched")
        else:
            self._size = int(part[2])
        self._tag, self._digest = tag, answer.headers.get("Digest", "")

    def write(self, chunk: bytes) -> None:
        """Append the next bytes of the answer's body."""
        self._file.write(chunk)
        self._checksum.update(chunk)
        self.received += len(chunk)

    def finish(self) -> None:
        """Check the size and the digest of the file, and move it to `target`.

        Raises:
            UnreachableError: if bytes are missing or damaged.
        """
        if self._size is not None and self.received < self._size:
            raise UnreachableError(f"the file ended after {self.received} bytes")
        wanted = self._digest.removeprefix("sha-256=")
        if (self._size is not None and self.received > self._size) or (
            wanted != self._digest and wanted != self._checksum.hexdigest()
        ):
            self._begin_anew()
            raise UnreachableError("the file arrived damaged")
        self._file.close()
        self._partial.replace(self._target)

    def _begin_anew(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._checksum = hashlib.sha256()
        self.received = 0
        self._size, self._tag, self._digest = None, "", ""
