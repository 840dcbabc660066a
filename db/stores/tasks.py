"""Stores of the tasks of jobs (workload, count and weight), and of workloads and targets by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError
from tilewright.db.models import TargetRow, TaskRow, WorkloadRow
from tilewright.db.stores.ids import row_of_id
from tilewright.db.stores.job_rows import jobs_table, seen_jobs
from tilewright.db.stores.jobs import JobClaim, check_claim
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.statements import chunks, insert_new, table_of, upsert

_tasks = table_of(TaskRow)
_workloads = table_of(WorkloadRow)
_targets = table_of(TargetRow)
_as_put = PageOrder((_tasks.c.position, _tasks.c.workload_key), descending=False)
_by_job = PageOrder((_tasks.c.job_id, *_as_put.columns), descending=False)
_newest_workload_first = PageOrder((_workloads.c.created_at, _workloads.c.key))
_by_key = PageOrder((_targets.c.key,), descending=False)


class TaskStatus(StrEnum):
    PENDING = "pending"
    TUNING = "tuning"
    TUNED = "tuned"  # its share of the trials is spent
    CACHED = "cached"  # served from the records, without trials
    FAILED = "failed"  # not even the default ran


@dataclass(frozen=True, slots=True)
class JobTask:
    workload_key: str
    name: str  # for users: "conv 64x56x56 3x3"
    count: int  # number of occurrences in the model
    weight: float  # count times cost: what the task scheduler maximises over
    status: TaskStatus = TaskStatus.PENDING
    default_seconds: float | None = None
    best_seconds: float | None = None
    trials: int = 0
    facts: Mapping[str, Any] | None = None  # flops, bytes, algorithm, ...: for the report


@dataclass(frozen=True, slots=True)
class StoredWorkload:
    """A workload (a fused subgraph to tune) as text, and its key.

    The key is a hash of the text and of the schema version. `created_at` is the time of the
    workload's upload, in seconds since the epoch.
    """

    key: str
    text: str
    created_at: float


@dataclass(frozen=True, slots=True)
class StoredTarget:
    """A target of jobs or workers. `description` is its JSON form."""

    key: str
    name: str
    description: Mapping[str, Any]
    created_at: float


class TaskStore:
    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def put(self, claim: JobClaim, tasks: Sequence[JobTask]) -> None:
        """Save new or changed tasks of a claimed job in one transaction.

        New tasks are appended to the job's list in the given order. A task that is already stored
        keeps its position.

        Raises:
            StaleLeaseError: if another tuner holds the job, or the job was stopped or has ended.
        """
        now = self._clock()
        with writing(self._engine) as connection:
            check_claim(connection, claim)
            if not tasks:
                return
            of_job = _tasks.c.job_id == claim.job_id
            count = sa.select(sa.func.count()).select_from(_tasks).where(of_job)
            first = connection.execute(count).scalar_one()
            insert = upsert(connection, _tasks)
            fixed = ("job_id", "workload_key", "position")  # a known task keeps its place
            changed = {c.name: insert.excluded[c.name] for c in _tasks.c if c.name not in fixed}
            rows = [
                {
                    **asdict(task),
                    "status": task.status.value,
                    "job_id": claim.job_id,
                    "position": first + position,
                    "updated_at": now,
                }
                for position, task in enumerate(tasks)
            ]
            keys = [_tasks.c.job_id, _tasks.c.workload_key]
            connection.execute(
                insert.on_conflict_do_update(index_elements=keys, set_=changed), rows
            )

    def list(
        self, job_id: str, *, limit: int | None = None, after: Position | None = None
    ) -> Page[JobTask]:
        """Return a page of a job's tasks, in the order in which they were first saved.

        `after` is the position `Page.next` of the previous page.

        Raises:
            PositionError: if no task of the job can have the position `after`.
        """
        query = sa.select(_tasks).where(_tasks.c.job_id == job_id)
        with reading(self._engine) as connection:
            return _as_put.page(connection, query, _task, limit, after)

    def get(self, job_id: str, workload_key: str) -> JobTask:
        """Return a job's task for a workload, given the workload's key or a unique prefix of it.

        Raises:
            NotFoundError: if no task of the job has this key, or several keys start with it.
        """
        query = sa.select(_tasks).where(_tasks.c.job_id == job_id)
        with reading(self._engine) as connection:
            row = row_of_id(connection, query, _tasks.c.workload_key, workload_key, "task")
        return _task(row)

    def search(
        self,
        *,
        job_id: str | None = None,
        workload_key: str | None = None,
        status: TaskStatus | None = None,
        sees: str | None = None,
        limit: int = 100,
        after: Position | None = None,
    ) -> Page[tuple[str, JobTask]]:
        """Return a page of the tasks that match all given filters, ordered by job.

        Each item is (job id, task). `sees` is the name of an owner; only tasks of the owner's jobs
        are listed (`Token.sees`). None for all jobs. `after` is the position `Page.next` of the
        previous page.

        Raises:
            PositionError: if no task can have the position `after`.
        """
        wanted = {
            _tasks.c.job_id: job_id,
            _tasks.c.workload_key: workload_key,
            _tasks.c.status: None if status is None else status.value,
        }
        query = sa.select(_tasks).where(
            *(column == value for column, value in wanted.items() if value is not None)
        )
        if sees is not None:
            own = sa.select(jobs_table.c.id).where(*seen_jobs(sees))
            query = query.where(_tasks.c.job_id.in_(own))
        with reading(self._engine) as connection:
            return _by_job.page(
                connection, query, lambda row: (row.job_id, _task(row)), limit, after
            )


def _task(row: sa.Row[Any]) -> JobTask:
    values = dict(row._mapping)
    for name in ("job_id", "position", "updated_at"):
        del values[name]
    return JobTask(**{**values, "status": TaskStatus(values["status"])})


class WorkloadStore:
    """Stores workloads in their text form (`Workload.text`) and targets as JSON, both by key.

    A key is a hash of the content.
    """

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def put_workloads(self, texts: Mapping[str, str]) -> None:
        """Save workloads; `texts` has the text form (`Workload.text`) of each, by key.

        A key that is already stored does not change.
        """
        now = self._clock()
        rows = [{"key": key, "text": text, "created_at": now} for key, text in texts.items()]
        with writing(self._engine) as connection:
            insert_new(connection, _workloads, sorted(rows, key=lambda row: str(row["key"])))

    def workload(self, key: str) -> str:
        """Return the text form of a workload, given its key or a unique prefix of it.

        Raises:
            NotFoundError: if no workload has this key, or several keys start with it.
        """
        return self.found_workload(key)[1]

    def found_workload(self, key: str) -> tuple[str, str]:
        """Return the key and the text form of a workload, given its key or a unique prefix of it.

        Raises:
            NotFoundError: if no workload has this key, or several keys start with it.
        """
        query = sa.select(_workloads.c.key, _workloads.c.text)
        with reading(self._engine) as connection:
            row = row_of_id(connection, query, _workloads.c.key, key, "workload")
        return row.key, row.text

    def workloads(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Return the text forms of workloads by key. Unknown keys are left out."""
        found: dict[str, str] = {}
        with reading(self._engine) as connection:
            for some in chunks(keys):
                query = sa.select(_workloads.c.key, _workloads.c.text)
                query = query.where(_workloads.c.key.in_(some))
                found.update({row.key: row.text for row in connection.execute(query)})
        return found

    def list_workloads(self, *, limit: int, after: Position | None = None) -> Page[StoredWorkload]:
        """Return a page of stored workloads, newest first.

        Each one has its key, its time of upload and its text: the graph of operators with types,
        shapes and layouts, from which the workload can be parsed. `limit` is the maximum number of
        workloads on the page, and `after` is the position `Page.next` of the previous page.

        Raises:
            PositionError: if no workload can have the position `after`.
        """
        query = sa.select(_workloads)
        with reading(self._engine) as connection:
            return _newest_workload_first.page(
                connection, query, lambda row: StoredWorkload(**row._mapping), limit, after
            )

    def list_targets(self, *, limit: int, after: Position | None = None) -> Page[StoredTarget]:
        """Return a page of the targets of all jobs and workers, ordered by key.

        `after` is the position `Page.next` of the previous page.

        Raises:
            PositionError: if no target can have the position `after`.
        """
        with reading(self._engine) as connection:
            return _by_key.page(
                connection,
                sa.select(_targets),
                lambda row: StoredTarget(**row._mapping),
                limit,
                after,
            )

    def put_target(self, key: str, name: str, description: Mapping[str, Any]) -> None:
        """Save the name and the JSON description of a target.

        A key that is already stored does not change.
        """
        row = {
            "key": key,
            "name": name,
            "description": dict(description),
            "created_at": self._clock(),
        }
        with writing(self._engine) as connection:
            insert_new(connection, _targets, [row])

    def target(self, key: str) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the JSON description of a target.

        Raises:
            NotFoundError: if no target has this key.
        """
        with reading(self._engine) as connection:
            row = connection.execute(sa.select(_targets).where(_targets.c.key == key)).first()
        if row is None:
            raise NotFoundError("target", key)
        return row.name, row.description

    def targets(self) -> Mapping[str, str]:
        """Return the name of every target, by key."""
        query = sa.select(_targets.c.key, _targets.c.name).order_by(_targets.c.name)
        with reading(self._engine) as connection:
            return {row.key: row.name for row in connection.execute(query)}
