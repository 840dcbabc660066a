"""Routes of tasks, trials, workloads and targets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tilewright.db.errors import AmbiguousIdError, NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.tasks import TaskStatus
from tilewright.db.stores.tokens import Token
from tilewright.service.api.conditional import NOT_MODIFIED, tagged
from tilewright.service.api.deps import Reader, StorageDep
from tilewright.service.api.errors import invalid
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.refusals import refuses
from tilewright.service.api.resource_views import (
    target_view,
    trial_view,
    without_jobs_of_others,
    workload_view,
)
from tilewright.service.api.schemas.fields import Digest
from tilewright.service.api.schemas.jobs import TaskView
from tilewright.service.api.schemas.resources import (
    StoredWorkloadView,
    TargetView,
    TrialView,
    WorkloadView,
)
from tilewright.service.api.views import task_view
from tilewright.service.jobs.device.job_target import target_key_of
from tilewright.tuner.protocol.measurement import Status

router = APIRouter(tags=["resources"], route_class=GatedRoute)

JobQuery = Annotated[str | None, Query(max_length=64, description="A job's id, or how it begins")]


def whole_job_id(storage: Storage, job: str, token: Token) -> str:
    """Return the full id of a job, given the id or a prefix of it.

    For a token that sees all owners, an unknown id is returned unchanged: it may be the id of a
    local run of `tilewright tune`. The run's trials have that id, although no job exists for it.

    Raises:
        AmbiguousIdError: if several ids begin with `job`.
        NotFoundError: if the token sees the jobs of only one owner, and none of them has this id.
    """
    try:
        return storage.jobs.get(job, token.sees).id
    except AmbiguousIdError:
        raise
    except NotFoundError:
        if token.sees is not None:
            raise
        return job


@router.get("/tasks")
@refuses(404)
def list_tasks(
    storage: StorageDep,
    token: Reader,
    pages: PagesDep,
    job: JobQuery = None,
    workload: Digest | None = None,
    status: TaskStatus | None = None,
) -> list[TaskView]:
    """List the tasks of the jobs that the token may see, ordered by job."""
    found = storage.tasks.search(
        job_id=None if job is None else whole_job_id(storage, job, token),
        workload_key=workload,
        status=status,
        sees=token.sees,
        limit=pages.limit,
        after=pages.after,
    )
    return [task_view(task, job_id) for job_id, task in pages.linked(found)]


@router.get("/trials")
@refuses(404)
def list_trials(
    storage: StorageDep,
    token: Reader,
    pages: PagesDep,
    job: JobQuery = None,
    workload: Digest | None = None,
    target: Annotated[str | None, Query(max_length=200, description="Target key or name")] = None,
    status: Status | None = None,
    origin: Annotated[str | None, Query(max_length=200, description="Who suggested it")] = None,
    worker: Annotated[str | None, Query(max_length=200, description="Who measured it")] = None,
) -> list[TrialView]:
    """List the trials of a job or of a workload, including failed ones, newest first."""
    if job is None and workload is None:
        raise invalid("query: give 'job' or 'workload'")
    found = storage.trials.list(
        job_id=None if job is None else whole_job_id(storage, job, token),
        workload_key=workload,
        target_key=None if target is None else target_key_of(target, storage),
        status=status,
        origin=origin,
        worker=worker,
        limit=pages.limit,
        after=pages.after,
    )
    views = [trial_view(stored) for stored in pages.linked(found)]
    return without_jobs_of_others(views, storage, token)


@router.get("/workloads")
def list_workloads(storage: StorageDep, _: Reader, pages: PagesDep) -> list[StoredWorkloadView]:
    """List all workloads as text, newest first."""
    found = storage.workloads.list_workloads(limit=pages.limit, after=pages.after)
    return [workload_view(stored) for stored in pages.linked(found)]


@router.get("/workloads/{key}", response_model=WorkloadView, responses=NOT_MODIFIED)
def get_workload(key: str, request: Request, storage: StorageDep, _: Reader) -> Response:
    """Return a workload as text, given its key."""
    key, text = storage.workloads.found_workload(key)
    view = WorkloadView(key=key, text=text)
    return tagged(request, view.model_dump_json().encode())


@router.get("/targets")
def list_targets(storage: StorageDep, _: Reader, pages: PagesDep) -> list[TargetView]:
    """List the targets of all jobs and workers, ordered by key."""
    found = storage.workloads.list_targets(limit=pages.limit, after=pages.after)
    return [target_view(stored) for stored in pages.linked(found)]
