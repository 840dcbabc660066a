"""Sessions of the dashboard: the user pastes a token once, and a cookie keeps it.

No script can read the cookie. Only pages use it; the REST routes ignore it. Browsers send it only
with requests that a page of this service starts (`SameSite=Strict`). A request that changes
something is rejected unless the browser declares that a page of this service sent it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from tilewright.service.api.errors import forbidden
from tilewright.service.api.gate import GatedRoute

COOKIE = "tilewright_token"

KEPT_SECONDS = 30 * 86400
"""Lifetime of the session cookie in seconds. The service rejects a revoked or expired token
sooner."""

_AUTHORIZATION = b"authorization"


class PageRoute(GatedRoute):
    """The class of the dashboard's routes, which read the token only from the cookie.

    A request that changes something is rejected unless a page of this service sent it.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if scope["method"] not in ("GET", "HEAD"):
            check_same_origin(request.headers)
        headers = [pair for pair in scope["headers"] if pair[0] != _AUTHORIZATION]
        if secret := request.cookies.get(COOKIE):
            headers.append((_AUTHORIZATION, b"Bearer " + secret.encode("latin-1", "replace")))
        scope["headers"] = headers
        await super().handle(scope, receive, send)


def check_same_origin(headers: Mapping[str, str]) -> None:
    """Check that a page of this service sent a request, according to the browser.

    Browsers send `Sec-Fetch-Site` on secure connections, and `Origin` with every form.

    Raises:
        ApiProblem: 403, if another page sent the request, or if the request has neither header.
    """
    site = headers.get("sec-fetch-site")
    if site is None:
        try:
            origin = urlsplit(headers.get("origin", "")).netloc.lower()
        except ValueError:  # no browser sends such an origin
            origin = ""
        if origin and origin == headers.get("host", "").lower():
            return
    elif site == "same-origin":
        return
    raise forbidden(
        "the form was not sent by a page of this service: open the page and send it again"
    )


def keep(response: Response, request: Request, secret: str) -> None:
    """Store a token in the browser's session cookie."""
    response.set_cookie(COOKIE, secret, max_age=KEPT_SECONDS, **_attributes(request))


def forget(response: Response, request: Request) -> None:
    """Delete the browser's session cookie."""
    response.delete_cookie(COOKIE, **_attributes(request))


def _attributes(request: Request) -> dict[str, Any]:
    return {
        "path": request.scope["root_path"],
        "secure": request.url.scheme == "https",
        "httponly": True,
        "samesite": "strict",
    }


def safe_next(path: str, root: str) -> str:
    """Return the address that the browser opens after sign-in.

    This is `path` if it belongs to the dashboard, whose path is `root`, and otherwise the list of
    jobs.
    """
    return path if path.startswith(f"{root}/") and path.isprintable() else f"{root}/jobs"
