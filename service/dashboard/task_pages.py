"""A task: what its trials say of each knob, and the best schedule as a loop nest."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from compiler.errors import CompilerError
from db.errors import NotFoundError
from service.api.deps import Reader, StorageDep
from service.api.routes import jobs as routes
from service.api.routes import resources
from service.dashboard.pages import first_page, has_more, page
from service.dashboard.session import PageRoute
from service.dashboard.task_figures import HEIGHT, WIDTH, TaskFigures

router = APIRouter(route_class=PageRoute)

MOST_TRIALS = 1000
FASTEST = 15
"""Trials that are listed."""


@router.get("/jobs/{job_id}/tasks/{workload}")
def task(
    request: Request, job_id: str, workload: str, storage: StorageDep, token: Reader
) -> Response:
    job = routes.get_job(job_id, storage, token)
    one = first_page(request, 1)[0]
    found = resources.list_tasks(storage, token, one, job=job_id, workload=workload)
    if not found:
        raise NotFoundError("task", workload)
    pages, answer = first_page(request, MOST_TRIALS)
    trials = resources.list_trials(storage, token, pages, job=job_id, workload=workload)
    try:
        nest, refusal = routes.get_nest(job_id, workload, storage, token).text, ""
    except (CompilerError, NotFoundError) as error:  # of another release, or not kept any more
        nest, refusal = "", str(error)
    return page(
        request,
        "task.html",
        job=job,
        task=found[0],
        figures=TaskFigures.of(trials),
        more=has_more(answer),
        trials=len(trials),
        shown=FASTEST,
        nest=nest,
        refusal=refusal,
        width=WIDTH,
        height=HEIGHT,
    )
