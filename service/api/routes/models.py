"""Routes of models: upload, list, download. The id of a model is the SHA-256 of its file."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from tilewright.db.errors import NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Token
from tilewright.service.api.blob_response import FILE, blob_response
from tilewright.service.api.deps import (
    PlanningDep,
    Reader,
    SettingsDep,
    StorageDep,
    Submitter,
    UploadLimiterDep,
)
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.limiter import Limited, LimiterDep
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.refusals import refuses
from tilewright.service.api.schemas.fields import Name
from tilewright.service.api.schemas.models import ModelView
from tilewright.service.api.upload import FILE_BODY, received
from tilewright.service.api.views import model_view

router = APIRouter(tags=["models"], route_class=GatedRoute)

_KNOWN: dict[int | str, dict[str, Any]] = {
    200: {"model": ModelView, "description": "The same bytes were there"}
}


@router.post("/models", status_code=201, openapi_extra=FILE_BODY, responses=_KNOWN)
async def upload_model(
    request: Request,
    response: Response,
    storage: StorageDep,
    settings: SettingsDep,
    planning: PlanningDep,
    uploads: UploadLimiterDep,
    limiter: LimiterDep,
    token: Submitter,
    name: Annotated[Name, Query(description="A name for people")] = "model.onnx",
) -> ModelView:
    """Upload an ONNX model. The request body is the file.

    The status is 200 instead of 201 if the same file was uploaded before.
    """
    await run_in_threadpool(limiter.take, Limited.UPLOADS)
    async with received(request, storage, settings.max_model_bytes, uploads) as staged:
        await planning.check_model(staged.path, name, token.id)

        def save() -> tuple[ModelView, bool]:
            known = _known(storage, staged.digest, token)
            storage.blobs.keep(staged)
            model = storage.models.register(staged.digest, staged.bytes, name, token.id)
            return model_view(model), known

        view, known = await run_in_threadpool(save)
    if known:
        response.status_code = 200
    return view


def _known(storage: Storage, digest: str, token: Token) -> bool:
    try:
        storage.models.get(digest, token.sees)
    except NotFoundError:
        return False
    return True


@router.get("/models")
def list_models(
    storage: StorageDep,
    token: Reader,
    pages: PagesDep,
) -> list[ModelView]:
    """List the models that the token may see, newest first."""
    return [
        model_view(model) for model in pages.linked(storage.models.list(*pages.wanted, token.sees))
    ]


@router.get("/models/{digest}")
def get_model(digest: str, storage: StorageDep, token: Reader) -> ModelView:
    """Return a model's name, size and time of upload, given the SHA-256 of its file."""
    return model_view(storage.models.get(digest, token.sees))


@router.get("/models/{digest}/content", response_class=StreamingResponse, responses=FILE)
@refuses(416)
def get_model_content(
    digest: str, request: Request, storage: StorageDep, token: Reader
) -> Response:
    """Download the ONNX file of a model."""
    model = storage.models.get(digest, token.sees)
    return blob_response(request, storage, model.digest, filename=model.name)
