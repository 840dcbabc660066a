"""Questions for schedules, and their answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from service.api.schemas.bodies import RequestBody, View
from service.api.schemas.fields import Digest, Numerics


class IntervalView(View):
    """An interval for the undisturbed time of a run, in seconds; `high` is the fastest sample."""

    low: float
    high: float
    coverage: float


class RecordView(View):
    """The best schedule known, the measurement that says so, and how sure its time is."""

    workload_key: str
    target_key: str
    threads: int
    numerics: str
    schedule: dict[str, Any]
    run_seconds: float
    backing: str  # once, one-worker, one-owner, two-owners, imported, own: whose word that is
    interval: IntervalView | None = None
    measurement: dict[str, Any]
    codegen_version: str
    compiler_version: str


class LookupRequest(RequestBody):
    """Schedules in bulk: of the named workloads, or of all that a model is cut into."""

    workloads: list[Digest] | None = Field(None, max_length=10_000)
    model: Digest | None = None
    dims: dict[str, Annotated[int, Field(ge=1, le=1 << 40)]] = Field(
        default_factory=dict, max_length=64
    )
    target: str = Field("host", min_length=1, max_length=200, description="A name or a key")
    threads: int = Field(1, ge=1, le=256)
    numerics: Numerics = "fast"


class LookupEntry(View):
    workload_key: str
    name: str
    count: int
    record: RecordView | None


class LookupView(View):
    target_key: str
    threads: int
    numerics: str
    known: int
    schedules: list[LookupEntry]
