"""Records with what became of them, as they travel over HTTP."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.api.schemas.bodies import RequestBody, View
from service.api.schemas.lookups import RecordView


class StoredRecordView(View):
    """A record, what became of it, and what a second measurement said."""

    id: str
    state: str  # provisional, confirmed, superseded, disputed, withdrawn
    backing: str  # once, one-worker, one-owner, two-owners, imported, own: whose word it is
    reason: str
    job_id: str
    worker: str
    stored_at: float
    confirmation: dict[str, Any] | None
    record: RecordView


class WithdrawRequest(RequestBody):
    """What to take back: records by their ids, or all that workers measured, by name or id."""

    reason: str = Field(min_length=1, max_length=500)
    records: list[str] = Field(default_factory=list, max_length=10_000)
    workers: list[str] = Field(default_factory=list, max_length=1000)


class WithdrawView(View):
    """What was taken back, what is served again in its place, and which jobs were told."""

    records: list[str]
    restored: list[str]
    trials: int
    verdicts: int
    plans: int
    jobs: list[str]


class RefusedLine(View):
    line: int
    reason: str


class ImportView(View):
    """What became of the lines."""

    served: int
    slower: int
    known: int
    refused: list[RefusedLine]


class AnswerView(View):
    """The schedule to use for a workload, what that rests on, and how sure it is.

    `expected_loss` is the share by which it is expected to be slower than what tuning would find;
    null if no measurement tells. `pairs` of measurements say so. `record` is what the schedule was
    tuned for.
    """

    match: str  # exact, same-instructions, nearest-shape, default
    sentence: str
    workload_key: str
    target_key: str
    threads: int
    numerics: str
    schedule: dict[str, Any]
    run_seconds: float | None
    expected_loss: float | None
    pairs: int
    distance: float | None
    record: StoredRecordView | None


class SigningKeyView(View):
    """The public half of the key with which this service signs records: Ed25519, base64."""

    public_key: str
