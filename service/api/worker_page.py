"""The page that turns a browser into a measurement worker: its files and security headers.

Loading the page needs no token. The token for its work is in the fragment of the page's address,
which browsers do not send to servers. The page loads only these files and contacts only this
service. It is isolated from all other pages, so the browser gives it a high-resolution clock.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parents[1] / "browser"
PAGE = "index.html"

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; "
    "worker-src 'self'; connect-src 'self'; style-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/worker")
def page() -> Response:
    """Return the HTML of the worker page."""
    return _file(PAGE)


@router.get("/worker/{name}")
def part(name: str) -> Response:
    """Return a file of the worker page: its style sheet, or one of its JavaScript modules."""
    known = {path.name for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES}
    if name == PAGE or name not in known:
        raise HTTPException(404)
    return _file(name)


def _file(name: str) -> Response:
    path = FOLDER / name
    return FileResponse(path, headers=HEADERS, media_type=MEDIA_TYPES[path.suffix])
