"""Rendering of pages from templates that escape all values, and functions that pages share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tilewright.service.api.errors import ApiProblem
from tilewright.service.api.pages import NEXT_TOKEN, Pages
from tilewright.service.api.request_ids import current_request_id
from tilewright.service.show import messages as wording
from tilewright.service.show import units
from tilewright.service.show.text import one_sentence, schedule_text

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"

CLIPPED = 120
"""Limit of the shown characters of a name. The element's title has the full name."""


def _clipped(text: object) -> str:
    return one_sentence(str(text), CLIPPED)


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        # for all file names of templates: names, labels and errors are untrusted
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "milliseconds": units.milliseconds,
        "microseconds": units.microseconds,
        "duration": units.duration,
        "sentence": one_sentence,
        "clipped": _clipped,
        "schedule": schedule_text,
        "event": wording.event_text,
        "moment": units.moment,
        "gain": units.gain,
        "speedup": units.speedup,
        "percent": units.percent,
        "count": units.count,
    }
    return made


_templates = _environment()


def page(request: Request, template: str, status: int = 200, **shown: Any) -> HTMLResponse:
    """Return a page rendered from a template.

    The template receives the dashboard's path as `root`, and the values `shown`.
    """
    root = request.scope["root_path"]
    token = request.scope.get("tilewright_token")
    text = _templates.get_template(template).render(
        root=root, token=token, path=request.scope["path"], **shown
    )
    return HTMLResponse(text, status)


def first_page(request: Request, limit: int) -> tuple[Pages, Response]:
    """Return the first page of a list, as `Pages`, and a response that receives its headers.

    The page token of the request is ignored, because it belongs to another list. Call `has_more`
    with the response after the list was read.
    """
    response = Response()
    return Pages(request, response, limit, None), response


def has_more(response: Response) -> bool:
    """Return whether a list has another page, from the headers of its response."""
    return NEXT_TOKEN in response.headers


def next_link(request: Request, response: Response) -> str:
    """Return the link to the next page of the request's list, or "" on the last page."""
    token = response.headers.get(NEXT_TOKEN)
    if token is None:
        return ""
    return f"?{request.url.include_query_params(page_token=token).query}"


def address_of(request: Request) -> str:
    """Return the path and query of the request, from which a page reloads its parts."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def server_of(request: Request) -> str:
    """Return the address of the service as the browser knows it: scheme, host and port."""
    return f"{request.url.scheme}://{request.url.netloc}"


def problem_page(request: Request, problem: ApiProblem) -> HTMLResponse:
    """Return an HTML page that explains a problem."""
    request_id = current_request_id()
    answer = page(request, "problem.html", problem.status, problem=problem, request_id=request_id)
    answer.headers.update(problem.headers)
    return answer
