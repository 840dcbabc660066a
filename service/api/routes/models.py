"""Uploading models. A model is named by the SHA-256 of its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import anyio.from_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from db.errors import NotFoundError
from db.storage import Storage
from db.stores.blob_bytes import TooManyBytesError
from service.api.blob_response import blob_response
from service.api.deps import Reader, SettingsDep, StorageDep, Submitter
from service.api.errors import invalid, too_large
from service.api.gate import GatedRoute
from service.api.model_check import check_model_bytes
from service.api.schemas import ModelView
from service.api.views import model_view

router = APIRouter(tags=["models"], route_class=GatedRoute)

_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("/models", status_code=201, openapi_extra=_UPLOAD)
async def upload_model(
    request: Request,
    response: Response,
    storage: StorageDep,
    settings: SettingsDep,
    token: Submitter,
    name: Annotated[str, Query(max_length=200, description="A name for people")] = "model.onnx",
) -> ModelView:
    """Save an ONNX model. The body is the file; the same bytes again answer 200."""
    limit = settings.max_model_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large("the model", limit)
    stream = request.stream()

    async def read() -> bytes | None:
        try:
            return await anext(stream)
        except StopAsyncIteration:
            return None

    def chunks() -> Iterator[bytes]:
        while (chunk := anyio.from_thread.run(read)) is not None:
            yield chunk

    def save() -> tuple[ModelView, bool]:
        # what is refused is never kept, and so there is nothing to take back
        try:
            with storage.blobs.staged(chunks(), limit) as staged:
                known = _known(storage, staged.digest)
                check_model_bytes(staged.path, name)
                storage.blobs.keep(staged)
        except TooManyBytesError as error:
            raise too_large("the model", limit) from error
        model = storage.models.register(staged.digest, staged.bytes, name, token.id)
        return model_view(model), known

    try:
        view, known = await run_in_threadpool(save)
    except ClientDisconnect as error:
        raise invalid("the upload broke off", "incomplete-upload") from error
    if known:
        response.status_code = 200
    return view


def _known(storage: Storage, digest: str) -> bool:
    try:
        storage.models.get(digest)
    except NotFoundError:
        return False
    return True


@router.get("/models")
def list_models(
    storage: StorageDep,
    _: Reader,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(max_length=64)] = None,
) -> list[ModelView]:
    """Models, the newest first; `after` is the last digest of the page before."""
    return [model_view(model) for model in storage.models.list(limit, after)]


@router.get("/models/{digest}")
def get_model(digest: str, storage: StorageDep, _: Reader) -> ModelView:
    return model_view(storage.models.get(digest))


@router.get("/models/{digest}/content", response_class=StreamingResponse)
def get_model_content(
    digest: str, request: Request, storage: StorageDep, _: Reader
) -> StreamingResponse:
    """The ONNX file."""
    model = storage.models.get(digest)
    return blob_response(request, storage, digest, filename=model.name)
