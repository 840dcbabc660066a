"""Responses that stream a blob from its store: all of it, or one range of its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from tilewright.db.storage import Storage
from tilewright.service.api.conditional import NOT_MODIFIED, has
from tilewright.service.api.errors import ApiProblem

_BYTES = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
}

FILE: dict[int | str, dict[str, Any]] = {
    200: _BYTES,
    206: {"description": "The part that `Range` asks for", **_BYTES},
    **NOT_MODIFIED,
}
"""OpenAPI responses of routes that return files."""

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


def blob_response(
    request: Request,
    storage: Storage,
    digest: str,
    *,
    media_type: str = "application/octet-stream",
    filename: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a response that streams a blob (200) or one range of its bytes (206).

    The response is 304 if the client has the blob already (`If-None-Match`). A client can resume an
    interrupted download with a `Range` header (RFC 9110, section 14). The complete blob is sent if
    the header has several ranges or is malformed; the RFC permits this.

    Raises:
        NotFoundError: if the blob does not exist.
        ApiProblem: 416, if the range begins after the end of the blob.
    """
    size = storage.blobs.size(digest)
    fields = {
        "Accept-Ranges": "bytes",
        "ETag": f'"{digest}"',
        **(headers or {}),
    }
    if filename is not None:
        fields["Content-Disposition"] = f"attachment; filename*=utf-8''{quote(filename, safe='')}"
    if has(request, fields["ETag"]):
        return Response(status_code=304, headers={"ETag": fields["ETag"]})
    wanted = _wanted(request, digest, size)
    start, end = wanted or (0, size)
    if wanted is not None:
        if start >= size:
            raise ApiProblem(
                416,
                "range-not-satisfiable",
                f"blob '{digest}' has {size} bytes: byte {start} is not among them",
                headers={"Content-Range": f"bytes */{size}"},
            )
        fields["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    fields["Content-Length"] = str(end - start)
    return StreamingResponse(
        storage.blobs.read(digest, start, end),
        status_code=200 if wanted is None else 206,
        media_type=media_type,
        headers=fields,
    )


def _wanted(request: Request, digest: str, size: int) -> tuple[int, int] | None:
    """Parse the `Range` header of a request for a blob of `size` bytes.

    Return the bytes to send as a half-open range (first, end), or None for the whole blob.
    """
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or request.headers.get("if-range", f'"{digest}"') != f'"{digest}"':
        return None
    first, last = match.groups()
    if first:
        end = min(int(last) + 1, size) if last else size
        return (int(first), end) if end > int(first) or int(first) >= size else None
    if last:  # a suffix range: the last N bytes
        return (max(0, size - int(last)), size) if int(last) else (size, size)
    return None
