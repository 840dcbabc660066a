"""Jobs: what a user asked for, who works on it, and how far the work is."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock
from db.engine import reading, writing
from db.errors import NotFoundError, StaleLeaseError
from db.job_states import HELD_STATES, JobState, check_transition
from db.models import JobRow, ModelRow
from db.stores.blob_references import BlobKind, refer
from db.stores.events import EventData, append_events
from db.stores.statements import table_of, upsert

JsonObject = Mapping[str, Any]

_jobs = table_of(JobRow)
_models = table_of(ModelRow)
_held = sorted(state.value for state in HELD_STATES)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Counters a tuner reports. Seconds of the whole model are weighted sums over its tasks."""

    phase: str = ""  # one word for people: "importing", "tuning", ...
    tasks_total: int = 0
    tasks_done: int = 0
    trials_budget: int = 0
    trials_done: int = 0  # failures too
    trials_failed: int = 0
    default_seconds: float | None = None  # with untuned defaults
    best_seconds: float | None = None  # with the best schedules so far
    seconds_left: float | None = None  # estimate
    forecast_gain: float | None = None  # share of best_seconds that a minute more is to gain


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    state: JobState
    model_digest: str
    target: str  # as the user named it: "host", "x86-64-v3", a worker, ...
    target_key: str | None  # what that was resolved to; None in jobs of earlier releases
    threads: int
    numerics: str  # "fast" | "strict" | "loose"
    options: JsonObject  # budget, dims, seed, ...: the service's schema
    owner: str | None  # token id
    progress: JobProgress
    cancel_requested: bool
    error: str | None  # why it failed, one sentence
    result: JsonObject | None  # the final report
    artifact_digest: str | None  # blob
    tuner: str | None  # who holds the claim
    deadline: float | None  # until when
    fencing_token: int
    attempts: int  # claims since the last progress
    created_at: float
    started_at: float | None
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class JobClaim:
    """Proof that a tuner holds a job; every write of the tuner carries it."""

    job_id: str
    tuner: str
    fencing_token: int


class JobStore:
    """The queue of jobs. All writes of a tuner are fenced by its claim."""

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    # the user's side

    def create(
        self,
        model_digest: str,
        target: str,
        *,
        target_key: str | None = None,
        threads: int = 1,
        numerics: str = "fast",
        options: JsonObject | None = None,
        owner: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """A queued job, and its first event. The same owner and idempotency key give the first
        job back. Raises NotFoundError when the model is unknown."""
        now = self._clock()
        job_id = uuid.uuid4().hex
        row = {
            "id": job_id,
            "state": JobState.QUEUED.value,
            "model_digest": model_digest,
            "target": target,
            "target_key": target_key,
            "threads": threads,
            "numerics": numerics,
            "options": dict(options or {}),
            "owner": owner or "",
            "idempotency_key": idempotency_key,
            "cancel_requested": False,
            "fencing_token": 0,
            "attempts": 0,
            "event_sequence": 0,
            "created_at": now,
            **asdict(JobProgress()),
        }
        with writing(self._engine) as connection:
            known = sa.select(_models.c.digest).where(_models.c.digest == model_digest)
            if connection.execute(known).first() is None:
                raise NotFoundError("model", model_digest)
            made = connection.execute(
                upsert(connection, _jobs)
                .values(row)
                .on_conflict_do_nothing(index_elements=[_jobs.c.owner, _jobs.c.idempotency_key])
                .returning(_jobs)
            ).first()
            if made is not None:
                append_events(connection, job_id, [_state_event(JobState.QUEUED)], now)
                return _job(made)
            return _job(
                connection.execute(
                    sa.select(_jobs).where(
                        _jobs.c.owner == (owner or ""), _jobs.c.idempotency_key == idempotency_key
                    )
                ).one()
            )

    def get(self, job_id: str) -> Job:
        """Raises NotFoundError."""
        with reading(self._engine) as connection:
            return _get(connection, job_id)

    def list(
        self,
        *,
        owner: str | None = None,
        state: JobState | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Sequence[Job]:
        """Newest first; `after` is the id the previous page ended with."""
        query = sa.select(_jobs).order_by(_jobs.c.created_at.desc(), _jobs.c.id.desc()).limit(limit)
        if owner is not None:
            query = query.where(_jobs.c.owner == owner)
        if state is not None:
            query = query.where(_jobs.c.state == state.value)
        with reading(self._engine) as connection:
            if after is not None:
                last = _get(connection, after)
                query = query.where(
                    sa.tuple_(_jobs.c.created_at, _jobs.c.id)
                    < sa.tuple_(sa.literal(last.created_at), sa.literal(last.id))
                )
            return [_job(row) for row in connection.execute(query)]

    def counts(self) -> Mapping[JobState, int]:
        """How many jobs are in which state; every state is named."""
        query = sa.select(_jobs.c.state, sa.func.count()).group_by(_jobs.c.state)
        with reading(self._engine) as connection:
            found = {row[0]: row[1] for row in connection.execute(query)}
        return {state: found.get(state.value, 0) for state in JobState}

    def request_cancel(self, job_id: str) -> Job:
        """Cancel: at once when no tuner holds the job, else the tuner is told at its next renewal.

        A final job stays as it is (cancelling twice is no error). Raises NotFoundError.
        """
        now = self._clock()
        with writing(self._engine) as connection:
            job = _get(connection, job_id, lock=True)
            held = job.deadline is not None and job.deadline > now
            if job.state.final or (held and job.cancel_requested):
                return job
            if held:
                update = sa.update(_jobs).where(_jobs.c.id == job_id)
                connection.execute(update.values(cancel_requested=True))
                append_events(connection, job_id, [("cancel_requested", {})], now)
                return _get(connection, job_id)
            return _step(connection, job, JobState.CANCELLED, now, cancel_requested=True)

    # the tuner's side

    def claim(
        self, tuner: str, lease_seconds: float, *, max_attempts: int = 5
    ) -> tuple[JobClaim, Job] | None:
        """Take the oldest job that is queued or whose tuner's lease has run out.

        The job becomes running with a higher fencing token. One that was claimed `max_attempts`
        times without any progress becomes failed instead. None when there is nothing to do.
        """
        now = self._clock()
        free = (
            sa.select(_jobs)
            .where(
                sa.or_(
                    _jobs.c.state == JobState.QUEUED.value,
                    sa.and_(_jobs.c.state.in_(_held), _jobs.c.deadline <= now),
                )
            )
            .order_by(_jobs.c.created_at, _jobs.c.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        with writing(self._engine) as connection:
            while (row := connection.execute(free).first()) is not None:
                job = _job(row)
                if job.attempts >= max_attempts:
                    error = f"{job.attempts} tuners in a row were lost while working on this job"
                    _step(connection, job, JobState.FAILED, now, error=error)
                    continue
                claim = JobClaim(job.id, tuner, job.fencing_token + 1)
                values: dict[str, Any] = {
                    "tuner": tuner,
                    "deadline": now + lease_seconds,
                    "fencing_token": claim.fencing_token,
                    "attempts": job.attempts + 1,
                    "started_at": job.started_at if job.started_at is not None else now,
                }
                if job.state is JobState.RUNNING:  # taken over from a lost tuner
                    update = sa.update(_jobs).where(_jobs.c.id == job.id).values(values)
                    connection.execute(update)
                    took_over = ("taken_over", {"from": job.tuner, "by": tuner})
                    append_events(connection, job.id, [took_over], now)
                    return claim, _get(connection, job.id)
                return claim, _step(connection, job, JobState.RUNNING, now, **values)
        return None

    def renew(self, claim: JobClaim, lease_seconds: float) -> Job:
        """Move the deadline; look at `cancel_requested` of what comes back.

        Raises StaleLeaseError when another tuner has the job or it is final.
        """
        with writing(self._engine) as connection:
            deadline = self._clock() + lease_seconds
            return self._fenced_update(connection, claim, {"deadline": deadline})

    def progress(
        self,
        claim: JobClaim,
        progress: JobProgress,
        *,
        event: JsonObject | None = None,
    ) -> None:
        """Save counters (and an event "progress" with the counters and what `event` adds).

        A tuner that is lost after some trials is forgiven: they count as progress. Raises
        StaleLeaseError.
        """
        now = self._clock()
        counters = asdict(progress)
        values: dict[str, Any] = dict(counters)
        values["attempts"] = sa.case(
            (_jobs.c.trials_done < progress.trials_done, 1), else_=_jobs.c.attempts
        )
        with writing(self._engine) as connection:
            self._fenced_update(connection, claim, values)
            data = {**counters, **(event or {})}
            append_events(connection, claim.job_id, [("progress", data)], now)

    def transition(
        self,
        claim: JobClaim,
        state: JobState,
        *,
        error: str | None = None,
        result: JsonObject | None = None,
        artifact_digest: str | None = None,
    ) -> Job:
        """Step to another state; a final one, and queued, end the claim. Adds an event "state".

        Raises StateError (no such step), StaleLeaseError.
        """
        values: dict[str, Any] = {}
        if error is not None:
            values["error"] = error
        if result is not None:
            values["result"] = dict(result)
        if artifact_digest is not None:
            values["artifact_digest"] = artifact_digest
        with writing(self._engine) as connection:
            job = check_claim(connection, claim)
            if artifact_digest is not None:
                refer(connection, BlobKind.ARTIFACT, job.id, [artifact_digest])
            return _step(connection, job, state, self._clock(), **values)

    def release(self, claim: JobClaim) -> None:
        """Give the job back unfinished: queued, and the claim does not count as an attempt.

        Raises StaleLeaseError.
        """
        with writing(self._engine) as connection:
            job = check_claim(connection, claim)
            attempts = max(0, job.attempts - 1)
            _step(connection, job, JobState.QUEUED, self._clock(), attempts=attempts)

    @staticmethod
    def _fenced_update(
        connection: sa.Connection, claim: JobClaim, values: Mapping[str, Any]
    ) -> Job:
        row = connection.execute(
            sa.update(_jobs)
            .where(
                _jobs.c.id == claim.job_id,
                _jobs.c.fencing_token == claim.fencing_token,
                _jobs.c.state.in_(_held),
            )
            .values(dict(values))
            .returning(_jobs)
        ).first()
        if row is None:
            raise _stale(claim)
        return _job(row)


def check_claim(connection: sa.Connection, claim: JobClaim) -> Job:
    """The job, its row locked until the transaction ends. Raises StaleLeaseError.

    A claim whose deadline is over still holds while nobody else has taken the job.
    """
    query = sa.select(_jobs).where(
        _jobs.c.id == claim.job_id,
        _jobs.c.fencing_token == claim.fencing_token,
        _jobs.c.state.in_(_held),
    )
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        raise _stale(claim)
    return _job(row)


def _stale(claim: JobClaim) -> StaleLeaseError:
    return StaleLeaseError(
        f"job '{claim.job_id}' is no longer held by tuner '{claim.tuner}'"
        f" (fencing token {claim.fencing_token})"
    )


def _step(connection: sa.Connection, job: Job, state: JobState, now: float, **values: Any) -> Job:
    """One step of the transition table with its event. The job's row is locked by the caller."""
    check_transition(job.id, job.state, state)
    if state not in HELD_STATES:  # the claim ends; its token stays used
        values |= {"tuner": None, "deadline": None, "seconds_left": None}
    if state.final:
        values["finished_at"] = now
    update = sa.update(_jobs).where(_jobs.c.id == job.id).values(state=state.value, **values)
    connection.execute(update)
    append_events(connection, job.id, [_state_event(state, values.get("error"))], now)
    return _get(connection, job.id)


def _state_event(state: JobState, error: str | None = None) -> EventData:
    data = {"state": state.value}
    return "state", data if error is None else {**data, "error": error}


def _get(connection: sa.Connection, job_id: str, *, lock: bool = False) -> Job:
    query = sa.select(_jobs).where(_jobs.c.id == job_id)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFoundError("job", job_id)
    return _job(row)


_PROGRESS_FIELDS = tuple(field.name for field in fields(JobProgress))


def _job(row: sa.Row[Any]) -> Job:
    values = dict(row._mapping)
    progress = JobProgress(**{name: values.pop(name) for name in _PROGRESS_FIELDS})
    for name in ("idempotency_key", "event_sequence"):
        del values[name]
    values["owner"] = values["owner"] or None
    return Job(progress=progress, **{**values, "state": JobState(values["state"])})
