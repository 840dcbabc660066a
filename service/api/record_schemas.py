"""Records with what became of them, as they travel over HTTP."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from db.stores.record_ledger import StoredRecord
from db.stores.records import RecordState
from service.api.schemas import RecordView, RequestBody, View
from service.api.views import record_view
from service.jobs.record_exchange import Imported
from service.jobs.withdrawal import Withdrawal


class StoredRecordView(View):
    """A record, what became of it, and what a second measurement said."""

    id: str
    state: RecordState
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


class SigningKeyView(View):
    """The public half of the key with which this service signs records: Ed25519, base64."""

    public_key: str


def stored_record_view(stored: StoredRecord) -> StoredRecordView:
    second = stored.confirmation
    return StoredRecordView(
        id=stored.id,
        state=stored.state,
        reason=stored.reason,
        job_id=stored.job_id,
        worker=stored.worker,
        stored_at=stored.stored_at,
        confirmation=None if second is None else second.to_json(),
        record=record_view(stored.record),
    )


def withdraw_view(done: Withdrawal) -> WithdrawView:
    return WithdrawView(
        records=[one.id for one in done.withdrawn.records],
        restored=list(done.withdrawn.restored),
        trials=done.withdrawn.trials,
        verdicts=done.verdicts,
        plans=done.plans,
        jobs=list(done.told),
    )


def import_view(done: Imported) -> ImportView:
    return ImportView(
        served=done.served,
        slower=done.slower,
        known=done.known,
        refused=[RefusedLine(line=number, reason=reason) for number, reason in done.refused],
    )
