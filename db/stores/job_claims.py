"""Operations of tuners on jobs: claim a job, report progress, change its state, release it.

Jobs are claimed in a fair order among their owners. In this module, a claim is a tuner's exclusive
hold on a job for a limited time, not a statement about speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, instant
from tilewright.db.engine import reading, writing
from tilewright.db.job_states import JobState
from tilewright.db.models import TokenRow
from tilewright.db.stores.blob_references import BlobKind, refer
from tilewright.db.stores.events import EventData, append_events
from tilewright.db.stores.job_rows import (
    Job,
    JobClaim,
    JobProgress,
    JsonObject,
    check_claim,
    get_job,
    held_states,
    holds,
    job_of,
    jobs_table,
    stale,
    state_event,
    step,
)
from tilewright.db.stores.statements import one_at_a_time, table_of

SHARED_ATTEMPTS = 2
"""Number of consecutive tuners lost while they held a job, after which only a tuner without other
jobs may claim the job. The job may have crashed these tuners."""

ALONE_SECONDS = 60.0
"""Seconds that a job with `SHARED_ATTEMPTS` lost tuners waits for a tuner without other jobs. After
that, tuners that hold jobs claim no others, so that one of them becomes free for this job."""

_tokens = table_of(TokenRow)
_jobs = jobs_table


class JobClaims:
    """The operations of tuners on the job queue.

    Every write requires a valid claim: a tuner's exclusive hold on a job for a limited time. Times
    come from the database's clock, so a tuner whose own clock is fast does not take jobs from
    others. Tests may pass another `clock`.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._now = instant(clock)

    def _clock(self, connection: sa.Connection) -> float:
        """Return the present time by the clock of the store, in seconds since the epoch."""
        return connection.execute(sa.select(self._now())).scalar_one()

    def claim(
        self,
        tuner: str,
        lease_seconds: float,
        *,
        max_attempts: int = 5,
        max_running: int | None = None,
        wait_seconds: float = float("inf"),
        stall_seconds: float = float("inf"),
        shared: bool = False,
    ) -> tuple[JobClaim, Job] | None:
        """Claim the next job for a tuner. Return the claim and the job; None if no job is free.

        Jobs of the owner with the fewest running jobs come first. Among these, the job with the
        highest priority comes first, then the oldest. The claimed job gets the state running and a
        larger fencing token. A job fails instead if `max_attempts` consecutive tuners were lost
        while they held it, without a new trial. A tuner is lost if it stops renewing its claim.

        Args:
            tuner: the name of the tuner.
            lease_seconds: time until the claim ends unless it is renewed.
            max_attempts: the number of consecutive tuners that may be lost while they hold a job.
            max_running: limit of running jobs per owner; a limit of the owner's token takes
                precedence.
            wait_seconds: how long a job waits for a worker; a limit of the job takes precedence.
                After that the job is claimed without a worker. It then uses only schedules that are
                already stored.
            stall_seconds: time without progress after which another tuner may claim a running job.
            shared: whether the tuner holds other jobs. Such a tuner does not get a job that may
                have crashed earlier tuners (SHARED_ATTEMPTS, ALONE_SECONDS).
        """
        with reading(self._engine) as connection:
            now = self._clock(connection)
        stalled = sa.and_(
            _jobs.c.state.in_(held_states), _jobs.c.progressed_at <= now - stall_seconds
        )
        lost = sa.and_(_jobs.c.state.in_(held_states), _jobs.c.deadline <= now)
        waited = sa.func.coalesce(_jobs.c.wait_seconds, wait_seconds)
        free = sa.or_(
            _jobs.c.state == JobState.QUEUED.value,
            lost,
            stalled,
            sa.and_(_jobs.c.state == JobState.WAITING.value, _jobs.c.progressed_at + waited <= now),
        )
        suspect = sa.and_(free, _jobs.c.attempts >= SHARED_ATTEMPTS)
        if shared:
            free = sa.and_(free, _jobs.c.attempts < SHARED_ATTEMPTS)
        with reading(self._engine) as connection:  # usually no job is free: take no write lock
            if connection.execute(sa.select(_jobs.c.id).where(free).limit(1)).first() is None:
                return None
        running = (
            sa.select(_jobs.c.owner, sa.func.count().label("jobs"))
            .where(_jobs.c.state.in_(held_states), sa.not_(sa.or_(lost, stalled)))
            .group_by(_jobs.c.owner)
            .subquery()
        )
        beside = sa.func.coalesce(running.c.jobs, 0)
        limit = sa.func.coalesce(_tokens.c.max_running_jobs, max_running)
        allowed = (
            sa.select(_jobs)
            .outerjoin(running, running.c.owner == _jobs.c.owner)
            .outerjoin(_tokens, _tokens.c.id == _jobs.c.owner)
            .where(sa.or_(limit.is_(None), beside < limit))
            .limit(1)
        )
        turn = (
            allowed.where(free)
            .order_by(beside, _jobs.c.priority.desc(), _jobs.c.created_at, _jobs.c.id)
            .with_for_update(skip_locked=True, of=_jobs)
        )
        since = sa.func.coalesce(_jobs.c.deadline, _jobs.c.progressed_at)
        overdue = allowed.where(suspect, since <= now - ALONE_SECONDS)
        with writing(self._engine) as connection:
            one_at_a_time(connection, "claims of jobs")  # otherwise two tuners count the same jobs
            if shared and connection.execute(overdue).first() is not None:
                return None
            while (row := connection.execute(turn).first()) is not None:
                job = job_of(row)
                held = job.state.value in held_states
                late = held and job.deadline is not None and job.deadline > now
                reason = f"no progress for {stall_seconds:g} seconds" if late else None
                if job.attempts >= max_attempts:
                    error = f"{job.attempts} tuners in a row were lost while working on this job"
                    step(connection, job, JobState.FAILED, now, error=reason or error)
                    continue
                claim = JobClaim(job.id, tuner, job.fencing_token + 1)
                values: dict[str, Any] = {
                    "tuner": tuner,
                    "deadline": now + lease_seconds,
                    "fencing_token": claim.fencing_token,
                    "attempts": job.attempts + 1,
                    "started_at": job.started_at if job.started_at is not None else now,
                    # after a wait: the reason for the absence of workers
                    "reason": job.reason,
                }
                if job.state is not JobState.RUNNING:
                    return claim, step(connection, job, JobState.RUNNING, now, **values)
                update = sa.update(_jobs).where(_jobs.c.id == job.id)
                connection.execute(update.values(progressed_at=now, **values))
                took_over = {"from": job.tuner, "by": tuner, **({"reason": reason} if late else {})}
                append_events(connection, job.id, [("taken_over", took_over)], now)
                return claim, get_job(connection, job.id)
        return None

    def match(
        self,
        served: Callable[[str, str | None], bool],
        reason: Callable[[str, str | None], str],
        *,
        only_wake: bool = False,
    ) -> int:
        """Adapt the states of queued and waiting jobs to the workers that are alive.

        A queued job becomes waiting if no suitable worker is alive. A waiting job becomes queued if
        a suitable worker is alive. If a waiting job needs one specific worker, its reason for
        waiting is updated. Return the number of jobs whose state changed. Any process may call it
        at any time.

        Args:
            served: whether a suitable worker is alive, given a target key and, for a job that needs
                one specific worker, the worker's id.
            reason: returns the reason why a job waits, with a remedy, given the same arguments.
            only_wake: only move waiting jobs to queued.
        """
        places = (_jobs.c.state, _jobs.c.target_key, _jobs.c.worker_id, _jobs.c.reason)
        moved = {JobState.WAITING: JobState.QUEUED}
        if not only_wake:
            moved[JobState.QUEUED] = JobState.WAITING
        query = sa.select(*places).distinct()
        query = query.where(_jobs.c.state.in_([state.value for state in moved]))
        with reading(self._engine) as connection:
            found = connection.execute(query).all()
        wrong: list[tuple[Any, str | None]] = []  # a row, and the reason why its jobs wait
        for row in found:
            waits = row.state == JobState.WAITING.value
            why = None
            if not served(row.target_key, row.worker_id):
                if waits and row.worker_id is None:
                    continue
                why = reason(row.target_key, row.worker_id)
            elif not waits:
                continue
            if not waits or why != row.reason:
                wrong.append((row, why))
        if not wrong:
            return 0
        count = 0
        with writing(self._engine) as connection:
            now = self._clock(connection)
            for place, why in wrong:
                here = (column.is_not_distinct_from(place[n]) for n, column in enumerate(places))
                jobs = sa.select(_jobs).where(*here).with_for_update(skip_locked=True)
                for each in connection.execute(jobs).all():
                    job = job_of(each)
                    if why is not None and job.state is JobState.WAITING:
                        update = sa.update(_jobs).where(_jobs.c.id == job.id).values(reason=why)
                        connection.execute(update)
                        append_events(connection, job.id, [state_event(job.state, reason=why)], now)
                        continue
                    step(connection, job, moved[job.state], now, reason=why)
                    count += 1
        return count

    def renew(self, claim: JobClaim, lease_seconds: float) -> Job:
        """Extend a claim to `lease_seconds` from now, and return the job.

        Raises:
            StaleLeaseError: if another tuner holds the job, or the job was stopped or has ended.
        """
        with writing(self._engine) as connection:
            deadline = self._clock(connection) + lease_seconds
            return self._fenced_update(connection, claim, {"deadline": deadline})

    def progress(
        self,
        claim: JobClaim,
        progress: JobProgress,
        *,
        event: JsonObject | None = None,
    ) -> None:
        """Save the counters of a job, and add an event "progress" with them.

        `event` has further values for the event. If there are new trials, the count of attempts
        restarts at 1: earlier losses of tuners no longer count against the job.

        Raises:
            StaleLeaseError: if another tuner holds the job, or the job was stopped or has ended.
        """
        counters = asdict(progress)
        values: dict[str, Any] = dict(counters)
        more = _jobs.c.trials_done < progress.trials_done
        values["attempts"] = sa.case((more, 1), else_=_jobs.c.attempts)
        moved = sa.or_(
            more,
            _jobs.c.phase != progress.phase,
            _jobs.c.tasks_done != progress.tasks_done,
        )
        with writing(self._engine) as connection:
            now = self._clock(connection)
            values["progressed_at"] = sa.case((moved, now), else_=_jobs.c.progressed_at)
            self._fenced_update(connection, claim, values)
            data = {**counters, **(event or {})}
            append_events(connection, claim.job_id, [("progress", data)], now)

    def tell(self, claim: JobClaim, events: Sequence[EventData]) -> None:
        """Add events to a job.

        The job then counts as making progress, so it is not considered stalled.

        Raises:
            StaleLeaseError: if another tuner holds the job, or the job was stopped or has ended.
        """
        with writing(self._engine) as connection:
            now = self._clock(connection)
            self._fenced_update(connection, claim, {"progressed_at": now})
            append_events(connection, claim.job_id, events, now)

    def transition(
        self,
        claim: JobClaim,
        state: JobState,
        *,
        reason: str | None = None,
        error: str | None = None,
        result: JsonObject | None = None,
        artifact_digest: str | None = None,
    ) -> Job:
        """Change the state of a claimed job, add an event "state", and return the job.

        The claim ends unless the new state is running or verifying.

        Args:
            claim: the tuner's claim of the job.
            state: the new state.
            reason: why the job is in this state; None removes an earlier reason.
            error: the error message of a failed job; None keeps the stored one.
            result: the report of the job; None keeps the stored one.
            artifact_digest: the digest of the compiled model (artifact); None keeps the stored one.

        Raises:
            StateError: if the transition table does not allow the change.
            StaleLeaseError: if another tuner holds the job, or the job was stopped or has ended.
        """
        values: dict[str, Any] = {"reason": reason}
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
            return step(connection, job, state, self._clock(connection), **values)

    def release(self, claim: JobClaim, *, waits: str | None = None) -> None:
        """Return an unfinished job to the queue. The claim does not count as an attempt.

        If `waits` is given, the job waits for a worker instead, with this text as the reason.

        Raises:
            StaleLeaseError: if another tuner holds the job, or the job was stopped or has ended.
        """
        state = JobState.QUEUED if waits is None else JobState.WAITING
        with writing(self._engine) as connection:
            job = check_claim(connection, claim)
            attempts = max(0, job.attempts - 1)
            step(connection, job, state, self._clock(connection), attempts=attempts, reason=waits)

    @staticmethod
    def _fenced_update(
        connection: sa.Connection, claim: JobClaim, values: Mapping[str, Any]
    ) -> Job:
        update = sa.update(_jobs).where(holds(claim)).values(dict(values))
        row = connection.execute(update.returning(_jobs)).first()
        if row is None:
            raise stale(claim)
        return job_of(row)
