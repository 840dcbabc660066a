"""The page that compares two jobs kernel by kernel, for example on two devices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Token
from tilewright.service.api.deps import Reader, StorageDep
from tilewright.service.api.routes import jobs as routes
from tilewright.service.api.schemas.jobs import JobView
from tilewright.service.dashboard.job_pages import MOST_ROWS, ROWS, RowsQuery
from tilewright.service.dashboard.pages import first_page, has_more, page, server_of
from tilewright.service.dashboard.session import PageRoute
from tilewright.service.difference import ComparedSide, ModelDifference, difference, side_of_job
from tilewright.service.show.table import table
from tilewright.service.show.tables import kernels

router = APIRouter(route_class=PageRoute)

OFFERED = 100
"""Limit of the jobs that the form lists, newest first. The URL may select any other job by its
id."""

JobQuery = Annotated[str, Query(max_length=64)]


@router.get("/compare")
def compare(
    request: Request,
    storage: StorageDep,
    token: Reader,
    a: JobQuery = "",
    b: JobQuery = "",
    rows: RowsQuery = ROWS,
) -> Response:
    """Show a form to select two jobs, and their comparison once both are selected."""
    offered = {
        job.id: job
        for job in routes.list_jobs(storage, token, first_page(request, OFFERED)[0], results=False)
    }
    for job_id in filter(None, (a, b)):
        if job_id not in offered:
            offered[job_id] = routes.get_job(job_id, storage, token)
    found, cut = None, False
    if a and b:
        sides = [_side(request, offered[job_id], storage, token) for job_id in (a, b)]
        cut = any(more for _, more in sides)
        found = difference(sides[0][0], sides[1][0])
    return page(
        request,
        "compare.html",
        a=a,
        b=b,
        offered=_ordered(list(offered.values()), offered.get(a or b)),
        found=found,
        facts=found and table(kernels.FACTS, found.facts),
        kernels=found and table(kernels.pairs(a, b), found.pairs[:rows]),
        same=_same(found),
        cut=cut,
        rows=rows,
        most_rows=MOST_ROWS,
        server=server_of(request),
    )


def _side(
    request: Request, job: JobView, storage: Storage, token: Token
) -> tuple[ComparedSide, bool]:
    """Return the data of a job for a comparison with another job.

    Returns:
        the job's properties and up to `MOST_ROWS` of its tasks, and whether the job has more tasks.
    """
    pages, answer = first_page(request, MOST_ROWS)
    tasks = routes.list_job_tasks(job.id, storage, token, pages)
    return side_of_job(job, tasks), has_more(answer)


def _ordered(jobs: list[JobView], chosen: JobView | None) -> list[JobView]:
    """Return the jobs, the newest first.

    Jobs with the same model as `chosen` come before all others.
    """
    digest = chosen.model if chosen is not None else ""
    return sorted(jobs, key=lambda job: (job.model != digest, -job.created_at))


def _same(found: ModelDifference | None) -> int:
    """Return the number of kernels that do not differ between the compared jobs; 0 for None."""
    return 0 if found is None else sum(pair.same for pair in found.pairs)
