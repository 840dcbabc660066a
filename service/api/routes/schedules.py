"""The best schedules known, one at a time or for a whole model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from db.errors import NotFoundError
from service.api.conditional import NOT_MODIFIED, tagged
from service.api.deps import Reader, StorageDep
from service.api.errors import invalid
from service.api.gate import GatedRoute
from service.api.limiter import Limited, get_limiter
from service.api.lookup import lookup_model, lookup_workloads, target_key
from service.api.schemas import (
    Digest,
    LookupRequest,
    LookupView,
    Numerics,
    RecordView,
    WorkloadView,
)

router = APIRouter(tags=["schedules"], route_class=GatedRoute)

ASKED_OFTEN = True


@router.get("/schedules", response_model=RecordView, responses=NOT_MODIFIED)
async def get_schedule(
    request: Request,
    _: Reader,
    workload: Annotated[Digest, Query(description="Workload key")],
    target: Annotated[str, Query(max_length=200, description="Target key or name, or a worker")],
    threads: Annotated[int, Query(ge=1, le=256)] = 1,
    numerics: Numerics = "fast",
) -> Response:
    """The best schedule of a workload on a target, with the measurement behind it."""
    state = request.app.state  # a dependency for each would take longer than the answer
    key = await target_key(target, state.storage)
    record = (await state.served.find((key, threads, numerics), (workload,)))[workload]
    if record is None:
        raise NotFoundError("schedule", f"{workload} on {target}, {threads} threads, {numerics}")
    return tagged(request, record)


@router.post("/schedules/lookup", response_model=LookupView)
async def lookup_schedules(body: LookupRequest, request: Request, _: Reader) -> Response:
    """The best schedules of many workloads, or of all workloads of a model."""
    state = request.app.state
    if (body.workloads is None) == (body.model is None):
        raise invalid("body: give either 'workloads' or 'model'")
    if body.model is not None:
        limiter = await get_limiter(request, state.storage, state.settings)
        await run_in_threadpool(limiter.take, Limited.MODEL_LOOKUPS)
        return await lookup_model(state.storage, body, state.planning, state.served)
    return await lookup_workloads(state.storage, body, state.served)


@router.get("/workloads/{key}", response_model=WorkloadView, responses=NOT_MODIFIED)
def get_workload(key: str, request: Request, storage: StorageDep, _: Reader) -> Response:
    """The text that a workload key stands for."""
    view = WorkloadView(key=key, text=storage.workloads.workload(key))
    return tagged(request, view.model_dump_json().encode())
