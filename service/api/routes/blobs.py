"""Shared objects and expected outputs, for workers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from tilewright.db.errors import NotFoundError
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.blob_response import FILE, blob_response
from tilewright.service.api.deps import Measurer, StorageDep
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.refusals import refuses

router = APIRouter(tags=["blobs"], route_class=GatedRoute)


@router.get("/blobs/{digest}", response_class=StreamingResponse, responses=FILE)
@refuses(416)
def get_blob(digest: str, request: Request, storage: StorageDep, token: Measurer) -> Response:
    """The bytes with this SHA-256, which the reader checks.

    A worker's token reads what the leases of its workers name, as long as these hold. Of any other
    blob it is told what it is told of one that is not there.
    """
    if not token.allows(Scope.ADMIN) and not storage.leases.names_blob(token.id, digest):
        raise NotFoundError("blob", digest)
    return blob_response(
        request,
        storage,
        digest,
        headers={"Cache-Control": "private, max-age=31536000, immutable"},
    )
