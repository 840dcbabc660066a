"""Route of the graph of a job's model, partitioned into kernels."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response
from starlette.concurrency import run_in_threadpool

from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Token
from tilewright.service.api.deps import PlanningDep, Reader, StorageDep
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.limiter import LimiterDep, counted_answer
from tilewright.service.api.planning_child import GraphQuestion, JobCheck
from tilewright.service.api.refusals import refuses
from tilewright.service.api.schemas.graphs import GraphView
from tilewright.service.jobs.device.job_target import mode_of
from tilewright.service.jobs.report.model_graph import ModelGraph

router = APIRouter(tags=["jobs"], route_class=GatedRoute)


@router.get("/jobs/{job_id}/graph", response_model=GraphView)
@refuses(404, 422, 429)
async def get_graph(
    job_id: str, storage: StorageDep, planning: PlanningDep, limiter: LimiterDep, token: Reader
) -> Response:
    """Return the graph of a job's model after fusion.

    The graph has the kernels, the values between them, and their ONNX nodes. If the job tunes
    several combinations of sizes, the graph is for the first.
    """
    question = await run_in_threadpool(graph_question, job_id, storage, token)
    graph = await counted_answer(question, planning, limiter)

    def said() -> Response:  # in a thread: a large graph takes a second to serialise
        return Response(graph_view(graph).model_dump_json(), media_type="application/json")

    return await run_in_threadpool(said)


def graph_question(job_id: str, storage: Storage, token: Token) -> GraphQuestion:
    """Return the computation of the graph of a job's model, ready to run in a child process.

    Raises:
        NotFoundError: if the token may not see the job, or it does not exist.
    """
    job = storage.jobs.get(job_id, token.sees)
    return GraphQuestion(JobCheck(job.model_digest, mode_of(job, storage), dict(job.options)))


def graph_view(graph: ModelGraph) -> GraphView:
    return GraphView.model_validate(
        {
            **asdict(graph),
            "steps": [
                {
                    **asdict(step),
                    "kernels": [{"workload_key": key, "runs": runs} for key, runs in step.kernels],
                    "nodes": [{"name": name, "operator": op} for name, op in step.nodes],
                }
                for step in graph.steps
            ],
        }
    )
