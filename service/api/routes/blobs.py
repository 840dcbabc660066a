"""Route by which workers download blobs, such as compiled objects and expected outputs."""

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
    """Download the blob with this SHA-256. The client must verify the hash.

    A worker's token may read only the blobs that the live leases of its workers refer to. Any other
    blob gives 404, whether it exists or not.
    """
    if not token.allows(Scope.ADMIN) and not storage.leases.names_blob(token.id, digest):
        raise NotFoundError("blob", digest)
    return blob_response(
        request,
        storage,
        digest,
        headers={"Cache-Control": "private, max-age=31536000, immutable"},
    )
