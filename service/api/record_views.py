"""Conversion of records and the results of record operations to response bodies."""

from __future__ import annotations

from tilewright.db.stores.claim_rows import StoredRecord
from tilewright.service.api.schemas.records import (
    AnswerView,
    ImportView,
    RefusedLine,
    StoredRecordView,
    WithdrawView,
)
from tilewright.service.api.views import record_view
from tilewright.service.jobs.evidence.withdrawal import Withdrawal
from tilewright.service.jobs.knowledge.nearest import Answer
from tilewright.service.jobs.knowledge.record_exchange import Imported
from tilewright.tuner.protocol.measurement import RecordKey


def stored_record_view(stored: StoredRecord, name: str = "") -> StoredRecordView:
    """Return the response body for a stored record. `name` is the readable name of its workload."""
    second = stored.confirmation
    return StoredRecordView(
        id=stored.id,
        name=name,
        state=stored.state,
        attestation=stored.attestation,
        reason=stored.reason,
        job_id=stored.job_id,
        worker=stored.worker,
        stored_at=stored.stored_at,
        confirmation=None if second is None else second.to_json(),
        record=record_view(stored.record, stored.attestation),
    )


def withdraw_view(done: Withdrawal) -> WithdrawView:
    return WithdrawView(
        records=[one.id for one in done.withdrawn.records],
        restored=list(done.withdrawn.restored),
        trials=done.withdrawn.trials,
        verdicts=done.withdrawn.races,
        jobs=list(done.notified),
    )


def import_view(done: Imported) -> ImportView:
    return ImportView(
        served=done.served,
        slower=done.slower,
        known=done.known,
        refused=[RefusedLine(line=number, reason=reason) for number, reason in done.refused],
    )


def answer_view(key: RecordKey, answer: Answer, name: str = "") -> AnswerView:
    """Return the response body for `answer`, the best known schedule for the workload of `key`.

    The answer's record may belong to a similar workload; `name` is the readable name of that
    workload.
    """
    return AnswerView(
        **key.to_json(),
        match=answer.match,
        sentence=answer.sentence,
        schedule=answer.schedule.to_json(),
        run_seconds=answer.run_seconds,
        expected_loss=answer.expected_loss,
        pairs=answer.pairs,
        distance=answer.distance,
        record=None if answer.record is None else stored_record_view(answer.record, name),
    )
