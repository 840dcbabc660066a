"""Upload of samples: real inputs of a model, for its jobs. A job names them by their SHA-256."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from tilewright.service.api.deps import (
    PlanningDep,
    SettingsDep,
    StorageDep,
    Submitter,
    UploadLimiterDep,
)
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.limiter import Limited, LimiterDep
from tilewright.service.api.schemas.fields import Name
from tilewright.service.api.schemas.models import SamplesView
from tilewright.service.api.upload import FILE_BODY, received

router = APIRouter(tags=["models"], route_class=GatedRoute)


@router.post("/samples", status_code=201, openapi_extra=FILE_BODY)
async def upload_samples(
    request: Request,
    storage: StorageDep,
    settings: SettingsDep,
    planning: PlanningDep,
    uploads: UploadLimiterDep,
    limiter: LimiterDep,
    token: Submitter,
    name: Annotated[Name, Query(description="A name for messages")] = "samples.npz",
) -> SamplesView:
    """Upload samples of a model's inputs. The request body is an .npz file of arrays by input name.

    For a file of N samples, the first dimension of each array is N times as large as that of the
    input. If no open job names the file, it is deleted `TILEWRIGHT_KEEP_BLOBS_SECONDS` after the
    upload.
    """
    await run_in_threadpool(limiter.take, Limited.UPLOADS)
    limit = settings.max_samples_bytes
    async with received(request, storage, limit, uploads, "the samples") as staged:
        await planning.check_samples(staged.path, name, token.id)
        await run_in_threadpool(storage.blobs.keep, staged)
    await run_in_threadpool(storage.models.register_samples, staged.digest, token.name)
    return SamplesView(digest=staged.digest, bytes=staged.bytes)
