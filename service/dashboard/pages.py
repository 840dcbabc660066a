"""Renders pages from HTML templates, which escape all values; helper functions for all pages."""

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
"""Limit of the characters of a name that are shown. The `title` of the HTML element has the full
name."""


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
    """Prepare the call of a REST route for the first `limit` items of an additional list.

    The additional list is shown next to the main list of a web page. A page token in the page's
    address is ignored, because it belongs to the main list.

    Returns:
        the two arguments of the route: the page of the list to return, and an empty response. The
        route adds headers to the response. From these headers, `has_more` determines whether the
        list is longer.
    """
    response = Response()
    return Pages(request, response, limit, None), response


def has_more(response: Response) -> bool:
    """Return whether a list has another page, from the headers that the REST route has set."""
    return NEXT_TOKEN in response.headers


def next_link(request: Request, response: Response) -> str:
    """Return the link to the next page of the list that a page shows, or "" on the last page.

    `response` has the headers that the REST route has set.
    """
    token = response.headers.get(NEXT_TOKEN)
    if token is None:
        return ""
    return f"?{request.url.include_query_params(page_token=token).query}"


def address_of(request: Request) -> str:
    """Return the path and query of a request. A page reloads its changing sections from there."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def server_of(request: Request) -> str:
    """Return the service's address as the browser uses it: scheme, host and port."""
    return f"{request.url.scheme}://{request.url.netloc}"


def problem_page(request: Request, problem: ApiProblem) -> HTMLResponse:
    """Return an HTML page that explains a problem."""
    request_id = current_request_id()
    answer = page(request, "problem.html", problem.status, problem=problem, request_id=request_id)
    answer.headers.update(problem.headers)
    return answer
