"""Pages of a job's model: a drawing of its steps, such as kernels, and the details of each step."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from tilewright.db.errors import NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Token
from tilewright.service.api.deps import PlanningDep, Reader, StorageDep
from tilewright.service.api.limiter import LimiterDep, counted_answer
from tilewright.service.api.routes import graphs
from tilewright.service.api.routes import jobs as routes
from tilewright.service.api.schemas.jobs import TaskView
from tilewright.service.dashboard.graph_figures import GraphFigures
from tilewright.service.dashboard.pages import first_page, page
from tilewright.service.dashboard.session import PageRoute
from tilewright.service.jobs.report.model_graph import BOX_HEIGHT, MOST_STEPS, ModelGraph

router = APIRouter(route_class=PageRoute)


@router.get("/jobs/{job_id}/graph")
async def graph(
    request: Request,
    job_id: str,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    token: Reader,
    wait: bool = False,
) -> Response:
    """Return the page of a job's graph.

    The page contains the drawing if the graph is cached or being computed, or if `wait` is true.
    Otherwise the browser requests the drawing separately.
    """
    question = await run_in_threadpool(graphs.graph_question, job_id, storage, token)
    found = None
    if wait or planning.knows(question, limiter.asker):
        found = await counted_answer(question, planning, limiter)

    def shown() -> Response:
        job = routes.get_job(job_id, storage, token)
        drawing = {} if found is None else _drawing(request, job_id, storage, token, found)
        return page(request, "graph.html", job=job, drawn=found is not None, **drawing)

    return await run_in_threadpool(shown)


@router.get("/jobs/{job_id}/graph/drawing")
async def drawing(
    request: Request,
    job_id: str,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    token: Reader,
) -> Response:
    """Return the drawing of a job's graph as HTML, which the browser inserts into the page."""
    question = await run_in_threadpool(graphs.graph_question, job_id, storage, token)
    found = await counted_answer(question, planning, limiter)

    def shown() -> Response:
        job = routes.get_job(job_id, storage, token)
        more = _drawing(request, job_id, storage, token, found)
        return page(request, "graph_drawing.html", job=job, **more)

    return await run_in_threadpool(shown)


@router.get("/jobs/{job_id}/graph/steps/{number}")
async def step(
    request: Request,
    job_id: str,
    number: Annotated[int, Path(ge=0, lt=MOST_STEPS)],
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    token: Reader,
) -> Response:
    """Show one step of the graph: its computation, and the ONNX nodes behind it."""
    question = await run_in_threadpool(graphs.graph_question, job_id, storage, token)
    found = await counted_answer(question, planning, limiter)
    if number >= len(found.steps):
        raise NotFoundError("step", str(number))

    def shown() -> Response:
        tasks = _tasks(request, job_id, storage, token)
        known = {task.workload_key: task for task in tasks}
        (box,) = GraphFigures.of(found, tasks).boxes[number : number + 1]
        rows = [(key, runs, known.get(key)) for key, runs in box.step.kernels]
        return page(request, "graph_step.html", job_id=job_id, box=box, step=box.step, rows=rows)

    return await run_in_threadpool(shown)


def _drawing(
    request: Request, job_id: str, storage: Storage, token: Token, found: ModelGraph
) -> dict[str, Any]:
    tasks = _tasks(request, job_id, storage, token)
    figures = GraphFigures.of(found, tasks)
    return {"figures": figures, "box_height": BOX_HEIGHT, "staged": found.staged}


def _tasks(request: Request, job_id: str, storage: Storage, token: Token) -> list[TaskView]:
    pages, _ = first_page(request, MOST_STEPS)
    return routes.list_job_tasks(job_id, storage, token, pages)
