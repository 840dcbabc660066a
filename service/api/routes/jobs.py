"""Routes of tuning jobs: create, inspect, pause, resume and cancel; download the artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from tilewright.db.errors import NotFoundError
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.audit import Action
from tilewright.db.stores.jobs import Job
from tilewright.db.stores.tokens import Scope, Token
from tilewright.service.api.audit import AuditDep
from tilewright.service.api.blob_response import FILE, blob_response
from tilewright.service.api.deps import PlanningDep, Reader, SettingsDep, StorageDep, Submitter
from tilewright.service.api.errors import ApiProblem, forbidden
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.idempotency import HEADER
from tilewright.service.api.limiter import Limited, LimiterDep
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.planning_child import JobCheck
from tilewright.service.api.refusals import refuses
from tilewright.service.api.schemas.jobs import JobRequest, JobView, NestView, TaskView
from tilewright.service.api.views import job_view, task_view
from tilewright.service.jobs.device.job_target import JobTarget, mode_of, resolve_job_target
from tilewright.service.jobs.device.waiting import WorkerPool, match_jobs
from tilewright.service.jobs.pipeline.job_spec import tune_options
from tilewright.service.jobs.process.orphaned_results import store_orphaned_results
from tilewright.service.jobs.report.nests import stored_nest
from tilewright.tuner.protocol.measurement import Status

router = APIRouter(tags=["jobs"], route_class=GatedRoute)


async def checked_job(
    body: JobRequest,
    storage: StorageDep,
    planning: PlanningDep,
    limiter: LimiterDep,
    token: Submitter,
) -> JobTarget:
    """Check that a model can be tuned with the options of a job request. Return the job's target.

    To check this, a child process partitions the model into workloads, as the tuner will do. No
    thread waits meanwhile.
    """

    def found() -> tuple[JobCheck, JobTarget]:
        limiter.take(Limited.JOBS)
        model = storage.models.get(body.model, token.sees)
        # touched, so that no sweep removes the blobs before the job refers to them
        options = body.job_options
        touched = storage.models.touch_samples(options.samples, token.sees)
        for digest in set(options.samples) - set(touched):
            raise NotFoundError("samples", digest)
        job_target = resolve_job_target(body.target, storage)
        tune_options(options)  # errors that are visible without the model
        check = JobCheck(model.digest, body.mode(job_target.target), body.stored())
        return check, job_target

    check, job_target = await run_in_threadpool(found)
    await planning.check_job(check, limiter.asker)
    return job_target


@router.post("/jobs", status_code=201)
@refuses(404, 429)
def create_job(
    body: JobRequest,
    job_target: Annotated[JobTarget, Depends(checked_job)],
    storage: StorageDep,
    settings: SettingsDep,
    token: Submitter,
    request: Request,
) -> JobView:
    """Queue a job that tunes a model.

    If no suitable worker is alive, the job waits for one. The response's field `reason` then states
    the cause and a remedy.
    """
    target, mode, queue = job_target.target, body.mode_options, body.queue_options
    # only this route resolves "host" and the names of workers
    storage.workloads.put_target(target.key, target.name, target.to_json())
    workforce = WorkerPool.of(storage)
    served = workforce.serves(target.key, job_target.worker_id)
    job = storage.jobs.create(
        body.model,
        body.target,
        target_key=target.key,
        worker_id=job_target.worker_id,
        threads=mode.threads,
        numerics=mode.numerics,
        options=body.stored(),
        samples=body.job_options.samples,
        priority=queue.priority,
        wait_seconds=queue.wait_seconds,
        waits=None if served else workforce.reason(target.key, job_target.worker_id),
        owner=token.id,
        max_open=settings.max_open_jobs,
        # stored with the job: a repetition after a crash creates no second job
        idempotency_key=request.headers.get(HEADER),
    )
    return shown_job(storage, job)


@router.get("/jobs")
def list_jobs(
    storage: StorageDep,
    token: Reader,
    pages: PagesDep,
    state: JobState | None = None,
    results: Annotated[bool, Query(description="With the final reports, which may be long")] = True,
) -> list[JobView]:
    """List the jobs that the token may see, newest first."""
    found = storage.jobs.list(
        sees=token.sees, state=state, results=results, limit=pages.limit, after=pages.after
    )
    return _shown(storage, pages.linked(found))


@router.get("/jobs/{job_id}")
def get_job(job_id: str, storage: StorageDep, token: Reader) -> JobView:
    """Return a job, with the number of its failed trials by kind of failure."""
    job = storage.jobs.get(job_id, token.sees)
    return shown_job(storage, job, storage.records.count_trials(job.id))


@router.get("/jobs/{job_id}/tasks")
def list_job_tasks(
    job_id: str, storage: StorageDep, token: Reader, pages: PagesDep
) -> list[TaskView]:
    """List the tasks of a job.

    Each has its workload, the workload's count in the model, its best schedule, and its times with
    the default and the best schedule.
    """
    job = storage.jobs.get(job_id, token.sees)
    found = storage.tasks.list(job.id, limit=pages.limit, after=pages.after)
    return [task_view(task, job.id) for task in pages.linked(found)]


@router.get("/jobs/{job_id}/tasks/{workload}/nest")
def get_nest(job_id: str, workload: str, storage: StorageDep, token: Reader) -> NestView:
    """Return the loop nest of a task's workload as text, under its best schedule.

    If the task has no best schedule yet, the untuned schedule is used.
    """
    job = storage.jobs.get(job_id, token.sees)
    task = storage.tasks.get(job.id, workload)
    text = storage.workloads.workload(task.workload_key)
    chosen = (task.facts or {}).get("schedule")
    schedule, nest = stored_nest(text, chosen, mode_of(job, storage))
    return NestView(schedule=schedule.to_json(), text=nest)


@router.post("/jobs/{job_id}:cancel")
def cancel_job(job_id: str, storage: StorageDep, audit: AuditDep, token: Submitter) -> JobView:
    """Cancel a job at once. Its measurements are kept. A job that has ended does not change."""
    with storage.together():
        job = _own_job(job_id, storage, token)
        cancelled = storage.jobs.cancel(job.id)
        audit(Action.JOB_CANCELLED, job.id, owner=job.owner, state=job.state.value)
    store_orphaned_results(storage)  # possibly no tuner is running that would
    return shown_job(storage, cancelled)


@router.post("/jobs/{job_id}:pause")
def pause_job(job_id: str, storage: StorageDep, audit: AuditDep, token: Submitter) -> JobView:
    """Pause a job at once, until it is resumed. Its measurements are kept."""
    with storage.together():
        job = _own_job(job_id, storage, token)
        paused = storage.jobs.pause(job.id)
        audit(Action.JOB_PAUSED, job.id, owner=job.owner, state=job.state.value)
    return shown_job(storage, paused)


@router.post("/jobs/{job_id}:resume")
def resume_job(job_id: str, storage: StorageDep, audit: AuditDep, token: Submitter) -> JobView:
    """Resume a paused job. It continues with the measurements that it has."""
    with storage.together():
        job = _own_job(job_id, storage, token)
        storage.jobs.resume(job.id)
        audit(Action.JOB_RESUMED, job.id, owner=job.owner, state=job.state.value)
    match_jobs(storage)
    return shown_job(storage, storage.jobs.get(job.id))


def shown_job(storage: Storage, job: Job, counts: Mapping[Status, int] | None = None) -> JobView:
    """Return the response body for a job, with the names of its model and owner.

    `counts` has the number of the job's trials by status.
    """
    return _shown(storage, [job], counts)[0]


def _shown(
    storage: Storage, jobs: Sequence[Job], counts: Mapping[Status, int] | None = None
) -> list[JobView]:
    """Return the response bodies for jobs, with the names of their models and owners.

    `counts` has the number of trials by status; give it only for a single job.
    """
    owners = storage.tokens.names([job.owner for job in jobs if job.owner])
    whose = [(job, owners.get(job.owner or "", "")) for job in jobs]
    models = storage.models.names({(job.model_digest, owner) for job, owner in whose})
    return [
        job_view(
            job,
            counts,
            model_name=models.get((job.model_digest, owner), ""),
            owner=owner,
        )
        for job, owner in whose
    ]


def _own_job(job_id: str, storage: Storage, token: Token) -> Job:
    """Return the job with this id if the token may change it.

    The token must be an admin's, or have the same owner as the job.

    Raises:
        NotFoundError: if the token may not see the job, or it does not exist.
        ApiProblem: 403, if the token may see the job but not change it.
    """
    job = storage.jobs.get(job_id, token.sees)
    if job.owner is None or token.allows(Scope.ADMIN):
        return job
    if storage.tokens.names([job.owner]).get(job.owner) != token.name:
        raise forbidden(f"job '{job.id}' is another owner's")
    return job


@router.get("/jobs/{job_id}/artifact", response_class=StreamingResponse, responses=FILE)
@refuses(409, 416)
def get_artifact(job_id: str, request: Request, storage: StorageDep, token: Reader) -> Response:
    """Download the artifact folder of a job as a tar file."""
    job = storage.jobs.get(job_id, token.sees)
    if job.artifact_digest is None:
        raise ApiProblem(409, "no-artifact", f"job '{job.id}' is {job.state} and has no artifact")
    return blob_response(
        request,
        storage,
        job.artifact_digest,
        media_type="application/x-tar",
        filename=f"{job.id}.tar",
        headers={"Digest": f"sha-256={job.artifact_digest}"},
    )
