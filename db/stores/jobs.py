"""Jobs: what a user asked for, who works on it, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock
from db.job_states import JobState

JsonObject = Mapping[str, Any]


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


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    state: JobState
    model_digest: str
    target: str  # as the user named it: "host", "x86-64-v3", ...
    target_key: str | None  # once the tuner has resolved it
    threads: int
    numerics: str  # "fast" | "strict"
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
        threads: int = 1,
        numerics: str = "fast",
        options: JsonObject | None = None,
        owner: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """A queued job, and its first event. The same owner and idempotency key give the first
        job back. Raises NotFoundError when the model is unknown."""
        raise NotImplementedError

    def get(self, job_id: str) -> Job:
        """Raises NotFoundError."""
        raise NotImplementedError

    def list(
        self,
        *,
        owner: str | None = None,
        state: JobState | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Sequence[Job]:
        """Newest first; `after` is the id the previous page ended with."""
        raise NotImplementedError

    def request_cancel(self, job_id: str) -> Job:
        """Cancel: at once when no tuner holds the job, else the tuner is told at its next renewal.

        A final job stays as it is (cancelling twice is no error). Raises NotFoundError.
        """
        raise NotImplementedError

    # the tuner's side

    def claim(
        self, tuner: str, lease_seconds: float, *, max_attempts: int = 5
    ) -> tuple[JobClaim, Job] | None:
        """Take the oldest job that is queued or whose tuner's lease has run out.

        The job becomes running with a higher fencing token. One that was claimed `max_attempts`
        times without any progress becomes failed instead. None when there is nothing to do.
        """
        raise NotImplementedError

    def renew(self, claim: JobClaim, lease_seconds: float) -> Job:
        """Move the deadline; look at `cancel_requested` of what comes back.

        Raises StaleLeaseError when another tuner has the job or it is final.
        """
        raise NotImplementedError

    def progress(
        self,
        claim: JobClaim,
        progress: JobProgress,
        *,
        target_key: str | None = None,
        event: JsonObject | None = None,
    ) -> None:
        """Save counters (and an event "progress" with the counters and what `event` adds).

        Raises StaleLeaseError.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def release(self, claim: JobClaim) -> None:
        """Give the job back unfinished: queued, and the claim does not count as an attempt.

        Raises StaleLeaseError.
        """
        raise NotImplementedError

    def check(self, claim: JobClaim) -> Job:
        """The job, if the claim still holds. Raises StaleLeaseError."""
        raise NotImplementedError
