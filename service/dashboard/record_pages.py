"""Pages of records: coverage by operator and target, single records, export and import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from tilewright.db.review_state import Attestation, ReviewState
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.audit import AuditDep
from tilewright.service.api.deps import Admin, Reader, SettingsDep, StorageDep
from tilewright.service.api.errors import invalid
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.routes import records as routes
from tilewright.service.api.schemas.records import CoverageView, WithdrawRequest
from tilewright.service.dashboard.forms import checked_body, form_fields, form_file
from tilewright.service.dashboard.pages import next_link, page, server_of
from tilewright.service.dashboard.session import PageRoute
from tilewright.service.jobs.device.job_target import target_names
from tilewright.service.show.table import Cell, CellKind, Column, Table, table
from tilewright.service.show.tables.records import page as page_columns
from tilewright.service.show.units import count, threads_text

router = APIRouter(route_class=PageRoute)

REFUSED = 100
"""Limit of the rejected lines of an import that the page lists with their errors."""


RecordGroup = tuple[str, str, int]
"""A group of records by target and threads: the target's name, the target key, and the number of
threads."""


def _coverage(found: Sequence[CoverageView], groups: Sequence[RecordGroup]) -> Table:
    """Return a table of the number of tuned workloads, with a row per operator.

    Each column is a group of records with the same target and number of threads.
    """
    counts = {(e.operator, (e.target, e.target_key, e.threads)): e.workloads for e in found}

    def operator(name: str) -> Cell:
        return Cell(name or "of another release", f"records?named={quote(name)}" if name else "")

    def column(group: RecordGroup) -> Column[str]:
        title = f"{group[0] or group[1][:12]}, {threads_text(group[2])}"
        return Column(title, lambda name: count(counts.get((name, group))), verbatim=True)

    columns = (Column("operator", operator, CellKind.NAME), *map(column, groups))
    return table(columns, sorted({each.operator for each in found}))


@router.get("/records")
def records(
    request: Request,
    response: Response,
    storage: StorageDep,
    token: Reader,
    pages: PagesDep,
    named: routes.NamedQuery = None,
    target: routes.TargetQuery = None,
    state: str = "",
) -> Response:
    chosen = next((each for each in ReviewState if each.value == state), None)
    found = routes.list_records(
        storage, token, pages, named=named or None, target=target or None, state=chosen
    )
    coverage = routes.get_coverage(storage, token)
    groups = sorted({(each.target, each.target_key, each.threads) for each in coverage})
    return page(
        request,
        "records.html",
        records=table(page_columns(target_names(storage)), found),
        coverage=_coverage(coverage, groups),
        targets={key: name or key[:12] for name, key, _ in groups},
        states=[each.value for each in ReviewState],
        state="" if chosen is None else chosen.value,
        named=named or "",
        target=target or "",
        next=next_link(request, response),
        server=server_of(request),
        may_change=token.allows(Scope.ADMIN),
    )


@router.get("/records/export", response_class=StreamingResponse)
def export(
    storage: StorageDep,
    settings: SettingsDep,
    token: Reader,
    target: routes.TargetQuery = None,
) -> Response:
    """Return a download with one signed JSON line for each tuning record that lookups return.

    `target` selects one target; None selects all.
    """
    answer = routes.export(storage, settings, token, target=target or None)
    answer.headers["Content-Disposition"] = 'attachment; filename="records.jsonl"'
    return answer


@router.post("/records/import")
async def take_in(
    request: Request, storage: StorageDep, settings: SettingsDep, audit: AuditDep, token: Admin
) -> Response:
    """Import records from an uploaded file of signed JSON lines, and show the result."""
    lines = await form_file(request, "records")
    if not lines.strip():
        raise invalid("no file was chosen, or the file is empty")
    done = await run_in_threadpool(routes.taken_in, lines, storage, settings, audit)
    return page(request, "records_imported.html", done=done, shown=REFUSED)


@router.post("/records/{record_id}/withdraw")
async def withdraw(
    request: Request, record_id: str, storage: StorageDep, audit: AuditDep, token: Admin
) -> Response:
    """Withdraw one record, or all records of the worker that measured it, and show the result."""
    form = await form_fields(request)
    found = await run_in_threadpool(routes.shown_record, record_id, storage, token)
    of_worker = form.get("what") == ["worker"]
    if of_worker and not found.worker:
        raise invalid("what: the worker that measured this record is unknown")
    body = checked_body(
        WithdrawRequest,
        reason=form.get("reason", [""])[0].strip(),
        records=[] if of_worker else [record_id],
        workers=[found.worker] if of_worker else [],
    )
    done = await run_in_threadpool(routes.withdraw, body, storage, audit, token)
    return page(request, "records_withdrawn.html", stored=found, done=done, reason=body.reason)


@router.get("/records/{record_id}")
def record(request: Request, record_id: str, storage: StorageDep, token: Reader) -> Response:
    """Show one record: its schedule, its measurements, and the workers that measured it.

    The measurements contain the results of checking the kernel's output.
    """
    found = routes.shown_record(record_id, storage, token)
    names = target_names(storage)
    workload = storage.workloads.workloads([found.record.workload_key])
    worker = storage.workers.presences([found.worker]).get(found.worker)
    return page(
        request,
        "record.html",
        stored=found,
        may_change=token.allows(Scope.ADMIN),
        target=names.get(found.record.target_key, found.record.target_key[:12]),
        worker="" if worker is None else worker.name,
        attestation=Attestation(found.attestation).sentence,
        measurement=json.dumps(found.record.measurement, indent=2),
        confirmation=found.confirmation and json.dumps(found.confirmation, indent=2),
        workload=workload.get(found.record.workload_key, "This service has not its text."),
    )
