"""Records: what is known for which operators and targets, and each with what it rests on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from db.standing import Backing, Standing
from service.api.deps import Reader, StorageDep
from service.api.pages import PagesDep
from service.api.routes import records as routes
from service.api.schemas.records import CoverageView
from service.dashboard.pages import next_link, page, server_of
from service.dashboard.session import PageRoute
from service.jobs.addressee import target_names

router = APIRouter(route_class=PageRoute)


@dataclass(frozen=True, slots=True)
class CoverageTable:
    """Numbers of workloads: a column for each (target, threads), a row for each operator."""

    columns: tuple[tuple[str, str, int], ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, found: Sequence[CoverageView]) -> CoverageTable:
        columns = sorted({(each.target, each.target_key, each.threads) for each in found})
        counts = {(e.operator, (e.target, e.target_key, e.threads)): e.workloads for e in found}
        operators = sorted({each.operator for each in found})
        rows = ((op, tuple(counts.get((op, c), 0) for c in columns)) for op in operators)
        return cls(tuple(columns), tuple(rows))


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
    chosen = next((each for each in Standing if each.value == state), None)
    found = routes.list_records(
        storage, token, pages, named=named or None, target=target or None, state=chosen
    )
    return page(
        request,
        "records.html",
        records=found,
        names=target_names(storage),
        coverage=CoverageTable.of(routes.get_coverage(storage, token)),
        states=[each.value for each in Standing],
        state="" if chosen is None else chosen.value,
        named=named or "",
        target=target or "",
        next=next_link(request, response),
        server=server_of(request),
    )


@router.get("/records/{record_id}")
def record(request: Request, record_id: str, storage: StorageDep, token: Reader) -> Response:
    """One record: its schedule, its certificate, and whose word it is."""
    found = routes.shown_record(record_id, storage)
    names = target_names(storage)
    workload = storage.workloads.workloads([found.record.workload_key])
    return page(
        request,
        "record.html",
        stored=found,
        target=names.get(found.record.target_key, found.record.target_key[:12]),
        backing=Backing(found.backing).sentence,
        measurement=json.dumps(found.record.measurement, indent=2),
        confirmation=found.confirmation and json.dumps(found.confirmation, indent=2),
        workload=workload.get(found.record.workload_key, "This service has not its text."),
    )
