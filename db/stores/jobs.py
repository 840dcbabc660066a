"""Jobs, which are users' requests to tune a model, and the operations of users on jobs."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError, QuotaError
from tilewright.db.job_states import FINAL_STATES, JobState
from tilewright.db.models import ModelRow, TokenRow
from tilewright.db.stores.blob_references import BlobKind, refer
from tilewright.db.stores.events import append_events
from tilewright.db.stores.job_claims import JobClaims
from tilewright.db.stores.job_rows import (
    Job,
    JobClaim,
    JobProgress,
    JsonObject,
    check_claim,
    get_job,
    job_of,
    jobs_table,
    seen_jobs,
    state_event,
    step,
)
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.statements import chunks, table_of, upsert

__all__ = ["Job", "JobClaim", "JobProgress", "JobStore", "check_claim"]

_jobs = jobs_table
_newest_first = PageOrder((_jobs.c.created_at, _jobs.c.id))
_without_results = [
    sa.null().label(column.name) if column is _jobs.c.result else column for column in _jobs.columns
]
_models = table_of(ModelRow)
_tokens = table_of(TokenRow)
_ended = sorted(state.value for state in FINAL_STATES)


class JobStore(JobClaims):
    """The job queue, with the operations of users and of tuners."""

    def create(
        self,
        model_digest: str,
        target: str,
        target_key: str,
        *,
        worker_id: str | None = None,
        threads: int = 1,
        numerics: str = "fast",
        options: JsonObject | None = None,
        samples: Sequence[str] = (),
        priority: int = 0,
        wait_seconds: float | None = None,
        waits: str | None = None,
        owner: str | None = None,
        max_open: int | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Create a job with its first event, and return the job.

        If the owner has already created a job with the same idempotency key, return that job
        instead, regardless of quotas.

        Args:
            model_digest: the SHA-256 of the model to tune.
            target: the target as the user named it, such as "x86-64-v3".
            target_key: the SHA-256 that identifies the target in records.
            worker_id: the only worker that may measure; None for all workers of the target.
            threads, numerics, options: the settings of the job.
            samples: digests of sample inputs, which are kept until the job ends.
            priority: the highest comes first among jobs of the same owner.
            wait_seconds: the longest wait for a worker; None for the service's setting.
            waits: if given, the job waits for a worker for this reason. Otherwise it is queued.
            owner: the id of the access token with which the job was submitted; None without one.
            max_open: the quota of open jobs, unless the owner's token has its own.
            idempotency_key: the client's name for this request.

        Raises:
            NotFoundError: if the model is unknown.
            QuotaError: if the owner has too many open jobs.
        """
        state = JobState.QUEUED if waits is None else JobState.WAITING
        row = {
            "id": uuid.uuid4().hex,
            "state": state.value,
            "model_digest": model_digest,
            "target": target,
            "target_key": target_key,
            "worker_id": worker_id,
            "threads": threads,
            "numerics": numerics,
            "options": dict(options or {}),
            "priority": priority,
            "wait_seconds": wait_seconds,
            "reason": waits,
            "owner": owner or "",
            "idempotency_key": idempotency_key,
            "fencing_token": 0,
            "attempts": 0,
            "event_sequence": 0,
            **asdict(JobProgress()),
        }
        same = sa.and_(_jobs.c.owner == (owner or ""), _jobs.c.idempotency_key == idempotency_key)
        with writing(self._engine) as connection:
            now = self._clock(connection)
            known = sa.select(_models.c.digest).where(_models.c.digest == model_digest)
            # locked: retention must not remove it before the job names it
            known = known.with_for_update(read=True, key_share=True)
            if connection.execute(known).first() is None:
                raise NotFoundError("model", model_digest)
            if idempotency_key is not None:
                first = connection.execute(sa.select(_jobs).where(same)).first()
                if first is not None:
                    return job_of(first)
            if owner is not None:
                _check_quota(connection, owner, max_open)
            made = connection.execute(
                upsert(connection, _jobs)
                .values(**row, created_at=now, progressed_at=now)
                .on_conflict_do_nothing(index_elements=[_jobs.c.owner, _jobs.c.idempotency_key])
                .returning(_jobs)
            ).first()
            if made is None:  # a concurrent request with the same key created the job first
                return job_of(connection.execute(sa.select(_jobs).where(same)).one())
            refer(connection, BlobKind.SAMPLES, made.id, samples)
            append_events(connection, made.id, [state_event(state, reason=waits)], now)
            return job_of(made)

    def get(self, job_id: str, sees: str | None = None) -> Job:
        """Return the job with this id, or the only job whose id starts with `job_id`.

        `sees` is the name of an owner; only the owner's jobs are found (`Token.sees`). None for all
        jobs.

        Raises:
            NotFoundError: if no such job has this id, or several ids start with it.
        """
        with reading(self._engine) as connection:
            return get_job(connection, job_id, sees=sees)

    def seen(self, job_ids: Collection[str], sees: str | None) -> Collection[str]:
        """Return the ids among `job_ids` whose jobs an owner may see.

        `sees` is the name of the owner (`Token.sees`). If it is None, all jobs may be seen, and
        `job_ids` is returned without a query.
        """
        if sees is None:
            return job_ids
        found: set[str] = set()
        with reading(self._engine) as connection:
            for some in chunks(sorted(set(job_ids))):
                query = sa.select(_jobs.c.id).where(_jobs.c.id.in_(some), *seen_jobs(sees))
                found.update(connection.execute(query).scalars())
        return found

    def list(
        self,
        *,
        owner: str | None = None,
        sees: str | None = None,
        state: JobState | None = None,
        results: bool = True,
        limit: int = 100,
        after: Position | None = None,
    ) -> Page[Job]:
        """Return a page of jobs, newest first.

        Args:
            owner: the id of the token that created the jobs.
            sees: the name of an owner; only the owner's jobs are listed (`Token.sees`).
            state: the state of the jobs.
            results: whether to read the results, which may be long; otherwise they are None.
            limit: the largest number of jobs.
            after: the position `Page.next` of the previous page.

        Raises:
            PositionError: if no job can have the position `after`.
        """
        query = sa.select(*_jobs.columns) if results else sa.select(*_without_results)
        query = query.where(*seen_jobs(sees))
        if owner is not None:
            query = query.where(_jobs.c.owner == owner)
        if state is not None:
            query = query.where(_jobs.c.state == state.value)
        with reading(self._engine) as connection:
            return _newest_first.page(connection, query, job_of, limit, after)

    def counts(self) -> Mapping[JobState, int]:
        """Return the number of jobs in each state, including 0 for states without jobs."""
        query = sa.select(_jobs.c.state, sa.func.count()).group_by(_jobs.c.state)
        with reading(self._engine) as connection:
            found = {row[0]: row[1] for row in connection.execute(query)}
        return {state: found.get(state.value, 0) for state in JobState}

    def cancel(self, job_id: str) -> Job:
        """End a job at once, and cancel its measurement requests. Return the job.

        A tuner that holds the job gets a StaleLeaseError at its next write. A job that has ended
        does not change, so cancelling twice is not an error.

        Raises:
            NotFoundError: if no job has this id.
        """
        with writing(self._engine) as connection:
            job = get_job(connection, job_id, lock=True)
            if job.state.final:
                return job
            return step(connection, job, JobState.CANCELLED, self._clock(connection))

    def pause(self, job_id: str) -> Job:
        """Stop a job until `resume`, and cancel its measurement requests. Return the job.

        Its trials are kept. Pausing twice is not an error.

        Raises:
            NotFoundError: if no job has this id.
            StateError: if the job has ended.
        """
        with writing(self._engine) as connection:
            job = get_job(connection, job_id, lock=True)
            if job.state is JobState.PAUSED:
                return job
            return step(connection, job, JobState.PAUSED, self._clock(connection))

    def resume(self, job_id: str) -> Job:
        """Queue a paused job again. Return the job.

        The job continues from the trials that it has stored. A job that is not paused does not
        change.

        Raises:
            NotFoundError: if no job has this id.
            StateError: if the job has ended.
        """
        with writing(self._engine) as connection:
            job = get_job(connection, job_id, lock=True)
            if not (job.state is JobState.PAUSED or job.state.final):
                return job
            return step(connection, job, JobState.QUEUED, self._clock(connection))


def _check_quota(connection: sa.Connection, owner: str, max_open: int | None) -> None:
    """Raise QuotaError if the owner already has as many open jobs as its quota allows.

    The limit is the quota of the owner's token, or else `max_open`; None means no limit. The
    token's row is locked, so that two concurrent requests cannot both create the last allowed job.
    """
    token = sa.select(_tokens.c.name, _tokens.c.max_open_jobs).where(_tokens.c.id == owner)
    row = connection.execute(token.with_for_update()).first()
    name, limit = owner, max_open
    if row is not None:
        name = row.name
        limit = max_open if row.max_open_jobs is None else row.max_open_jobs
    if limit is None:
        return
    mine = sa.select(sa.func.count()).where(_jobs.c.owner == owner, _jobs.c.state.not_in(_ended))
    count = connection.execute(mine).scalar_one()
    if count >= limit:
        raise QuotaError(
            "open-jobs",
            limit,
            f"token '{name}' has {count} open jobs, and its quota of open jobs is {limit}",
        )
