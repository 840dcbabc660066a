"""Leasing batches of candidates and runs: claim (a long poll), report, give back."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from db.storage import Storage
from db.stores.workers import Health, RegisteredWorker
from service.api.deps import Measurer, SettingsDep, StorageDep, WaitingRoomDep
from service.api.gate import GatedRoute
from service.api.routes.workers import check_version, own_worker
from service.api.schemas import (
    ClaimRequest,
    ClaimView,
    FailureRequest,
    FailureView,
    ReleaseRequest,
    ReleaseView,
    ResultRequest,
    ResultView,
)
from service.api.views import lease_view
from service.api.waiting import Look

router = APIRouter(tags=["leases"], route_class=GatedRoute)


@router.post("/leases/claim")
async def claim(
    body: ClaimRequest,
    request: Request,
    storage: StorageDep,
    settings: SettingsDep,
    room: WaitingRoomDep,
    token: Measurer,
) -> ClaimView:
    """Up to `limit` measurements for the worker's targets, waiting for a first one if asked to."""
    worker = await run_in_threadpool(own_worker, storage, body.worker_id, token)
    # one that was registered by the release before, and has not been started again since
    check_version(worker.name, worker.protocol)
    look = partial(_claim, storage, worker, body.limit, settings.lease_seconds)
    seconds = min(body.wait_seconds, settings.long_poll_seconds)
    leases = await room.first_work(worker, look, seconds, request)
    return ClaimView(leases=[lease_view(lease) for lease in leases])


def _claim(storage: Storage, worker: RegisteredWorker, limit: int, lease_seconds: float) -> Look:
    """Leases for a worker, and whether it is worth to look again."""
    # read anew: a worker may be drained, or leave, while its long poll waits
    current = storage.workers.get(worker.id)
    if current.health is Health.GONE or current.draining:
        return Look(leaves=current.health is Health.GONE)
    # a read first: on SQLite a claim takes the write lock even when there is nothing to claim
    if not storage.queue.waiting(worker.target_keys):
        return Look(empty=True)
    return Look(
        storage.leases.claim(
            worker.id, worker.target_keys, limit=limit, lease_seconds=lease_seconds
        )
    )


@router.post("/leases/{request_id}/result")
def report_result(
    request_id: str, body: ResultRequest, storage: StorageDep, token: Measurer
) -> ResultView:
    """Save what was measured. Safe to repeat: the same `result_key` is a duplicate, no error."""
    own_worker(storage, body.worker_id, token)
    completion = storage.leases.complete(
        request_id, body.fencing_token, body.result_key, body.result
    )
    return ResultView(completion=completion.value)


@router.post("/leases/{request_id}/failure")
def report_failure(
    request_id: str, body: FailureRequest, storage: StorageDep, token: Measurer
) -> FailureView:
    """The worker cannot work on the request; with `retry`, it may be tried again."""
    own_worker(storage, body.worker_id, token)
    state = storage.leases.fail(request_id, body.fencing_token, body.error, retry=body.retry)
    return FailureView(state=state.value)


@router.post("/leases/release")
def release(body: ReleaseRequest, storage: StorageDep, token: Measurer) -> ReleaseView:
    """Give leases back unmeasured: the worker shuts down."""
    own_worker(storage, body.worker_id, token)
    return ReleaseView(released=storage.leases.release(body.worker_id, body.leases))
