"""The value classes of the measurement queue: requests, leases and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

JsonObject = Mapping[str, Any]


class RequestState(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"  # `result` has the worker's result; each of its candidates may have failed
    FAILED = "failed"  # workers gave it up in all attempts; `error` has the reason
    EXPIRED = "expired"  # its workers were lost: status worker_lost for its candidates
    SET_ASIDE = "set_aside"  # several workers died with it: the candidates are blamed
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (RequestState.QUEUED, RequestState.LEASED)


class LeaseOutcome(StrEnum):
    """The outcome of a lease, such as completed, lost or cancelled."""

    COMPLETED = "completed"  # its result is the result of the request
    FAILED = "failed"  # the worker gave up the request
    REFUSED = "refused"  # the service rejected the result
    LOST = "lost"  # the worker was silent beyond the deadline, or was killed
    LATE = "late"  # a result arrived when another worker had the request, or it was done or
    # cancelled; it becomes COMPLETED if the other worker fails
    RELEASED = "released"  # the worker returned it without a result
    CANCELLED = "cancelled"  # the request was cancelled


class Blame(StrEnum):
    """The party that the service blames for a lease that ended without a result."""

    CANDIDATE = "candidate"
    WORKER = "worker"
    SERVICE = "service"


class Cause(StrEnum):
    """The reason that a worker reports when it gives up a lease."""

    KILLED = "killed"  # the worker's process died while it held the lease
    WORKER = "worker"  # this device cannot execute the request
    SERVICE = "service"  # the request is invalid


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A measurement request that a tuner submits.

    The tuner chooses `request_id`. So a restarted tuner that submits the same request again finds
    the earlier one and its result.
    """

    request_id: str
    target_key: str
    payload: JsonObject  # a tuner.protocol.messages.Request as JSON
    blob_digests: tuple[str, ...] = ()  # the blobs that the worker downloads
    job_id: str | None = None
    worker_id: str | None = None  # the only worker that may take it
    max_attempts: int = 5
    priority: int = 0  # higher first, then the oldest


@dataclass(frozen=True, slots=True)
class Lease:
    """A measurement request that a worker has leased."""

    lease_id: str
    request_id: str
    job_id: str | None
    target_key: str
    payload: JsonObject
    blob_digests: tuple[str, ...]
    worker_id: str
    attempt: int  # 1, 2, ...
    deadline: float


@dataclass(frozen=True, slots=True)
class Held:
    """A lease and the payload of its request, against which the worker's result is checked."""

    lease_id: str
    request_id: str
    payload: JsonObject


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """One lease in the history of a request: which worker had it, and how it ended."""

    lease_id: str
    request_id: str
    worker_id: str
    token_id: str | None
    attempt: int
    taken_at: float
    deadline: float
    ended_at: float | None
    outcome: LeaseOutcome | None
    blame: Blame | None
    error: str | None
    late_result: JsonObject | None


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """The state and the outcome of a measurement request, as tuners read it."""

    request_id: str
    job_id: str | None
    state: RequestState
    attempt: int
    worker_id: str | None  # the last worker that had it
    result: JsonObject | None
    error: str | None
    created_at: float
    finished_at: float | None
    acknowledged: bool  # the tuner has stored the outcome


class Completion(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # this result was saved before: the worker may delete it
    LATE = "late"  # stored with the lease; not accepted while another worker has the request


@dataclass(frozen=True, slots=True)
class Expiry:
    """The ids of the requests whose leases `LeaseStore.expire` ended.

    Attributes:
        requeued: requests that are queued again.
        lost: requests that have expired, because no attempts are left.
        set_aside: requests that are not offered again, because several workers disappeared while
            they executed them.
    """

    requeued: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()  # without remaining attempts
    set_aside: tuple[str, ...] = ()  # under which several workers died

    @property
    def count(self) -> int:
        return len(self.requeued) + len(self.lost) + len(self.set_aside)
