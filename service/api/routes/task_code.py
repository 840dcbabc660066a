"""Routes of a task's generated code, and of the times that cost models predict for its trials."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import Job
from tilewright.db.stores.tasks import JobTask
from tilewright.db.stores.tokens import Token
from tilewright.service.api.deps import PlanningDep, Reader, StorageDep
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.limiter import Limiter, LimiterDep, counted_answer
from tilewright.service.api.planning import Planning
from tilewright.service.api.planning_child import CodeQuestion, PredictionsQuestion
from tilewright.service.api.refusals import refuses
from tilewright.service.api.schemas.jobs import (
    CodeLoopView,
    CodeView,
    OrderView,
    PredictionsView,
    PredictionView,
)
from tilewright.service.jobs.device.job_target import mode_of
from tilewright.service.jobs.report.predicted import Predicted
from tilewright.service.jobs.report.shown_code import ShownCode
from tilewright.tuner.cost_model.metrics import Scores
from tilewright.tuner.protocol.measurement import RecordKey, Status

router = APIRouter(tags=["jobs"], route_class=GatedRoute)

MOST_PREDICTED = 400
"""Limit of the trials per task for which predictions are computed, newest first. Computing the
features of a trial takes milliseconds."""


@router.get("/jobs/{job_id}/tasks/{workload}/code")
@refuses(404, 422, 429)
async def get_code(
    job_id: str,
    workload: str,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    token: Reader,
    untuned: bool = False,
) -> CodeView:
    """Return the loop nest and the assembly of a task's best schedule, and counts of registers.

    Until the task is tuned, the schedule of its fastest trial is used. With `untuned`, or without a
    successful trial, the untuned schedule is used.
    """
    found = await run_in_threadpool(task_of_job, job_id, workload, storage, token)
    return await code_of(found, untuned, storage, planning, limiter)


@router.get("/jobs/{job_id}/tasks/{workload}/predictions")
@refuses(404, 422, 429)
async def get_predictions(
    job_id: str,
    workload: str,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    token: Reader,
) -> PredictionsView:
    """Return the predicted and the measured times of a task's newest trials.

    Predictions come from the target's promoted cost model, whose training data may include these
    trials, and from the roofline model.
    """
    found = await run_in_threadpool(task_of_job, job_id, workload, storage, token)
    return await predictions_of(found, storage, planning, limiter)


@dataclass(frozen=True, slots=True)
class TaskOfJob:
    """A tuning task and its job, as the database stores them."""

    job: Job
    task: JobTask


def task_of_job(job_id: str, workload: str, storage: Storage, token: Token) -> TaskOfJob:
    """Return a job, and its task for a workload.

    Raises:
        NotFoundError: if the token may not see the job, or the job has no task for this workload.
    """
    job = storage.jobs.get(job_id, token.sees)
    return TaskOfJob(job, storage.tasks.get(job.id, workload))


async def code_of(
    found: TaskOfJob, untuned: bool, storage: Storage, planning: Planning, limiter: Limiter
) -> CodeView:
    """Return the generated code of a task's best schedule, as `get_code` describes it.

    With `untuned`, the code is that of the untuned schedule. The code is generated in a child
    process, or comes from the cache.

    Raises:
        ApiProblem: if the code cannot be generated, or the token has reached its rate limit.
        NotFoundError: if the database no longer has the workload or the trials.
    """
    question = await run_in_threadpool(_code_question, found, storage, untuned)
    return _code_view(await counted_answer(question, planning, limiter))


async def predictions_of(
    found: TaskOfJob, storage: Storage, planning: Planning, limiter: Limiter
) -> PredictionsView:
    """Return the times that the cost models predict for a task's newest trials.

    They are computed in a child process, or come from the cache.

    Raises:
        ApiProblem: if the predictions cannot be computed, or the token has reached its rate limit.
        NotFoundError: if the database no longer has the workload or the trials.
    """
    version, question = await run_in_threadpool(_predictions_question, found, storage)
    return _predictions_view(version, await counted_answer(question, planning, limiter))


def _code_question(found: TaskOfJob, storage: Storage, untuned: bool) -> CodeQuestion:
    job, task = found.job, found.task
    mode = mode_of(job, storage)
    text = storage.workloads.workload(task.workload_key)
    chosen = None if untuned else (task.facts or {}).get("schedule")
    if chosen is None and not untuned:
        key = RecordKey(task.workload_key, *mode.key)
        fastest = storage.trials.fastest(job.id, key)
        chosen = None if fastest is None else fastest.schedule.to_json()
    return CodeQuestion(text, chosen, mode)


def _predictions_question(
    found: TaskOfJob, storage: Storage
) -> tuple[int | None, PredictionsQuestion]:
    """Prepare a computation of the times that a cost model predicts for the trials of a task.

    The cost model is the promoted one of the task's target. Return the version of the cost model,
    and the computation, which contains the cost model and runs in a child process.

    If no cost model is promoted, or the task has no trials, the version is None and the computation
    has no cost model.
    """
    job, workload = found.job, found.task.workload_key
    mode = mode_of(job, storage)
    target = mode.target
    newest = storage.trials.list(
        job_id=job.id, workload_key=workload, status=Status.OK, limit=MOST_PREDICTED
    )
    key = RecordKey(workload, *mode.key)
    trials = tuple(one.trial for one in newest if one.trial.key == key and not one.trial.withdrawn)
    model = storage.cost_models.promoted(target.key) if trials else None
    text = storage.workloads.workload(workload)
    if model is None:
        return None, PredictionsQuestion(text, target, trials)
    data = storage.cost_models.data(model)
    return model.version, PredictionsQuestion(text, target, trials, data, model.digest)


def _code_view(found: ShownCode) -> CodeView:
    return CodeView(
        schedule=dict(found.schedule),
        nest=found.nest,
        assembly=found.assembly,
        nest_lines_left_out=found.left_out[0],
        assembly_lines_left_out=found.left_out[1],
        instructions=found.counts.instructions,
        fmas=found.counts.fmas,
        spills=found.counts.spills,
        registers=found.registers,
        all_registers=found.all_registers,
        loops=[CodeLoopView.model_validate(loop, from_attributes=True) for loop in found.loops],
        more_loops=found.more_loops,
    )


def _predictions_view(version: int | None, found: Predicted) -> PredictionsView:
    return PredictionsView(
        version=version,
        refusal=found.refusal,
        by_score=_order_view(found.task.by_score),
        by_estimate=_order_view(found.task.by_estimate),
        trials=[
            PredictionView.model_validate(one, from_attributes=True) for one in found.task.trials
        ],
    )


def _order_view(scores: Scores | None) -> OrderView | None:
    return None if scores is None else OrderView.model_validate(scores, from_attributes=True)
