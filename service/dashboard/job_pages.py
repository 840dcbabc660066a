"""Pages of jobs: the list of jobs, and the page of one job with its curve, tasks and actions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import Job
from tilewright.db.stores.tokens import Scope, Token
from tilewright.service.api.audit import AuditDep
from tilewright.service.api.deps import NotifierDep, Reader, StorageDep, Submitter
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.routes import events as event_routes
from tilewright.service.api.routes import jobs as routes
from tilewright.service.dashboard.commands import job_commands
from tilewright.service.dashboard.job_figures import JobFigures, job_curves
from tilewright.service.dashboard.pages import (
    address_of,
    first_page,
    has_more,
    next_link,
    page,
    server_of,
)
from tilewright.service.dashboard.roofline_figures import roofline
from tilewright.service.dashboard.session import PageRoute
from tilewright.service.show.table import table
from tilewright.service.show.tables import jobs as job_columns
from tilewright.service.show.tables.tasks import PAGE, RUNNING_PAGE

router = APIRouter(route_class=PageRoute)

ROWS = 50
"""Default number of tasks on a job's page."""

MOST_ROWS = 1000
LOG_LINES = 30

RowsQuery = Annotated[int, Query(ge=1, le=MOST_ROWS)]


@router.get("/jobs")
def jobs(
    request: Request,
    response: Response,
    storage: StorageDep,
    token: Reader,
    pages: PagesDep,
    state: str = "",
) -> Response:
    chosen = next((each for each in JobState if each.value == state), None)
    found = routes.list_jobs(storage, token, pages, chosen, results=False)
    return page(
        request,
        "jobs.html",
        listed=table(job_columns.PAGE, found),
        states=[each.value for each in JobState],
        state="" if chosen is None else chosen.value,
        live=any(not job.final for job in found),
        here=address_of(request),
        next=next_link(request, response),
        server=server_of(request),
    )


@router.get("/jobs/{job_id}")
def job(
    request: Request, job_id: str, storage: StorageDep, token: Reader, rows: RowsQuery = ROWS
) -> Response:
    return page(request, "job.html", **_shown(request, job_id, storage, token, rows))


@router.get("/jobs/{job_id}/parts")
def job_parts(
    request: Request, job_id: str, storage: StorageDep, token: Reader, rows: RowsQuery = ROWS
) -> Response:
    """Return the sections of a job's page that change while the job runs, as HTML."""
    return page(request, "job_parts.html", **_shown(request, job_id, storage, token, rows))


def _shown(
    request: Request, job_id: str, storage: Storage, token: Token, rows: int
) -> dict[str, Any]:
    # the curve is read first: later events follow in the stream
    found = storage.jobs.get(job_id, token.sees)
    curve = event_routes.get_job_curve(found, storage)
    view = routes.get_job(job_id, storage, token)
    pages, answer = first_page(request, MOST_ROWS)
    tasks = routes.list_job_tasks(job_id, storage, token, pages)
    figures = JobFigures.of(view, tasks, more=has_more(answer))
    log = event_routes.list_job_log(found, storage, first_page(request, LOG_LINES)[0])
    return {
        "job": view,
        "sequence": curve.sequence,
        "curves": job_curves(view, curve),
        "figures": figures,
        "roofline": roofline(figures.rows),
        "tasks": table(PAGE if view.final else RUNNING_PAGE, figures.rows[:rows]),
        "rows": rows,
        "log": log,
        "may_act": token.allows(Scope.SUBMIT),
        "commands": job_commands(view, server_of(request)),
    }


@router.get("/jobs/{job_id}/events", response_class=EventSourceResponse)
async def job_events(
    request: Request,
    job: Annotated[Job, Depends(event_routes.existing_job)],
    storage: StorageDep,
    notifier: NotifierDep,
    after: Annotated[int, Query(ge=0, le=event_routes.LAST_EVENT)] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """Stream the job's events as server-sent events.

    After a final event `end`, the page stops listening.
    """
    last = request.headers.get("last-event-id")
    async for event in event_routes.job_events(request, job, storage, notifier, last, after):
        yield event
    if (await run_in_threadpool(storage.jobs.get, job.id)).state.final:
        yield ServerSentEvent(raw_data="{}", event="end")


@router.post("/jobs/{job_id}/cancel")
def cancel(
    request: Request, job_id: str, storage: StorageDep, audit: AuditDep, token: Submitter
) -> Response:
    routes.cancel_job(job_id, storage, audit, token)
    return _back(request, job_id)


@router.post("/jobs/{job_id}/pause")
def pause(
    request: Request, job_id: str, storage: StorageDep, audit: AuditDep, token: Submitter
) -> Response:
    routes.pause_job(job_id, storage, audit, token)
    return _back(request, job_id)


@router.post("/jobs/{job_id}/resume")
def resume(
    request: Request, job_id: str, storage: StorageDep, audit: AuditDep, token: Submitter
) -> Response:
    routes.resume_job(job_id, storage, audit, token)
    return _back(request, job_id)


@router.get("/jobs/{job_id}/artifact", response_class=StreamingResponse)
def artifact(job_id: str, request: Request, storage: StorageDep, token: Reader) -> Response:
    return routes.get_artifact(job_id, request, storage, token)


def _back(request: Request, job_id: str) -> Response:
    return RedirectResponse(f"{request.scope['root_path']}/jobs/{job_id}", 303)
