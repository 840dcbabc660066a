"""Routes that return the best known schedules: of one workload, of several, or of a model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tilewright.compiler.limits import Numerics
from tilewright.db.errors import NotFoundError
from tilewright.service.api.answers import KnownAnswers, LookupRoute
from tilewright.service.api.conditional import NOT_MODIFIED, JsonAnswer
from tilewright.service.api.deps import JobTargetQuery, Reader
from tilewright.service.api.errors import invalid
from tilewright.service.api.limiter import get_limiter
from tilewright.service.api.lookup import lookup_model, lookup_workloads, stands, target_key
from tilewright.service.api.refusals import refuses
from tilewright.service.api.schemas.fields import Digest, Threads
from tilewright.service.api.schemas.lookups import LookupRequest, LookupView, RecordView

router = APIRouter(tags=["schedules"], route_class=LookupRoute)

ASKED_OFTEN = True


@router.get("/schedules", response_model=RecordView, responses=NOT_MODIFIED)
@refuses(404)
async def get_schedule(
    request: Request,
    _: Reader,
    workload: Annotated[Digest, Query(description="Workload key")],
    target: JobTargetQuery,
    threads: Threads = 1,
    numerics: Numerics = "fast",
) -> Response:
    """Return the best schedule of a workload on a target, with its measurement."""
    state = request.app.state  # dependencies would take longer than the answer
    key = await target_key(target, state.storage)
    record = (await state.served.find((key, threads, numerics), (workload,)))[workload]
    if not record:
        raise NotFoundError("schedule", f"{workload} on {target}, {threads} threads, {numerics}")
    answer = JsonAnswer.tagged(record)
    if not stands(target):
        return answer.to(request.scope)
    answers: KnownAnswers = state.answers
    return answers.give(request.scope, answer, [workload])


@router.post("/schedules/lookup", response_model=LookupView)
@refuses(404, 429)
async def lookup_schedules(body: LookupRequest, request: Request, token: Reader) -> Response:
    """Return the best schedules of many workloads, or of all workloads of a model."""
    state = request.app.state
    if (body.workloads is None) == (body.model is None):
        raise invalid("body: give 'workloads' or 'model', and not both")
    if body.model is not None:
        limiter = await get_limiter(request, state.storage, state.settings)
        found = await lookup_model(
            state.storage, body, state.planning, state.served, limiter, token.sees
        )
    else:
        found = await lookup_workloads(state.storage, body, state.served)
    answer = JsonAnswer.plain(found.content)
    if not stands(body.target):
        return answer.whole
    answers: KnownAnswers = state.answers
    return answers.give(request.scope, answer, found.keys)
