"""The ASGI application of the dashboard: routes of pages, static files and error pages.

The service mounts it and shares its `state`. Pages and REST routes therefore use the same database,
token checks and rate limits. A page calls the functions of REST routes with the token from the
browser's cookie.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import MutableHeaders
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilewright.service.api import errors
from tilewright.service.api.errors import ApiProblem
from tilewright.service.dashboard import (
    compare_pages,
    cost_model_pages,
    device_pages,
    graph_pages,
    job_pages,
    record_pages,
    sign_in,
    task_pages,
    token_pages,
)
from tilewright.service.dashboard.pages import STATIC, problem_page
from tilewright.service.dashboard.session import COOKIE, forget

PATH = "/dashboard"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # not `no-referrer`: forms would then send the origin `null`
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

ROUTERS = (
    sign_in.router,
    job_pages.router,
    graph_pages.router,
    task_pages.router,
    compare_pages.router,
    device_pages.router,
    record_pages.router,
    cost_model_pages.router,
    token_pages.router,
)
"""The routers of all pages, one per module."""

entrance = APIRouter(include_in_schema=False)


@entrance.get("/")
async def enter(request: Request) -> Response:
    """Redirect to the dashboard."""
    return RedirectResponse(f"{request.scope['root_path']}{PATH}/", 303)


def create_dashboard(service: FastAPI) -> FastAPI:
    """Return the dashboard's application, which the service mounts at the URL path `PATH`."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state = service.state
    app.add_middleware(_Guarded)
    errors.install(app, _refused)
    app.router.routes.extend(_routes())
    app.mount("/static", StaticFiles(directory=STATIC))
    return app


@cache
def _routes() -> Sequence[BaseRoute]:
    """Return the routes of all pages.

    They are built once per process and shared by all applications.
    """
    whole = APIRouter()
    for router in ROUTERS:
        whole.include_router(router)
    return whole.routes


def _refused(request: Request, problem: ApiProblem) -> Response:
    """Return the answer to a request that raised `problem`: a page that explains the problem.

    If the problem is a missing or invalid token (status 401), the answer is a redirect to the
    sign-in page.
    """
    if problem.status != 401:
        return problem_page(request, problem)
    place = f"{request.scope['root_path']}/sign-in"
    response: Response
    if request.headers.get("hx-request"):  # a request for a part: redirect the whole page
        response = Response(status_code=401, headers={"HX-Redirect": place})
    else:
        back = urlencode({"next": request.url.path}) if request.method == "GET" else ""
        response = RedirectResponse(f"{place}?{back}", 303)
    # a link on a foreign site sends no cookie; that must not delete the browser's cookie
    if COOKIE in request.cookies:
        forget(response, request)
    return response


class _Guarded:
    """ASGI middleware that adds security and cache headers to every answer.

    Browsers then run only the dashboard's own scripts, and store no pages in their caches.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                static = "etag" in headers
                headers.setdefault("Cache-Control", "no-cache" if static else "no-store")
            await send(message)

        await self._app(scope, receive, sending)
