"""A task: what its trials say of each knob, what was predicted of them, and its code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from compiler.errors import CompilerError
from db.errors import NotFoundError
from db.storage import Storage
from db.stores.tokens import Token
from service.api.deps import PlanningDep, Reader, StorageDep
from service.api.errors import ApiProblem
from service.api.limiter import Limiter, LimiterDep
from service.api.planning import Planning
from service.api.routes import jobs as routes
from service.api.routes import resources, task_code
from service.api.schemas.jobs import CodeView, PredictionsView
from service.dashboard.code_figures import CodeFigures
from service.dashboard.pages import first_page, has_more, page
from service.dashboard.prediction_figures import PredictionFigures
from service.dashboard.session import PageRoute
from service.dashboard.task_figures import HEIGHT, WIDTH, TaskFigures

router = APIRouter(route_class=PageRoute)

MOST_TRIALS = 1000
FASTEST = 15
"""Trials that are listed."""


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
    """The page at once; code and predictions come when they are made, or with it for who waits."""
    shown = await run_in_threadpool(_shown, request, job_id, workload, storage, token)
    parts: dict[str, Any] = {"wait": wait}
    if wait:
        parts |= await _code(job_id, workload, storage, planning, limiter)
        parts |= await _predictions(job_id, workload, storage, planning, limiter)
    return await run_in_threadpool(page, request, "task.html", **shown, **parts)


@router.get("/jobs/{job_id}/tasks/{workload}/code")
async def code(
    request: Request,
    job_id: str,
    workload: str,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    _: Reader,
) -> Response:
    """The best schedule and the untuned one as code, side by side."""
    found = await _code(job_id, workload, storage, planning, limiter)
    return await run_in_threadpool(page, request, "task_code.html", **found)


@router.get("/jobs/{job_id}/tasks/{workload}/predictions")
async def predictions(
    request: Request,
    job_id: str,
    workload: str,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    _: Reader,
) -> Response:
    """Predicted against measured."""
    found = await _predictions(job_id, workload, storage, planning, limiter)
    return await run_in_threadpool(page, request, "task_predictions.html", **found)


def _shown(
    request: Request, job_id: str, workload: str, storage: Storage, token: Token
) -> dict[str, Any]:
    job = routes.get_job(job_id, storage, token)
    one = first_page(request, 1)[0]
    found = resources.list_tasks(storage, token, one, job=job_id, workload=workload)
    if not found:
        raise NotFoundError("task", workload)
    pages, answer = first_page(request, MOST_TRIALS)
    trials = resources.list_trials(storage, token, pages, job=job_id, workload=workload)
    return {
        "job": job,
        "task": found[0],
        "figures": TaskFigures.of(trials),
        "more": has_more(answer),
        "trials": len(trials),
        "shown": FASTEST,
        "width": WIDTH,
        "height": HEIGHT,
    }


async def _code(
    job_id: str, workload: str, storage: Storage, planning: Planning, limiter: Limiter
) -> dict[str, Any]:
    """Both schedules as code, or why one cannot be shown: of another release, or too large."""

    async def side(untuned: bool) -> CodeView:
        question = await run_in_threadpool(
            task_code.code_question, job_id, workload, storage, untuned
        )
        found = await task_code.made_code(question, planning, limiter)
        return task_code.code_view(found)

    await run_in_threadpool(task_code.job_and_task, job_id, workload, storage)
    best, best_refusal = await _tried(lambda: side(False))
    untuned, untuned_refusal = await _tried(lambda: side(True))
    return {"code": CodeFigures.of(best, best_refusal, untuned, untuned_refusal)}


async def _predictions(
    job_id: str, workload: str, storage: Storage, planning: Planning, limiter: Limiter
) -> dict[str, Any]:
    async def asked() -> PredictionsView:
        version, question = await run_in_threadpool(
            task_code.predictions_question, job_id, workload, storage
        )
        found = await task_code.made_predictions(question, planning, limiter)
        return task_code.predictions_view(version, found)

    await run_in_threadpool(task_code.job_and_task, job_id, workload, storage)
    found, refusal = await _tried(asked)
    figures = None if found is None else PredictionFigures.of(found)
    return {"predictions": figures, "predictions_refusal": refusal}


async def _tried(make: Callable[[], Awaitable[Any]]) -> tuple[Any, str]:
    """What is made, or what stands in the way of it: that is a part of a page, and no reason not to
    show the others."""
    try:
        return await make(), ""
    except ApiProblem as problem:
        return None, problem.detail
    except (CompilerError, NotFoundError) as error:  # of another release, or not kept any more
        return None, str(error)
