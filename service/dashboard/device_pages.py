"""Devices: who measures, how they are, and what can be done about it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from db.stores.tokens import Scope
from service.api.audit import AuditDep
from service.api.deps import Measurer, Reader, StorageDep
from service.api.pages import PagesDep
from service.api.routes import workers as routes
from service.api.schemas.workers import DrainRequest
from service.dashboard.commands import worker_commands
from service.dashboard.pages import address_of, next_link, page, server_of
from service.dashboard.session import PageRoute

router = APIRouter(route_class=PageRoute)


@router.get("/devices")
def devices(
    request: Request,
    response: Response,
    storage: StorageDep,
    token: Reader,
    pages: PagesDep,
    gone: bool = False,
) -> Response:
    """The workers and their devices; those that said good-bye only if somebody wants them."""
    found = routes.list_workers(storage, token, pages)
    return page(
        request,
        "devices.html",
        workers=[each for each in found if gone or each.health != "gone"],
        left=sum(each.health == "gone" for each in found),
        gone=gone,
        here=address_of(request),
        now=storage.clock(),
        may_act=token.allows(Scope.MEASURE),
        may_release=token.allows(Scope.ADMIN),
        commands=worker_commands(server_of(request)),
        next=next_link(request, response),
    )


@router.post("/devices/{worker_id}/drain")
def drain(
    request: Request, worker_id: str, storage: StorageDep, audit: AuditDep, token: Measurer
) -> Response:
    return _drained(request, worker_id, storage, audit, token, draining=True)


@router.post("/devices/{worker_id}/use")
def use(
    request: Request, worker_id: str, storage: StorageDep, audit: AuditDep, token: Measurer
) -> Response:
    """New leases again; by an admin, also after a quarantine."""
    return _drained(request, worker_id, storage, audit, token, draining=False)


def _drained(
    request: Request,
    worker_id: str,
    storage: StorageDep,
    audit: AuditDep,
    token: Measurer,
    *,
    draining: bool,
) -> Response:
    routes.drain(worker_id, DrainRequest(draining=draining), storage, audit, token)
    return RedirectResponse(f"{request.scope['root_path']}/devices", 303)
