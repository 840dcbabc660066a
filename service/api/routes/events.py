"""Routes of a job's progress: stream of events, log and tuning curve.

A stream of server-sent events resumes after the event that the header `Last-Event-ID` names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from tilewright.db.notices import job_topic
from tilewright.db.storage import Storage
from tilewright.db.stores.events import JobEvent
from tilewright.db.stores.jobs import Job
from tilewright.service.api.deps import NotifierDep, Reader, StorageDep
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.schemas.jobs import CurveView, JobEventView
from tilewright.service.api.views import curve_view, event_view

router = APIRouter(tags=["jobs"], route_class=GatedRoute)

# The largest number that a database can hold: no job has more events.
LAST_EVENT = (1 << 63) - 1

CURVE_POINTS = 500

_PROGRESS = "progress"


def existing_job(job_id: str, storage: StorageDep, token: Reader) -> Job:
    """Return the job with this id, which the token may see.

    This dependency runs before the response starts. So an unknown id gives a 404 instead of a
    stream that fails.
    """
    return storage.jobs.get(job_id, token.sees)


_EVENT = (
    "id: 3\nevent: state\n"
    'data: {"sequence": 3, "kind": "state", "created_at": 1795348800.0,'
    ' "data": {"state": "running"}}\n\n'
)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"example": _EVENT}}}
}


@router.get("/jobs/{job_id}/events", response_class=EventSourceResponse, responses=_STREAM)
async def job_events(
    request: Request,
    job: Annotated[Job, Depends(existing_job)],
    storage: StorageDep,
    notifier: NotifierDep,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[int, Query(ge=0, le=LAST_EVENT, description="As Last-Event-ID")] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """Stream a job's events as server-sent events. The stream ends when the job ends.

    The first event sent is the one after number `Last-Event-ID`, or after number `after` if the
    request does not have this header.
    """
    sequence = after if last_event_id is None else _number(last_event_id, after)
    with notifier.listening(job_topic(job.id)) as subscription:
        while not request.app.state.stopping:
            events, final = await run_in_threadpool(_look, storage, job.id, sequence)
            for event in events:
                sequence = event.sequence
                yield _encode(event)
            if final and not events:
                return
            if not events:
                await subscription.woken()


@router.get("/jobs/{job_id}/log")
def list_job_log(
    job: Annotated[Job, Depends(existing_job)], storage: StorageDep, pages: PagesDep
) -> list[JobEventView]:
    """List a job's events, newest first, without the frequent events of kind `progress`."""
    found = storage.events.list(job.id, but=_PROGRESS, limit=pages.limit, after=pages.after)
    return [event_view(event) for event in pages.linked(found)]


@router.get("/jobs/{job_id}/curve")
def get_job_curve(job: Annotated[Job, Depends(existing_job)], storage: StorageDep) -> CurveView:
    """Return a job's tuning curve.

    Each point has a time, the number of trials until then, and the best latency so far. At most 501
    points are returned.
    """
    return curve_view(storage.events.spread(job.id, _PROGRESS, CURVE_POINTS))


def _number(last_event_id: str, default: int) -> int:
    """Parse `Last-Event-ID`: the sequence number of the last event that the client received.

    Return `default` if it is not a number.
    """
    known = last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 20
    return min(int(last_event_id), LAST_EVENT) if known else default


def _look(storage: Storage, job_id: str, sequence: int) -> tuple[list[JobEvent], bool]:
    # the state is read first, so that the stream sends all events before it ends
    final = storage.jobs.get(job_id).state.final
    return list(storage.events.since(job_id, sequence)), final


def _encode(event: JobEvent) -> ServerSentEvent:
    data = event_view(event).model_dump_json()
    return ServerSentEvent(raw_data=data, event=event.kind, id=str(event.sequence))
