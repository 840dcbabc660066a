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
    """A worker's request to lease measurement requests.

    `claim_id` is a new random name for each claim. If the response is lost, the worker sends the
    claim again with the same `claim_id`, and gets the same leases.
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
    """A leased request, expanded for a device without NumPy.

    The field `plain` of `payload` is a JSON plan that fills the buffers; it has the digests of the
    arrays to download.
    """

    request_id: Id
    payload: dict[str, Any] = Field(examples=[{"kind": "measure", "candidates": [], "plain": []}])
    signature: Base64 = Field(description="Of the request and its payload, by the service's key")


class ResultRequest(RequestBody):
    """The result of a lease. Sending it again with the same `result_key` has no further effect."""

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
    """A worker's report that it cannot execute a request.

    `cause` is "killed" if the worker's process was killed meanwhile, "worker" if the device cannot
    execute the request, and "service" if the request is invalid.
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
