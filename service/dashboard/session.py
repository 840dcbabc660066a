"""Signing in: a token is pasted once, and kept where no script can read it.

The cookie counts for pages alone, and the REST routes know nothing of it. A browser sends it only
with what a page of this very service asks for (`SameSite=Strict`), and whatever changes something
is refused unless the browser says that one of our pages sent it.
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
"""How long a browser keeps the token; the service refuses it sooner if it is revoked or over."""

_AUTHORIZATION = b"authorization"


class PageRoute(GatedRoute):
    """A route for browsers: the token is in the cookie and nowhere else, and nobody else's page can
    make a browser change something."""

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
    """Raises a 403 problem unless the browser says that a page of this service sent the request.

    `Sec-Fetch-Site` is sent wherever the connection is safe; `Origin`, with every form.
    """
    site = headers.get("sec-fetch-site")
    if site is None:
        try:
            origin = urlsplit(headers.get("origin", "")).netloc.lower()
        except ValueError:  # of no browser
            origin = ""
        if origin and origin == headers.get("host", "").lower():
            return
    elif site == "same-origin":
        return
    raise forbidden("this was not sent by a page of this service")


def keep(response: Response, request: Request, secret: str) -> None:
    """Let the browser keep a token."""
    response.set_cookie(COOKIE, secret, max_age=KEPT_SECONDS, **_attributes(request))


def forget(response: Response, request: Request) -> None:
    """Let the browser forget its token."""
    response.delete_cookie(COOKIE, **_attributes(request))


def _attributes(request: Request) -> dict[str, Any]:
    return {
        "path": request.scope["root_path"],
        "secure": request.url.scheme == "https",
        "httponly": True,
        "samesite": "strict",
    }


def safe_next(path: str, root: str) -> str:
    """Where to go after signing in: a page of the dashboard, whatever a link says."""
    return path if path.startswith(f"{root}/") and path.isprintable() else f"{root}/jobs"
