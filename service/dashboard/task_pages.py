"""Pages of a task: charts of its knobs, predicted against measured speed, and its code."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from tilewright.compiler.errors import CompilerError
from tilewright.db.errors import NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Token
from tilewright.service.api.deps import PlanningDep, Reader, StorageDep
from tilewright.service.api.errors import ApiProblem
from tilewright.service.api.limiter import Limiter, LimiterDep
from tilewright.service.api.planning import Planning
from tilewright.service.api.routes import jobs as routes
from tilewright.service.api.routes import resources
from tilewright.service.api.routes.task_code import TaskOfJob, code_of, predictions_of, task_of_job
from tilewright.service.dashboard.code_figures import CodeFigures
from tilewright.service.dashboard.pages import first_page, page
from tilewright.service.dashboard.session import PageRoute
from tilewright.service.dashboard.task_figures import TaskFigures
from tilewright.service.show.job_charts import prediction_charts
from tilewright.service.show.table import table
from tilewright.service.show.tables.records import TRIALS

router = APIRouter(route_class=PageRoute)

T = TypeVar("T")

MOST_TRIALS = 1000
FASTEST = 15
"""Number of the fastest trials that the page lists."""


@router.get("/jobs/{job_id}/tasks/{workload}")
async def task(
    request: Request,
    job_id: str,
    workload: str,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    token: Reader,
    wait: bool = False,
) -> Response:
    """Return the page of a task.

    If `wait` is true, the page contains the code and the predictions. Otherwise the browser
    requests them separately, because they take longer.
    """
    shown = await run_in_threadpool(_shown, request, job_id, workload, storage, token)
    parts: dict[str, Any] = {"wait": wait}
    if wait:
        found = await run_in_threadpool(task_of_job, job_id, workload, storage, token)
        parts |= await _code(found, storage, planning, limiter)
        parts |= await _predictions(found, storage, planning, limiter)
    return await run_in_threadpool(page, request, "task.html", **shown, **parts)


@router.get("/jobs/{job_id}/tasks/{workload}/code")
async def code(
    request: Request,
    job_id: str,
    workload: str,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    token: Reader,
) -> Response:
    """Return the code of the task's best and untuned schedules, side by side, as HTML."""
    found = await run_in_threadpool(task_of_job, job_id, workload, storage, token)
    parts = await _code(found, storage, planning, limiter)
    return await run_in_threadpool(page, request, "task_code.html", **parts)


@router.get("/jobs/{job_id}/tasks/{workload}/predictions")
async def predictions(
    request: Request,
    job_id: str,
    workload: str,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    token: Reader,
) -> Response:
    """Return charts of predicted against measured time of the task's trials, as HTML."""
    found = await run_in_threadpool(task_of_job, job_id, workload, storage, token)
    parts = await _predictions(found, storage, planning, limiter)
    return await run_in_threadpool(page, request, "task_predictions.html", **parts)


def _shown(
    request: Request, job_id: str, workload: str, storage: Storage, token: Token
) -> dict[str, Any]:
    job = routes.get_job(job_id, storage, token)
    one = first_page(request, 1)[0]
    found = resources.list_tasks(storage, token, one, job=job.id, workload=workload)
    if not found:
        raise NotFoundError("task", workload)
    trials = storage.trials.outlines(job.id, found[0].workload_key, MOST_TRIALS)
    figures = TaskFigures.of(trials)
    return {
        "job": job,
        "task": found[0],
        "figures": figures,
        "fastest": table(TRIALS, figures.fastest[:FASTEST]),
        "more": trials.next is not None,
        "trials": len(trials),
    }


async def _code(
    found: TaskOfJob, storage: Storage, planning: Planning, limiter: Limiter
) -> dict[str, Any]:
    """Return the comparison of the best and the untuned code, as values for the template.

    If the code of a schedule is missing, the comparison has the reason. For example, the schedule
    is from another release, or its code is too large.
    """
    best, best_refusal = await _tried(code_of(found, False, storage, planning, limiter))
    untuned, untuned_refusal = await _tried(code_of(found, True, storage, planning, limiter))
    chosen = "schedule" in (found.task.facts or {})
    figures = CodeFigures.of(best, best_refusal, untuned, untuned_refusal, chosen=chosen)
    return {"code": figures}


async def _predictions(
    found: TaskOfJob, storage: Storage, planning: Planning, limiter: Limiter
) -> dict[str, Any]:
    made, refusal = await _tried(predictions_of(found, storage, planning, limiter))
    charts = () if made is None else prediction_charts(made)
    return {"predictions": made, "charts": charts, "predictions_refusal": refusal}


async def _tried(making: Awaitable[T]) -> tuple[T | None, str]:
    """Return (result of `making`, ""), or (None, error message) after an expected error.

    A page therefore still shows its other sections if one section fails.
    """
    try:
        return await making, ""
    except ApiProblem as problem:
        return None, problem.detail
    except (CompilerError, NotFoundError) as error:  # from another release, or removed
        return None, str(error)
