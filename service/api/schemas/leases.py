"""Request and response bodies for leases and results."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tilewright.service.api.schemas.bodies import RequestBody, View, shown
from tilewright.service.api.schemas.fields import (
    SHOWN_ID,
    SHOWN_MEASUREMENT,
    Base64,
    Id,
    Key,
    LeaseId,
    Time,
)


class ClaimRequest(RequestBody):
    """A request for leases on measurement requests.

    `claim_id` is unique per claim. A claim that is repeated after a lost answer returns the same
    leases.
    """

    model_config = shown(worker_id=SHOWN_ID, claim_id=SHOWN_ID, limit=2, wait_seconds=30.0)

    worker_id: str = Field(max_length=64)
    claim_id: str | None = Field(None, pattern="^[0-9a-f]{32}$")
    limit: int = Field(1, ge=1, le=64)
    wait_seconds: float = Field(0.0, ge=0, le=120, allow_inf_nan=False)


class LeaseView(View):
    lease_id: Id
    request_id: Id
    job_id: Id | None
    target_key: Key
    payload: dict[str, Any] = Field(examples=[{"kind": "measure", "candidates": []}])
    signature: Base64 = Field(description="Of the request and its payload, by the service's key")
    blob_digests: list[Key]
    attempt: int
    deadline: Time


class ClaimView(View):
    leases: list[LeaseView]


class PlainRequest(RequestBody):
    model_config = shown(worker_id=SHOWN_ID)

    worker_id: str = Field(max_length=64)


class PlainView(View):
    """An expanded request: a JSON plan of numbers and names.

    The payload's field `plain` has the digests of its arrays.
    """

    request_id: Id
    payload: dict[str, Any] = Field(examples=[{"kind": "measure", "candidates": [], "plain": []}])
    signature: Base64 = Field(description="Of the request and its payload, by the service's key")


class ResultRequest(RequestBody):
    """The outcome of a lease. Sending the same `result_key` again changes nothing."""

    model_config = shown(
        worker_id=SHOWN_ID,
        result_key=SHOWN_ID,
        result={"kind": "measure", "measurements": [SHOWN_MEASUREMENT]},
    )

    worker_id: str = Field(max_length=64)
    result_key: str = Field(min_length=1, max_length=200)
    result: dict[str, Any]


class ResultView(View):
    completion: str = Field(examples=["accepted"])


class FailureRequest(RequestBody):
    """A worker's failure to work on a request.

    The field `cause` is "killed" if the process was killed during the work, "worker" if the device
    cannot do it, and "service" if the service's request is invalid.
    """

    model_config = shown(worker_id=SHOWN_ID, cause="worker", error="no memory for the inputs")

    worker_id: str = Field(max_length=64)
    cause: Literal["killed", "worker", "service"]
    error: str = Field(max_length=10_000)


class FailureView(View):
    state: str = Field(examples=["queued"])


class ReleaseRequest(RequestBody):
    model_config = shown(worker_id=SHOWN_ID, leases=[SHOWN_ID])

    worker_id: str = Field(max_length=64)
    leases: list[LeaseId] = Field(max_length=256)


class ReleaseView(View):
    released: int
