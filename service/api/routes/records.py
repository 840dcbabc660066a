"""Routes of tuning records, and of the key that signs them.

Records can be listed, counted, withdrawn, exported, imported and explained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from tilewright.compiler.limits import MAX_THREADS, Numerics
from tilewright.compiler.mode import Mode
from tilewright.db.review_state import ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.audit import Action
from tilewright.db.stores.tokens import Token
from tilewright.service.api.audit import AuditDep, Auditor
from tilewright.service.api.conditional import NOT_MODIFIED, tagged
from tilewright.service.api.deps import Admin, JobTargetQuery, Reader, SettingsDep, StorageDep
from tilewright.service.api.errors import invalid
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.limiter import Limited, LimiterDep
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.record_views import (
    answer_view,
    import_view,
    stored_record_view,
    withdraw_view,
)
from tilewright.service.api.refusals import refuses
from tilewright.service.api.resource_views import without_jobs_of_others
from tilewright.service.api.schemas.fields import Digest, Threads
from tilewright.service.api.schemas.records import (
    AnswerView,
    CoverageView,
    ImportView,
    SigningKeyView,
    StoredRecordView,
    WithdrawRequest,
    WithdrawView,
)
from tilewright.service.jobs.device.job_target import target_key_of, target_names, target_of_key
from tilewright.service.jobs.evidence.withdrawal import withdraw_records
from tilewright.service.jobs.knowledge.families import name_workloads
from tilewright.service.jobs.knowledge.nearest import best_answer
from tilewright.service.jobs.knowledge.record_exchange import (
    Imported,
    export_records,
    import_records,
)
from tilewright.service.settings import Settings
from tilewright.service.signing import signing_key
from tilewright.tuner.protocol.measurement import RecordKey

router = APIRouter(tags=["records"], route_class=GatedRoute)

LINES = "application/x-ndjson"

TargetQuery = Annotated[
    str | None, Query(max_length=200, description="Target key or name, or a worker")
]
NamedQuery = Annotated[
    str | None, Query(max_length=200, description="A part of the workload's name, such as conv 3x3")
]
ThreadsQuery = Annotated[int | None, Query(ge=1, le=MAX_THREADS)]

_LINE = '{"record": {"workload_key": "9f86..."}, "key": "11qY...", "signature": "q83v..."}\n'

_LINES_CONTENT = {LINES: {"schema": {"type": "string"}, "example": _LINE}}

_LINES_BODY = {"requestBody": {"required": True, "content": _LINES_CONTENT}}

_LINES_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": _LINES_CONTENT}}


@router.get("/records")
def list_records(
    storage: StorageDep,
    token: Reader,
    pages: PagesDep,
    workload: Digest | None = None,
    target: TargetQuery = None,
    threads: ThreadsQuery = None,
    numerics: Numerics | None = None,
    worker: Annotated[str | None, Query(max_length=200)] = None,
    state: ReviewState | None = None,
    named: NamedQuery = None,
) -> list[StoredRecordView]:
    """List the tuning records that match all given filters, newest first."""
    name_workloads(storage)
    found = storage.ledger.list(
        workload_key=workload,
        target_key=None if target is None else target_key_of(target, storage),
        threads=threads,
        numerics=numerics,
        worker=worker,
        state=state,
        named=named,
        limit=pages.limit,
        after=pages.after,
    )
    names = storage.shapes.names([one.record.key.workload_key for one in found])
    views = [
        stored_record_view(one, names.get(one.record.key.workload_key, ""))
        for one in pages.linked(found)
    ]
    return without_jobs_of_others(views, storage, token)


@router.get("/records:coverage")
def get_coverage(storage: StorageDep, _: Reader) -> list[CoverageView]:
    """Count the workloads with a served record, by operator, target and number of threads.

    The served record of a workload is the one that lookups return.
    """
    name_workloads(storage)
    names = target_names(storage)
    return [
        CoverageView(target=names.get(one.target_key, ""), **asdict(one))
        for one in storage.shapes.coverage()
    ]


@router.get("/records/{record_id}", response_model=StoredRecordView, responses=NOT_MODIFIED)
def get_record(record_id: str, request: Request, storage: StorageDep, token: Reader) -> Response:
    """Return a tuning record, its review state, and its second measurement if there was one."""
    return tagged(request, shown_record(record_id, storage, token).model_dump_json().encode())


def shown_record(record_id: str, storage: Storage, token: Token) -> StoredRecordView:
    """Return the response body for a record, with the readable name of its workload.

    The id of its job is left out if the token may not see the job.

    Raises:
        NotFoundError: if no record has this id, or several ids start with it.
    """
    stored = storage.ledger.get(record_id)
    name_workloads(storage)
    key = stored.record.key.workload_key
    view = stored_record_view(stored, storage.shapes.names([key]).get(key, ""))
    return without_jobs_of_others([view], storage, token)[0]


@router.post("/records:withdraw")
@refuses(404)
def withdraw(body: WithdrawRequest, storage: StorageDep, audit: AuditDep, _: Admin) -> WithdrawView:
    """Withdraw records that are wrong, or all records of faulty workers.

    Jobs that used them are notified.
    """
    if not body.records and not body.workers:
        raise invalid("body: give 'records' or 'workers'")
    with storage.together():
        done = withdraw_records(storage, body.reason, record_ids=body.records, workers=body.workers)
        audit(
            Action.RECORDS_WITHDRAWN,
            ", ".join((*done.withdrawn.named, *body.workers)),
            reason=body.reason,
            records=[record.id for record in done.withdrawn.records],
            trials=done.withdrawn.trials,
        )
    return withdraw_view(done)


@router.get("/records:export", response_class=StreamingResponse, responses=_LINES_ANSWER)
def export(
    storage: StorageDep,
    settings: SettingsDep,
    _: Reader,
    target: TargetQuery = None,
    threads: ThreadsQuery = None,
    numerics: Numerics | None = None,
) -> StreamingResponse:
    """Export the records that lookups return, one signed JSON line per record."""
    key = signing_key(settings.signing_key_file)
    target_key = None if target is None else target_key_of(target, storage)

    def lines() -> Iterator[str]:
        found = export_records(
            storage, key, target_key=target_key, threads=threads, numerics=numerics
        )
        for line in found:
            yield line + "\n"

    return StreamingResponse(lines(), media_type=LINES)


@router.post("/records:import", openapi_extra=_LINES_BODY)
async def import_(
    request: Request, storage: StorageDep, settings: SettingsDep, audit: AuditDep, _: Admin
) -> ImportView:
    """Import the lines of another service's `records:export`, if their signing key is trusted here.

    Each transaction imports 500 lines. If the import fails midway, earlier lines stay imported, and
    all lines may be sent again.
    """
    lines = await request.body()
    return await run_in_threadpool(taken_in, lines, storage, settings, audit)


def taken_in(lines: bytes, storage: Storage, settings: Settings, audit: Auditor) -> ImportView:
    """Import signed records, and add the counts to the audit log.

    `lines` has one signed record as JSON per line, as `records:export` returns them. Return the
    number of accepted lines by outcome, and each rejected line with the reason.
    """

    def note(done: Imported) -> None:
        audit(Action.RECORDS_IMPORTED, "records", **done.counts)

    text = lines.decode("utf-8", "replace")
    return import_view(import_records(text.split("\n"), storage, _trusted(settings), note))


@router.get("/schedules:explain")
@refuses(404)
def explain_schedule(
    storage: StorageDep,
    limiter: LimiterDep,
    token: Reader,
    workload: Annotated[Digest, Query(description="Workload key")],
    target: JobTargetQuery,
    threads: Threads = 1,
    numerics: Numerics = "fast",
) -> AnswerView:
    """Return the schedule to use for a workload, where it comes from, and its expected loss.

    The schedule comes from the first of these records that exists: the workload's own record; that
    of a workload that differs only in numbers such as scales; that for another target with the same
    instructions; that of the workload with the nearest sizes. Without any of these records, it is
    the untuned default schedule.
    """
    limiter.take(Limited.EXPLANATIONS)
    key = RecordKey(workload, target_key_of(target, storage), threads, numerics)
    mode = Mode(target_of_key(key.target_key, storage), threads, numerics)
    answer = best_answer(storage, workload, mode)
    if answer.record is None:
        return answer_view(key, answer)
    name_workloads(storage)
    of = answer.record.record.key.workload_key
    view = answer_view(key, answer, storage.shapes.names([of]).get(of, ""))
    assert view.record is not None
    (record,) = without_jobs_of_others([view.record], storage, token)
    return view.model_copy(update={"record": record})


@router.get("/signing-key")
def get_signing_key(settings: SettingsDep, _: Reader) -> SigningKeyView:
    """Return the public key that signs this service's records.

    Another service imports these records only if it trusts this key.
    """
    return SigningKeyView(public_key=signing_key(settings.signing_key_file).public)


def _trusted(settings: Settings) -> set[str]:
    return {signing_key(settings.signing_key_file).public, *settings.trusted_keys}
