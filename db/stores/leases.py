"""The queue of measurements: a tuner submits, workers lease, a lost worker's lease runs out.

States: queued -> leased -> done | failed | expired | cancelled, and back from leased to queued
when the lease ran out or was given back. `attempt` counts the leases that were not given back;
`fencing_token` grows with every lease, so that a worker that was written off cannot overwrite
what its successor measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock

JsonObject = Mapping[str, Any]


class RequestState(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"  # `result` holds what the worker sent; its candidates may have failed each
    FAILED = "failed"  # the worker could not work on the request at all: `error`
    EXPIRED = "expired"  # every worker that took it was lost: status worker_lost for its candidates
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (RequestState.QUEUED, RequestState.LEASED)


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What a tuner submits. `request_key` makes it idempotent: the same key is the same request,
    also across a restart of the tuner, and finds its result if it has one."""

    request_key: str
    target_key: str
    payload: JsonObject  # tuner.measure.wire.MeasureRequest as JSON
    blob_digests: tuple[str, ...] = ()  # the shared object, the expected output
    job_id: str | None = None
    worker_id: str | None = None  # only this worker may take it
    max_attempts: int = 3
    priority: int = 0  # higher first, then the oldest


@dataclass(frozen=True, slots=True)
class Lease:
    """A request in a worker's hands."""

    request_id: str
    job_id: str | None
    target_key: str
    payload: JsonObject
    blob_digests: tuple[str, ...]
    worker_id: str
    attempt: int  # 1, 2, ...
    fencing_token: int
    deadline: float


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """A request as the tuner sees it."""

    request_id: str
    request_key: str
    job_id: str | None
    state: RequestState
    attempt: int
    worker_id: str | None  # the last one that took it
    result: JsonObject | None
    error: str | None
    created_at: float
    finished_at: float | None


class Completion(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # this result was saved before: the worker may forget it


@dataclass(frozen=True, slots=True)
class Expiry:
    """What `expire` found."""

    requeued: tuple[str, ...] = ()  # request ids
    lost: tuple[str, ...] = ()  # request ids that have no attempt left


class LeaseStore:
    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    # the tuner's side

    def submit(self, requests: Sequence[NewRequest]) -> Sequence[str]:
        """Queue requests in one transaction; their ids, in order. A known key gives its old id."""
        raise NotImplementedError

    def status(self, request_ids: Sequence[str]) -> Mapping[str, RequestStatus]:
        """Where these requests stand; unknown ids are missing from the answer."""
        raise NotImplementedError

    def finished(self, request_ids: Sequence[str]) -> Mapping[str, RequestStatus]:
        """Those of the requests that are final: what a tuner polls."""
        raise NotImplementedError

    def of_job(self, job_id: str, *, unfinished: bool = False) -> Sequence[RequestStatus]:
        """The requests of a job, oldest first."""
        raise NotImplementedError

    def cancel(self, *, job_id: str | None = None, request_ids: Sequence[str] | None = None) -> int:
        """Cancel what is not final; how many. A worker notices at its next renewal."""
        raise NotImplementedError

    def prune(self, older_than_seconds: float) -> int:
        """Delete final requests that finished that long ago; how many."""
        raise NotImplementedError

    def blob_digests(self) -> frozenset[str]:
        """Blobs that requests still name: what a sweep must keep."""
        raise NotImplementedError

    # the worker's side

    def claim(
        self, worker_id: str, target_keys: Sequence[str], *, limit: int, lease_seconds: float
    ) -> Sequence[Lease]:
        """Take up to `limit` queued requests for these targets; empty when there is none.

        No request is ever in two claims: rows are locked and skipped on PostgreSQL, SQLite has
        one writer.
        """
        raise NotImplementedError

    def renew(
        self, worker_id: str, leases: Mapping[str, int], lease_seconds: float
    ) -> Mapping[str, float]:
        """request id -> new deadline, given request id -> fencing token.

        A request that is missing from the answer is no longer the worker's: it stops.
        """
        raise NotImplementedError

    def complete(
        self, request_id: str, fencing_token: int, result_key: str, result: JsonObject
    ) -> Completion:
        """Save a result. `result_key` names it: sending it again is DUPLICATE, no error.

        A late result is still welcome while nobody else has taken the request since.
        Raises StaleLeaseError (someone has, or the request is final), NotFoundError.
        """
        raise NotImplementedError

    def fail(
        self, request_id: str, fencing_token: int, error: str, *, retry: bool = False
    ) -> RequestState:
        """The worker cannot work on it (protocol, damaged blob). With retry, another may try.

        Raises StaleLeaseError, NotFoundError.
        """
        raise NotImplementedError

    def release(self, worker_id: str, leases: Mapping[str, int]) -> int:
        """Give leases back unmeasured (the worker shuts down); not an attempt. How many."""
        raise NotImplementedError

    # anybody's

    def expire(self) -> Expiry:
        """Requeue leases whose deadline is over with one attempt more, or end them as expired.

        Any process may call it, at any time, several at once.
        """
        raise NotImplementedError

    def depth(self, target_keys: Sequence[str] | None = None) -> Mapping[RequestState, int]:
        """How many requests are in which state: for metrics and long polls."""
        raise NotImplementedError
