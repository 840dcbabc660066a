"""Reception of large request bodies, which are written to temporary files.

No thread waits for the network. A few threads only write to the disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request
from starlette.requests import ClientDisconnect

from tilewright.db.storage import Storage
from tilewright.db.stores.blob_bytes import Staged, Staging, TooManyBytesError
from tilewright.service.api.errors import invalid, too_large

WRITE_BYTES = 1 << 20
"""Number of bytes of an upload that are collected in memory before a thread writes them to disk."""

FILE_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
"""OpenAPI description of a request body that is a file."""

WRITERS = 4
"""Threads that write uploads. A slow disk blocks only these threads."""


@asynccontextmanager
async def received(
    request: Request,
    storage: Storage,
    limit_bytes: int,
    limiter: CapacityLimiter,
    what: str = "the model",
) -> AsyncIterator[Staged]:
    """Receive the body of a request in a temporary file, within a context that yields the file.

    The file is deleted at the end of the context unless it was moved.

    Args:
        request: the request.
        storage: its blob store has the folder for temporary files.
        limit_bytes: the largest size of the body.
        limiter: limits the threads that write files.
        what: the name of the body in error messages.

    Raises:
        StorageError: if the file cannot be written.
        ApiProblem: 413 for more than `limit_bytes`, 422 for an interrupted upload.
    """
    in_thread = partial(anyio.to_thread.run_sync, limiter=limiter)
    staging: Staging = await in_thread(partial(Staging, storage.blobs.place.staging, limit_bytes))
    try:
        waiting = bytearray()
        async for chunk in request.stream():
            waiting += chunk
            if len(waiting) >= WRITE_BYTES:
                await in_thread(partial(staging.write, bytes(waiting)))
                waiting.clear()
        await in_thread(partial(staging.write, bytes(waiting)))
        staged = await in_thread(staging.finish)
        yield staged
    except TooManyBytesError as error:
        raise too_large(what, limit_bytes) from error
    except ClientDisconnect as error:
        raise invalid("the upload ended before its last byte", "incomplete-upload") from error
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(staging.close)
