"""Pages to sign in and out, and the redirect from the dashboard's root to its first page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from tilewright.db.stores.tokens import Scope
from tilewright.service.api.errors import ApiProblem
from tilewright.service.dashboard.forms import form_fields
from tilewright.service.dashboard.pages import page
from tilewright.service.dashboard.session import PageRoute, forget, keep, safe_next

router = APIRouter(route_class=PageRoute)


@router.get("/")
async def front(request: Request) -> Response:
    return RedirectResponse(f"{request.scope['root_path']}/jobs", 303)


@router.get("/sign-in")
async def sign_in(request: Request, next: str = "") -> Response:
    return page(request, "sign_in.html", next=next, refusal="")


@router.post("/sign-in")
async def signed_in(request: Request) -> Response:
    """Check the submitted token, and store it in the session cookie if it has the scope "read"."""
    given = await form_fields(request)
    secret = given.get("token", [""])[0].strip()
    back = given.get("next", [""])[0]
    try:
        bearer = b"Bearer " + secret.encode("latin-1", "replace")
        headers = {b"authorization": bearer}
        await request.app.state.gate.authenticate(headers, Scope.READ)
    except ApiProblem as problem:
        return page(request, "sign_in.html", problem.status, next=back, refusal=problem.detail)
    response = RedirectResponse(safe_next(back, request.scope["root_path"]), 303)
    keep(response, request, secret)
    return response


@router.post("/sign-out")
async def signed_out(request: Request) -> Response:
    response = RedirectResponse(f"{request.scope['root_path']}/sign-in", 303)
    forget(response, request)
    return response
