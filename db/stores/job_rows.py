"""The value classes of jobs, and `step`, the function that makes every change of a job's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from tilewright.db.errors import StaleLeaseError
from tilewright.db.job_states import HELD_STATES, JobState, check_transition
from tilewright.db.models import JobRow, OpenTaskRow, TokenRow
from tilewright.db.stores.events import EventData, append_events
from tilewright.db.stores.ids import row_of_id
from tilewright.db.stores.measure_queue import cancel_requests
from tilewright.db.stores.statements import table_of

JsonObject = Mapping[str, Any]

jobs_table = table_of(JobRow)
_open_tasks = table_of(OpenTaskRow)
_tokens = table_of(TokenRow)
held_states = sorted(state.value for state in HELD_STATES)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job, as reported by its tuner.

    Attributes:
        phase: one word for users, such as "importing" or "tuning".
        trials_done: number of measured candidates, including failed ones.
        default_seconds: estimated time of one run of the model with untuned schedules: the sum of
            the times of all tasks, each multiplied by how often the model runs the task.
        best_seconds: the same estimate with the best schedules known at present.
        seconds_left: the estimated remaining time of the job.
        forecast_gain: expected gain of another minute of tuning, as a fraction of `best_seconds`.
    """

    phase: str = ""  # one word for users: "importing", "tuning", ...
    tasks_total: int = 0
    tasks_done: int = 0
    trials_budget: int = 0
    trials_done: int = 0  # including failures
    trials_failed: int = 0
    default_seconds: float | None = None  # with untuned defaults
    best_seconds: float | None = None  # with the best schedules so far
    seconds_left: float | None = None  # estimate
    forecast_gain: float | None = None  # of another minute, as a fraction of best_seconds


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    state: JobState
    model_digest: str
    target: str  # as the user named it: "host", "x86-64-v3", a worker, ...
    target_key: str  # the key of the resolved target
    worker_id: str | None  # the only worker that measures; None: any that runs the target
    threads: int
    numerics: str  # "fast" | "strict" | "loose"
    options: JsonObject  # budget, dims, seed, ...: the service's schema
    priority: int  # among jobs of owners with equally many running jobs; highest first
    wait_seconds: float | None  # longest wait for a worker; None: the service's setting
    owner: str | None  # token id
    progress: JobProgress
    reason: str | None  # the cause of waiting or incompleteness; one sentence
    error: str | None  # the cause of failure, one sentence
    result: JsonObject | None  # the final report
    artifact_digest: str | None  # blob
    tuner: str | None  # the tuner that holds the claim
    deadline: float | None  # of the claim
    fencing_token: int
    attempts: int  # claims since the last progress
    created_at: float
    started_at: float | None
    progressed_at: float  # the last step, phase or trial
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class JobClaim:
    """A tuner's exclusive hold on a job. Every write of a tuner requires one.

    `fencing_token` grows with each claim of the job, so that writes under an earlier claim are
    rejected.
    """

    job_id: str
    tuner: str
    fencing_token: int


def seen_jobs(sees: str | None) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the SQL conditions that select the jobs of the owner `sees`.

    The owner is a name: all tokens with this name belong to one owner. If `sees` is None, the jobs
    of all owners are selected, and the result is empty.
    """
    if sees is None:
        return ()
    return (jobs_table.c.owner.in_(sa.select(_tokens.c.id).where(_tokens.c.name == sees)),)


def get_job(
    connection: sa.Connection, job_id: str, *, lock: bool = False, sees: str | None = None
) -> Job:
    """Return the job with this id, or the only job whose id starts with `job_id`.

    Args:
        connection: the connection to query.
        job_id: the id, or a unique prefix of it.
        lock: whether to lock the job's row until the transaction ends.
        sees: the name of an owner; only the owner's jobs are found. None for all jobs.

    Raises:
        NotFoundError: if no such job has this id, or several ids start with it.
    """
    query = sa.select(jobs_table).where(*seen_jobs(sees))
    query = query.with_for_update() if lock else query
    return job_of(row_of_id(connection, query, jobs_table.c.id, job_id, "job"))


_PROGRESS_FIELDS = tuple(field.name for field in fields(JobProgress))


def job_of(row: sa.Row[Any]) -> Job:
    """Convert a row with all columns of the table of jobs to a Job."""
    values = dict(row._mapping)
    progress = JobProgress(**{name: values.pop(name) for name in _PROGRESS_FIELDS})
    for name in ("idempotency_key", "event_sequence"):
        del values[name]
    values["owner"] = values["owner"] or None
    return Job(progress=progress, **{**values, "state": JobState(values["state"])})


def step(connection: sa.Connection, job: Job, state: JobState, now: float, **values: Any) -> Job:
    """Change the state of a job, add an event "state", and return the changed job.

    If the job ends or is paused, its measurement requests are cancelled.

    Args:
        connection: a transaction that has locked the job's row.
        job: the job before the change.
        state: the new state.
        now: the present time, in seconds since the epoch.
        values: further columns to set.

    Raises:
        StateError: if `TRANSITIONS` does not allow the change.
    """
    check_transition(job.id, job.state, state)
    values.setdefault("reason", None)
    if state not in HELD_STATES:  # the claim ends; its token stays used
        values |= {"tuner": None, "deadline": None, "seconds_left": None}
    if state.final:
        values["finished_at"] = now
    if state.final or state is JobState.PAUSED:
        cancel_requests(connection, job.id, now)
    if state not in HELD_STATES:
        connection.execute(sa.delete(_open_tasks).where(_open_tasks.c.job_id == job.id))
    update = sa.update(jobs_table).where(jobs_table.c.id == job.id)
    connection.execute(update.values(state=state.value, progressed_at=now, **values))
    event = state_event(state, error=values.get("error"), reason=values["reason"])
    append_events(connection, job.id, [event], now)
    return get_job(connection, job.id)


def state_event(state: JobState, **why: str | None) -> EventData:
    """Return the event "state" that reports a job's new state.

    `why` has further values of the event, such as a reason. Values that are None are left out.
    """
    return "state", {"state": state.value, **{k: v for k, v in why.items() if v is not None}}


def check_claim(connection: sa.Connection, claim: JobClaim) -> Job:
    """Lock the row of a claimed job until the transaction ends, and return the job.

    An expired claim remains valid until another tuner claims the job.

    Raises:
        StaleLeaseError: if another tuner holds the job, or the job was stopped or has ended.
    """
    query = sa.select(jobs_table).where(holds(claim))
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        raise stale(claim)
    return job_of(row)


def holds(claim: JobClaim) -> sa.ColumnElement[bool]:
    """Return the SQL condition that selects the claimed job's row, if the claim is still valid."""
    return sa.and_(
        jobs_table.c.id == claim.job_id,
        jobs_table.c.fencing_token == claim.fencing_token,
        jobs_table.c.state.in_(held_states),
    )


def stale(claim: JobClaim) -> StaleLeaseError:
    return StaleLeaseError(
        f"job '{claim.job_id}' is no longer held by tuner '{claim.tuner}'"
        f" (fencing token {claim.fencing_token})"
    )
