"""Routes of workers: register, list, heartbeat, drain, unregister."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter, Request

from tilewright.db.errors import NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.audit import Action
from tilewright.db.stores.tokens import Scope, Token
from tilewright.db.stores.workers import Heartbeat
from tilewright.service.api.audit import AuditDep
from tilewright.service.api.deps import Measurer, Reader, SettingsDep, StorageDep, WorkerTrafficDep
from tilewright.service.api.errors import ApiProblem
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.refusals import refuses
from tilewright.service.api.schemas.workers import (
    DrainRequest,
    HeartbeatRequest,
    HeartbeatView,
    RegistrationView,
    WorkerRequest,
    WorkerView,
)
from tilewright.service.api.views import worker_view
from tilewright.service.api.worker_traffic import WorkerHeartbeat, check_own
from tilewright.service.jobs.device.job_target import target_names
from tilewright.service.jobs.device.targets import recognised_as, runnable_targets
from tilewright.service.jobs.device.waiting import match_jobs
from tilewright.tuner.protocol.version import PROTOCOL

router = APIRouter(tags=["workers"], route_class=GatedRoute)


def own_worker(storage: Storage, worker_id: str, token: Token) -> None:
    """Check that the token may act for a worker.

    A token may act for a worker that it registered, or that has no owner. An admin's token may act
    for every worker.

    Raises:
        NotFoundError: if no worker has this id.
        ApiProblem: 403 if the worker belongs to another token.
    """
    known = storage.workers.presences([worker_id]).get(worker_id)
    found = check_own(worker_id, known, token)
    if isinstance(found, Exception):
        raise found


def check_version(name: str, protocol: int) -> None:
    """Check that a worker has the same protocol version as the service.

    `name` is the worker's name.

    Raises:
        ApiProblem: 409 if the versions differ. The problem says whether the worker or the service
            is outdated, and what to do.
    """
    if protocol == PROTOCOL:
        return
    advice = (
        "the worker is older; install the service's release of tilewright there"
        if protocol < PROTOCOL
        else "the service is older; update it, or install its release on the worker"
    )
    said = f"worker '{name}' speaks protocol {protocol}, the service {PROTOCOL}"
    raise ApiProblem(409, "protocol-version", f"{said}: {advice}")


@router.post("/workers", status_code=201)
@refuses(404, 409)
def register_worker(
    body: WorkerRequest,
    request: Request,
    storage: StorageDep,
    settings: SettingsDep,
    token: Measurer,
) -> RegistrationView:
    """Register a new worker, or one that was restarted and sends its earlier id."""
    check_version(body.name, body.protocol)
    if body.worker_id is not None:
        with suppress(NotFoundError):  # not found: the worker is new
            own_worker(storage, body.worker_id, token)
    worker = storage.workers.register(
        body.name,
        runnable_targets(body.targets, body.device, storage),
        body.device,
        protocol=body.protocol,
        owner=token.id,
        worker_id=body.worker_id,
    )
    match_jobs(storage, only_wake=True)  # wake the jobs that waited for this worker
    return RegistrationView(
        worker=worker_view(worker, trials=storage.workers.outcomes([worker.id]).get(worker.id)),
        recognised="" if body.targets else recognised_as(body.device),
        service_key=request.app.state.signer.public,
        lease_seconds=settings.lease_seconds,
        heartbeat_seconds=settings.heartbeat_seconds,
        long_poll_seconds=settings.long_poll_seconds,
    )


@router.get("/workers")
def list_workers(
    storage: StorageDep, _: Reader, pages: PagesDep, alive: bool = False
) -> list[WorkerView]:
    """List the workers and their devices, in the order of registration.

    With `alive`, workers that are lost, quarantined, drained or unregistered are left out, so a
    page may have fewer items than its limit.
    """
    in_hand = storage.leases.in_hand()
    found = pages.linked(storage.workers.list(alive=alive, limit=pages.limit, after=pages.after))
    names = target_names(storage)
    trials = storage.workers.outcomes([worker.id for worker in found])
    return [
        worker_view(worker, in_hand.get(worker.id, 0), names, trials.get(worker.id))
        for worker in found
    ]


@router.post("/workers/{worker_id}/heartbeat")
async def heartbeat(
    worker_id: str, body: HeartbeatRequest, traffic: WorkerTrafficDep, token: Measurer
) -> HeartbeatView:
    """Report that a worker is alive, and renew its leases.

    A lease that is missing from the response's field `renewed` is lost.
    """
    speed = None if body.speed is None else body.speed.model_dump()
    condition = None if body.condition is None else body.condition.model_dump()
    sign = Heartbeat(worker_id, body.device, speed, condition)
    heard = await traffic.heartbeat(WorkerHeartbeat(sign, body.leases, token))
    return HeartbeatView(
        renewed=dict(heard.renewed),
        health=heard.worker.health.value,
        heartbeat_seconds=heard.next_seconds,
    )


@router.post("/workers/{worker_id}/drain")
def drain(
    worker_id: str, body: DrainRequest, storage: StorageDep, audit: AuditDep, token: Measurer
) -> WorkerView:
    """Drain a worker, so that it gets no new leases, or resume it if `draining` is false.

    A drained worker finishes the leases that it has, and stays drained after a restart. A worker
    that failed too often is in quarantine; if an admin resumes it, the quarantine ends.
    """
    worker_id = _own_id(worker_id, storage, token)
    action = Action.WORKER_DRAINED if body.draining else Action.WORKER_RESUMED
    with storage.together():
        if not body.draining and token.allows(Scope.ADMIN):
            storage.workers.readmit(worker_id)
        worker = storage.workers.drain(worker_id, body.draining)
        audit(action, worker_id, name=worker.name)
    match_jobs(storage)
    trials = storage.workers.outcomes([worker_id]).get(worker_id)
    return worker_view(worker, storage.leases.in_hand().get(worker_id, 0), trials=trials)


@router.delete("/workers/{worker_id}", status_code=204)
def leave(worker_id: str, storage: StorageDep, token: Measurer) -> None:
    """Unregister a worker, because it shuts down."""
    worker_id = _own_id(worker_id, storage, token)
    storage.workers.leave(worker_id)
    match_jobs(storage)


def _own_id(worker_id: str, storage: Storage, token: Token) -> str:
    """Return the full id of a worker, given the id or a prefix of it.

    Workers of other tokens are found only with an admin's token.

    Raises:
        NotFoundError: if no such worker has this id, or several ids start with it.
    """
    return storage.workers.get(worker_id, None if token.allows(Scope.ADMIN) else token.id).id
