"""Shared objects and expected outputs, for workers."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import FileResponse

from service.api.deps import Measurer, StorageDep

router = APIRouter(tags=["blobs"])


@router.get("/blobs/{digest}", response_class=FileResponse)
def get_blob(digest: str, storage: StorageDep, _: Measurer) -> FileResponse:
    """The bytes with this SHA-256, which the reader checks."""
    return FileResponse(
        storage.blobs.path(digest),
        media_type="application/octet-stream",
        headers={"Cache-Control": "private, max-age=31536000, immutable"},
    )
