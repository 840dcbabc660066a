"""Probes for an orchestrator such as Kubernetes: `/healthz` for liveness, `/readyz` for readiness.

The probes need no token, and reveal nothing else about the service.
"""

from __future__ import annotations

from typing import Literal

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from tilewright.db.errors import DatabaseError
from tilewright.db.storage import Storage
from tilewright.db.stores.sweeps import CLAIMS
from tilewright.service.api.housekeeping import SWEEP

SWEEP_SECONDS = 30.0
"""Seconds since the last check for expired leases after which the readiness probe fails, because no
replica seems to end the leases of lost workers."""

DEAF_SECONDS = 30.0
"""Seconds without a connection for database notices after which the readiness probe fails, because
event streams and long polls are late."""

IDLE_SECONDS = 60.0
"""Seconds since a tuner last looked for jobs after which the readiness probe fails. The tuner then
hangs or was killed.

A healthy tuner may train a cost model for a part of that time.
"""

router = APIRouter(include_in_schema=False)


@router.get("/healthz")
async def healthz() -> JSONResponse:
    """Answer 200 without any check: the answer itself shows that the process is alive."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request, part: Literal["api"] | None = None) -> JSONResponse:
    """Answer 200 if the process can serve requests, and otherwise 503 with a reason.

    The process must reach the database and receive its notices. Some replica must have checked for
    expired leases recently. Without `part=api`, some tuner must also have looked for jobs recently;
    this check is skipped if no tuner ever did. A load balancer uses `part=api`, because replicas
    can serve requests even if no tuner runs.
    """
    state = request.app.state
    if state.stopping:
        return _answer("the process is stopping", None)
    storage: Storage = state.storage

    def ages() -> tuple[float | None, float | None]:
        return storage.sweeps.age(SWEEP), storage.sweeps.age(CLAIMS)

    try:
        age, idle = await anyio.to_thread.run_sync(ages, limiter=state.health_limiter)
    except DatabaseError:
        return _answer("the database does not answer", None)
    if age is None:
        return _answer("no process has checked for expired leases yet", None)
    if state.notifier.seconds_without_notices > DEAF_SECONDS:
        return _answer("this process does not receive the notices of the database", age)
    if age > SWEEP_SECONDS:
        return _answer("no process checks for expired leases any more", age)
    starved = part is None and idle is not None and idle > IDLE_SECONDS
    return _answer("the tuner takes no jobs" if starved else "", age)


def _answer(reason: str, age: float | None) -> JSONResponse:
    body = {"status": "unready" if reason else "ready", "sweep_age_seconds": age}
    return JSONResponse(
        {**body, "reason": reason} if reason else body, status_code=503 if reason else 200
    )
