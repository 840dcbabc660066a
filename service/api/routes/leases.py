"""Routes of leases on measurement requests: claim (a long poll), expand, report, release."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from tilewright.db.errors import NotFoundError
from tilewright.db.stores.leases import Cause, Claim
from tilewright.db.stores.workers import Health
from tilewright.service.api.deps import (
    ClaimDispatcherDep,
    ExpanderDep,
    Measurer,
    SettingsDep,
    StorageDep,
    WorkerTrafficDep,
)
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.limiter import Limited, LimiterDep
from tilewright.service.api.refusals import refuses
from tilewright.service.api.routes.workers import check_version, own_worker
from tilewright.service.api.schemas.leases import (
    ClaimRequest,
    ClaimView,
    FailureRequest,
    FailureView,
    PlainRequest,
    PlainView,
    ReleaseRequest,
    ReleaseView,
    ResultRequest,
    ResultView,
)
from tilewright.service.api.views import lease_view
from tilewright.service.api.worker_traffic import UncheckedResult
from tilewright.tuner.protocol.signing import signed_lease

router = APIRouter(tags=["leases"], route_class=GatedRoute)

ASKED_OFTEN = True


@router.post("/leases/claim")
@refuses(404, 409)
async def claim(
    body: ClaimRequest,
    request: Request,
    settings: SettingsDep,
    traffic: WorkerTrafficDep,
    room: ClaimDispatcherDep,
    token: Measurer,
) -> ClaimView:
    """Lease up to `limit` measurement requests for the worker's targets.

    If none is queued, the call waits up to `wait_seconds` for one.
    """
    worker = await traffic.own(body.worker_id, token)
    if worker.health is Health.GONE:
        raise NotFoundError("worker", worker.id)  # a worker that left has to register again
    # the worker may have registered with the previous release, and still run since then
    check_version(worker.name, worker.protocol)
    asked = Claim(worker.id, worker.target_keys, body.limit, token.id, body.claim_id)
    seconds = min(body.wait_seconds, settings.long_poll_seconds)
    leases = await room.first_work(asked, seconds, request)
    signer = request.app.state.signer
    return ClaimView(leases=[lease_view(lease, signer) for lease in leases])


@router.post("/leases/{lease_id}/plain")
@refuses(404, 409)
async def spell_out(
    lease_id: str,
    body: PlainRequest,
    request: Request,
    traffic: WorkerTrafficDep,
    expander: ExpanderDep,
    limiter: LimiterDep,
    token: Measurer,
) -> PlainView:
    """Add input arrays and a plan to a leased request, for a device without NumPy.

    The plan states which element of which array fills each buffer. The arrays are stored as blobs,
    which the worker may then download. The response is 422 `not-spelled-out` if the request needs
    NumPy on the device, for example because its program has dynamic sizes. The call may be
    repeated.
    """
    await run_in_threadpool(limiter.take, Limited.SPELLINGS)
    await traffic.own(body.worker_id, token)
    request_id, payload = await expander.expanded(lease_id, body.worker_id)
    signature = request.app.state.signer.sign(signed_lease(request_id, payload))
    return PlainView(request_id=request_id, payload=payload, signature=signature)


@router.post("/leases/{lease_id}/result")
@refuses(409)
async def report_result(
    lease_id: str, body: ResultRequest, request: Request, traffic: WorkerTrafficDep, token: Measurer
) -> ResultView:
    """Save the result of a lease. Reporting again with the same `result_key` has no further effect.

    A result that does not fit its request is rejected and counts as a failure of the worker. The
    request is then offered to other workers. If the lease has ended and another worker has the
    request, `completion` is `late`. A late result is stored, but used only if the other worker
    fails.
    """
    sent = UncheckedResult(lease_id, body.worker_id, body.result_key, body.result, token)
    completion = await traffic.report(sent, len(await request.body()))
    return ResultView(completion=completion.value)


@router.post("/leases/{lease_id}/failure")
@refuses(409)
def report_failure(
    lease_id: str, body: FailureRequest, storage: StorageDep, token: Measurer
) -> FailureView:
    """Report that the worker cannot execute a request, and why.

    Other workers may then get the request.
    """
    own_worker(storage, body.worker_id, token)
    state = storage.leases.fail(lease_id, body.worker_id, Cause(body.cause), body.error)
    return FailureView(state=state.value)


@router.post("/leases/release")
@refuses(404)
def release(body: ReleaseRequest, storage: StorageDep, token: Measurer) -> ReleaseView:
    """Return leases without results, for example because the worker shuts down.

    Their requests are queued again.
    """
    own_worker(storage, body.worker_id, token)
    return ReleaseView(released=storage.leases.release(body.worker_id, body.leases))
