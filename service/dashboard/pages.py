"""How pages are made: templates that escape everything, and what they all show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tilewright.service import messages as wording
from tilewright.service import units
from tilewright.service.api.errors import ApiProblem
from tilewright.service.api.pages import NEXT_TOKEN, Pages
from tilewright.service.api.request_ids import current_request_id
from tilewright.service.dashboard import figures
from tilewright.service.sentences import one_sentence

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"

CLIPPED = 120
"""Most characters of a name that a page shows; all of it is in the element's title."""


def _clipped(text: object) -> str:
    return one_sentence(str(text), CLIPPED)


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        # whatever the template is called: names, labels and errors are what strangers wrote
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
        "schedule": wording.schedule_text,
        "comparison": wording.comparison_text,
        "condition": wording.condition_text,
        "event": wording.event_text,
        "failed": wording.failed_text,
        "failed_kinds": wording.failed_kinds,
        "moment": figures.moment,
        "ago": figures.ago,
        "gain": figures.gain,
        "speedup": units.speedup,
        "percent": figures.percent,
        "count": figures.count,
    }
    return made


_templates = _environment()


def page(request: Request, template: str, status: int = 200, **shown: Any) -> HTMLResponse:
    """A template filled in. `root` is where the dashboard lies."""
    root = request.scope["root_path"]
    token = request.scope.get("tilewright_token")
    text = _templates.get_template(template).render(
        root=root, token=token, path=request.scope["path"], **shown
    )
    return HTMLResponse(text, status)


def first_page(request: Request, limit: int) -> tuple[Pages, Response]:
    """The first page of another list than the request's, and the answer that would say more."""
    response = Response()
    return Pages(request, response, limit, None), response


def has_more(response: Response) -> bool:
    """Whether a list goes on behind its page."""
    return NEXT_TOKEN in response.headers


def next_link(request: Request, response: Response) -> str:
    """Where the list of this request goes on; "" where it ends."""
    token = response.headers.get(NEXT_TOKEN)
    if token is None:
        return ""
    return f"?{request.url.include_query_params(page_token=token).query}"


def address_of(request: Request) -> str:
    """Where this page lies, for its own parts to be asked for again."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def server_of(request: Request) -> str:
    """The address of the service as the browser knows it."""
    return f"{request.url.scheme}://{request.url.netloc}"


def problem_page(request: Request, problem: ApiProblem) -> HTMLResponse:
    """What went wrong, for people."""
    request_id = current_request_id()
    answer = page(request, "problem.html", problem.status, problem=problem, request_id=request_id)
    answer.headers.update(problem.headers)
    return answer
