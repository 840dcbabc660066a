"""Leases and results, as they travel over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.api.schemas.bodies import RequestBody, View
from service.api.schemas.fields import LeaseId


class ClaimRequest(RequestBody):
    """`claim_id` is the worker's name for this claim, never used before. Sent again because the
    answer was lost, the claim brings the same leases."""

    worker_id: str = Field(max_length=64)
    claim_id: str | None = Field(None, pattern="^[0-9a-f]{32}$")
    limit: int = Field(1, ge=1, le=64)
    wait_seconds: float = Field(0.0, ge=0, le=120, allow_inf_nan=False)


class LeaseView(View):
    lease_id: str
    request_id: str
    job_id: str | None
    target_key: str
    payload: dict[str, Any]
    signature: str = Field(description="Of the request and its payload, by the service's key")
    blob_digests: list[str]
    attempt: int
    deadline: float


class ClaimView(View):
    leases: list[LeaseView]


class ResultRequest(RequestBody):
    """The outcome of a lease. Sending the same `result_key` again changes nothing."""

    worker_id: str = Field(max_length=64)
    result_key: str = Field(min_length=1, max_length=200)
    result: dict[str, Any]


class ResultView(View):
    completion: str


class FailureRequest(RequestBody):
    """The worker does not work on the request: it was `killed` with it in its hand, this device
    cannot (`worker`), or what the service sent cannot be worked on (`service`)."""

    worker_id: str = Field(max_length=64)
    cause: Literal["killed", "worker", "service"]
    error: str = Field(max_length=10_000)


class FailureView(View):
    state: str


class ReleaseRequest(RequestBody):
    worker_id: str = Field(max_length=64)
    leases: list[LeaseId] = Field(max_length=256)


class ReleaseView(View):
    released: int
