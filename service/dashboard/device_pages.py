"""Pages of devices: workers, their condition, and buttons that drain or resume them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from tilewright.db.stores.tokens import Scope
from tilewright.service.api.audit import AuditDep
from tilewright.service.api.deps import Admin, Measurer, Reader, StorageDep
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.routes import tokens as token_routes
from tilewright.service.api.routes import workers as routes
from tilewright.service.api.schemas.tokens import TokenRequest
from tilewright.service.api.schemas.workers import DrainRequest
from tilewright.service.dashboard.adding import (
    LINK_SECONDS,
    browsers_measure_here,
    link_code,
    worker_command,
    worker_link,
)
from tilewright.service.dashboard.commands import worker_commands
from tilewright.service.dashboard.forms import checked_body, form_fields
from tilewright.service.dashboard.pages import address_of, next_link, page, server_of
from tilewright.service.dashboard.session import PageRoute
from tilewright.service.show.table import table
from tilewright.service.show.tables.workers import page as page_columns

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
    """Show the workers and their devices.

    Workers that have left are shown only if `gone` is true.
    """
    found, now = routes.list_workers(storage, token, pages), storage.clock()
    return page(
        request,
        "devices.html",
        workers=table(page_columns(now), [w for w in found if gone or w.health != "gone"]),
        left=sum(each.health == "gone" for each in found),
        gone=gone,
        here=address_of(request),
        may_act=token.allows(Scope.MEASURE),
        may_release=token.allows(Scope.ADMIN),
        commands=worker_commands(server_of(request)),
        next=next_link(request, response),
    )


@router.post("/devices/add")
async def add(request: Request, storage: StorageDep, audit: AuditDep, token: Admin) -> Response:
    """Create a token for one new device, and show how to start its worker with the token.

    The page is the only one that shows the token's secret.
    """
    form = await form_fields(request)
    in_browser = form.get("kind") != ["python"]
    body = checked_body(
        TokenRequest,
        name=form.get("name", [""])[0].strip(),
        scopes=[Scope.MEASURE.value],
        lifetime_seconds=LINK_SECONDS if in_browser else None,
    )
    made = await run_in_threadpool(token_routes.create_token, body, storage, audit, token)
    server = server_of(request) + request.scope["root_path"].removesuffix("/dashboard")
    link = worker_link(server, made.secret, made.name) if in_browser else ""
    # in a thread: the longest name takes a second
    code = await run_in_threadpool(link_code, link) if link else None
    return page(
        request,
        "device_added.html",
        made=made,
        link=link,
        code=code,
        works=browsers_measure_here(server),
        command=worker_command(server, made.secret, made.name),
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
    """Resume a drained worker, so that it gets leases again.

    If the user is an admin, this also ends the worker's quarantine.
    """
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
