"""The values of the measurement queue: what is submitted, leased and reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
    """What a tuner submits. It names the request itself, which makes submitting idempotent: a
    restarted tuner that submits again finds the old request, and its result if it has one."""

    request_id: str
    target_key: str
    payload: JsonObject  # a tuner.measure.run_wire.Request as JSON
    blob_digests: tuple[str, ...] = ()  # what the worker fetches
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
    job_id: str | None
    state: RequestState
    attempt: int
    worker_id: str | None  # the last one that took it
    result: JsonObject | None
    error: str | None
    created_at: float
    finished_at: float | None
    acknowledged: bool  # the tuner has stored what came of it


class Completion(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # this result was saved before: the worker may forget it


@dataclass(frozen=True, slots=True)
class Expiry:
    """What `expire` found."""

    requeued: tuple[str, ...] = ()  # request ids
    lost: tuple[str, ...] = ()  # request ids that have no attempt left
