"""Leasing batches of candidates and runs: claim (a long poll), report, give back."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from db.errors import NotFoundError
from db.storage import Storage
from db.stores.leases import Cause
from db.stores.workers import Health, RegisteredWorker
from service.api.deps import Measurer, SettingsDep, StorageDep, WaitingRoomDep
from service.api.errors import ApiProblem
from service.api.gate import GatedRoute
from service.api.results import ResultRefused, admit
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

ASKED_OFTEN = True


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
    if worker.health is Health.GONE:
        raise NotFoundError("worker", worker.id)  # it left: it introduces itself again first
    # one that was registered by the release before, and has not been started again since
    check_version(worker.name, worker.protocol)
    look = partial(_claim, storage, worker, body.limit, settings.lease_seconds, token.id)
    seconds = min(body.wait_seconds, settings.long_poll_seconds)
    leases = await room.first_work(worker, look, seconds, request)
    return ClaimView(leases=[lease_view(lease) for lease in leases])


def _claim(
    storage: Storage,
    worker: RegisteredWorker,
    limit: int,
    lease_seconds: float,
    token_id: str,
) -> Look:
    """Leases for a worker, and whether it is worth to look again."""
    # read anew: a worker may leave while its long poll waits
    if storage.workers.get(worker.id).health is Health.GONE:
        return Look(leaves=True)
    if not storage.queue.waiting(worker.target_keys):
        return Look(empty=True)
    return Look(
        storage.leases.claim(
            worker.id,
            worker.target_keys,
            limit=limit,
            lease_seconds=lease_seconds,
            token_id=token_id,
        )
    )


@router.post("/leases/{lease_id}/result")
def report_result(
    lease_id: str, body: ResultRequest, storage: StorageDep, token: Measurer
) -> ResultView:
    """Save what was measured. Safe to repeat: the same `result_key` is a duplicate, no error.

    A result that cannot be that of the request is refused and counts against the worker; another
    one gets the request. What comes after somebody else got it is `late`: kept with the lease, and
    not counted.
    """
    own_worker(storage, body.worker_id, token)
    try:
        result = admit(storage.leases.held(lease_id, body.worker_id), body.worker_id, body.result)
    except ResultRefused as refusal:
        storage.leases.refuse(lease_id, body.worker_id, str(refusal))
        extra = {"field": refusal.field}
        raise ApiProblem(422, "refused-result", str(refusal), extra) from refusal
    completion = storage.leases.complete(lease_id, body.worker_id, body.result_key, result)
    return ResultView(completion=completion.value)


@router.post("/leases/{lease_id}/failure")
def report_failure(
    lease_id: str, body: FailureRequest, storage: StorageDep, token: Measurer
) -> FailureView:
    """The worker does not work on the request, and why; others may try."""
    own_worker(storage, body.worker_id, token)
    state = storage.leases.fail(lease_id, body.worker_id, Cause(body.cause), body.error)
    return FailureView(state=state.value)


@router.post("/leases/release")
def release(body: ReleaseRequest, storage: StorageDep, token: Measurer) -> ReleaseView:
    """Give leases back unmeasured: the worker shuts down."""
    own_worker(storage, body.worker_id, token)
    return ReleaseView(released=storage.leases.release(body.worker_id, body.leases))
