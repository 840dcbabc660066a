"""Routes of the service's health and metrics."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from tilewright.db.engine import ping
from tilewright.service.api.deps import Reader, StorageDep
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.metrics import Metrics
from tilewright.service.api.schemas.health import HealthView
from tilewright.service.version import version

router = APIRouter(tags=["health"], route_class=GatedRoute)


@router.get("/health")
async def health(request: Request, storage: StorageDep) -> HealthView:
    """Report that the service and its database respond. Needs no token."""
    limiter = request.app.state.health_limiter  # threads that other requests do not use
    await anyio.to_thread.run_sync(ping, storage.engine, limiter=limiter)
    return HealthView(status="ok", version=version())


_METRICS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/plain": {"example": 'tilewright_measure_requests{state="queued"} 12.0\n'}}
    }
}


@router.get("/metrics", response_class=Response, responses=_METRICS)
def metrics(request: Request, storage: StorageDep, _: Reader) -> Response:
    """Return the service's metrics in the Prometheus text format."""
    collected = request.app.state.metrics
    assert isinstance(collected, Metrics)
    return Response(collected.render(storage), media_type=CONTENT_TYPE_LATEST)
