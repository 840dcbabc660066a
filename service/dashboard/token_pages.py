"""Pages on which an admin creates, rotates and revokes tokens. The secret is shown only once."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from tilewright.db.stores.tokens import Scope
from tilewright.service.api.audit import AuditDep
from tilewright.service.api.deps import Admin, SettingsDep, StorageDep
from tilewright.service.api.errors import invalid
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.routes import tokens as routes
from tilewright.service.api.schemas.tokens import NewTokenView, RotationRequest, TokenRequest
from tilewright.service.dashboard.forms import checked_body, form_fields
from tilewright.service.dashboard.pages import next_link, page
from tilewright.service.dashboard.session import COOKIE, PageRoute, keep
from tilewright.service.show.table import table
from tilewright.service.show.tables.tokens import tokens as columns

router = APIRouter(route_class=PageRoute)

DAY = 86400.0


@router.get("/tokens")
def tokens(
    request: Request, response: Response, storage: StorageDep, token: Admin, pages: PagesDep
) -> Response:
    found = routes.list_tokens(storage, token, pages)
    return page(
        request,
        "tokens.html",
        tokens=table(columns(storage.clock()), found),
        scopes=[scope.value for scope in Scope],
        next=next_link(request, response),
    )


@router.post("/tokens")
async def create(request: Request, storage: StorageDep, audit: AuditDep, token: Admin) -> Response:
    form = await form_fields(request)
    days = form.get("days", [""])[0].strip()
    body = checked_body(
        TokenRequest,
        name=form.get("name", [""])[0],
        scopes=form.get("scope", []),
        lifetime_seconds=_days(days) if days else None,
        all_owners="all_owners" in form,
    )
    made = await run_in_threadpool(routes.create_token, body, storage, audit, token)
    return _told(request, made, "made")


@router.post("/tokens/{token_id}/rotate")
async def rotate(
    request: Request,
    token_id: str,
    storage: StorageDep,
    settings: SettingsDep,
    audit: AuditDep,
    token: Admin,
) -> Response:
    """Give a token a new secret. If the browser is signed in with this token, update its cookie."""
    body = RotationRequest.model_validate({})
    made = await run_in_threadpool(
        routes.rotate_token, token_id, body, storage, settings, audit, token
    )
    answer = _told(request, made, "rotated")
    if token_id == token.id and COOKIE in request.cookies:
        keep(answer, request, made.secret)
    return answer


@router.post("/tokens/{token_id}/revoke")
def revoke(
    request: Request, token_id: str, storage: StorageDep, audit: AuditDep, token: Admin
) -> Response:
    if token_id == token.id:
        raise invalid("this is the token that you are signed in with; another admin revokes it")
    routes.revoke_token(token_id, storage, audit, token)
    return RedirectResponse(f"{request.scope['root_path']}/tokens", 303)


def _told(request: Request, made: NewTokenView, what: str) -> Response:
    """Return the page that shows a new secret. The secret cannot be shown again later.

    `what` is the action, such as "rotated".
    """
    return page(request, "token_made.html", made=made, what=what)


def _days(text: str) -> float:
    try:
        return float(text) * DAY
    except ValueError:
        raise invalid("days: this is not a number") from None
