"""The best schedules known, one at a time or for a whole model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from db.errors import NotFoundError
from service.api.deps import PlanningDep, Reader, StorageDep
from service.api.errors import invalid
from service.api.gate import GatedRoute
from service.api.limiter import Limited, LimiterDep
from service.api.lookup import lookup_model, lookup_workloads
from service.api.schemas import (
    Digest,
    LookupRequest,
    LookupView,
    Numerics,
    RecordView,
    WorkloadView,
)
from service.api.views import record_view
from service.jobs.addressee import target_key_of
from tuner.measure.measurement import RecordKey

router = APIRouter(tags=["schedules"], route_class=GatedRoute)


@router.get("/schedules")
def get_schedule(
    storage: StorageDep,
    _: Reader,
    workload: Annotated[Digest, Query(description="Workload key")],
    target: Annotated[str, Query(max_length=200, description="Target key or name, or a worker")],
    threads: Annotated[int, Query(ge=1, le=256)] = 1,
    numerics: Numerics = "fast",
) -> RecordView:
    """The best schedule of a workload on a target, with the measurement behind it."""
    key = RecordKey(workload, target_key_of(target, storage), threads, numerics)
    record = storage.records.best_record(key)
    if record is None:
        raise NotFoundError("schedule", f"{workload} on {target}, {threads} threads, {numerics}")
    return record_view(record)


@router.post("/schedules/lookup")
async def lookup_schedules(
    body: LookupRequest,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    _: Reader,
) -> LookupView:
    """The best schedules of many workloads, or of all workloads of a model."""
    if (body.workloads is None) == (body.model is None):
        raise invalid("body: give either 'workloads' or 'model'")
    if body.model is not None:
        await run_in_threadpool(limiter.take, Limited.MODEL_LOOKUPS)
        return await lookup_model(storage, body, planning)
    return await run_in_threadpool(lookup_workloads, storage, body)


@router.get("/workloads/{key}")
def get_workload(key: str, storage: StorageDep, _: Reader) -> WorkloadView:
    """The text that a workload key stands for."""
    return WorkloadView(key=key, text=storage.workloads.workload(key))
