"""The web application: routes under /v1, problem documents for errors, metrics."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute

from tilewright.db.changes import open_changes
from tilewright.db.notices import open_source, topic_states
from tilewright.db.storage import Storage
from tilewright.service.api import errors, probes, routes, worker_page
from tilewright.service.api.answers import KnownAnswers
from tilewright.service.api.cache import Invalidation
from tilewright.service.api.description import describe
from tilewright.service.api.expansion import RequestExpander
from tilewright.service.api.gate import Gate, GatedRoute, TokenCache
from tilewright.service.api.heartbeat_pacing import HeartbeatPacing
from tilewright.service.api.housekeeping import keep_house, name_all
from tilewright.service.api.idempotency import AnswerAtOnceError
from tilewright.service.api.metrics import Metrics, MetricsMiddleware
from tilewright.service.api.notifier import Notifier
from tilewright.service.api.plain_text import PlainTextMiddleware
from tilewright.service.api.planning import Planning
from tilewright.service.api.record_cache import RecordCache
from tilewright.service.api.request_ids import RequestIdMiddleware
from tilewright.service.api.results import most_bytes
from tilewright.service.api.upload import WRITERS
from tilewright.service.api.waiting import ClaimDispatcher
from tilewright.service.api.worker_traffic import WorkerTraffic
from tilewright.service.dashboard import app as dashboard
from tilewright.service.settings import Settings
from tilewright.service.signing import signing_key
from tilewright.service.storage import open_storage
from tilewright.service.version import version

HEALTH_THREADS = 2
"""Threads reserved for health probes, so that other requests cannot delay them."""


def create_app(settings: Settings, storage: Storage | None = None) -> FastAPI:
    """Build the web application.

    If `storage` is None, the application opens its own storage at start-up and closes it at
    shutdown.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.stopping = False
        opened = storage
        if opened is None:
            opened = await run_in_threadpool(open_storage, settings)
        app.state.storage = opened
        app.state.signer = await run_in_threadpool(signing_key, settings.signing_key_file)
        app.state.metrics.time_statements(opened.engine)
        notifier = Notifier(
            open_source(opened.engine),
            partial(topic_states, opened.engine),
            failed=app.state.metrics.notifier_failures.inc,
        )
        app.state.notifier = notifier
        claims = partial(opened.leases.claim_all, lease_seconds=settings.lease_seconds)
        room = ClaimDispatcher(notifier, claims, opened.leases.release)
        app.state.waiting_room = room
        app.state.worker_traffic = WorkerTraffic(opened, settings.lease_seconds, _pacing(settings))
        tokens = TokenCache(opened.tokens)
        app.state.gate = Gate(settings, tokens, partial(most_bytes, opened))
        planning = Planning(settings, opened.blobs)
        app.state.planning = planning
        app.state.expander = RequestExpander(opened)
        invalidation = Invalidation(open_changes(opened.engine))
        app.state.served = RecordCache(opened.ledger, invalidation)
        app.state.answers = KnownAnswers(invalidation)
        app.state.upload_limiter = CapacityLimiter(WRITERS)
        app.state.health_limiter = CapacityLimiter(HEALTH_THREADS)
        await notifier.start()
        tasks = [
            asyncio.create_task(keep_house(opened, settings, app.state.metrics)),
            asyncio.create_task(name_all(opened)),
            asyncio.create_task(tokens.follow(notifier)),
        ]
        try:
            yield
        finally:
            stop_waiting(app)
            await room.end()
            for task in tasks:
                task.cancel()
            await notifier.stop()
            await run_in_threadpool(planning.close)
            await invalidation.close()
            if storage is None:
                opened.close()

    app = FastAPI(
        title="Tilewright",
        version=version(),
        summary="A search-based auto-tuning compiler service for ONNX models",
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.metrics = Metrics()
    app.add_middleware(PlainTextMiddleware)
    app.add_middleware(MetricsMiddleware, metrics=app.state.metrics)
    app.add_middleware(RequestIdMiddleware)  # the last one is the outermost
    errors.install(app)
    app.add_exception_handler(AnswerAtOnceError, _at_once)
    app.router.routes.extend(_routes())
    app.mount(dashboard.PATH, dashboard.create_dashboard(app))
    app.openapi = partial(_described, app)  # type: ignore[method-assign]
    return app


@cache
def _routes() -> Sequence[BaseRoute]:
    """Return all routes. All applications of this process share the route objects.

    FastAPI takes a tenth of a second to analyse the signatures of all routes, and the tests build
    1,000 applications.
    """
    whole = APIRouter()
    for router in route_modules():
        whole.include_router(router, prefix="/v1")
    for router in (probes.router, worker_page.router, dashboard.entrance):
        whole.include_router(router)
    return whole.routes


def _pacing(settings: Settings) -> HeartbeatPacing:
    """Return the object that chooses the interval of worker heartbeats, for these settings.

    The longest interval is limited, so that a heartbeat renews a new lease before the lease
    expires. The limit also lets a worker miss two heartbeats without being considered lost.
    """
    rarest = min(settings.lease_seconds * 2, settings.worker_lost_seconds) / 3
    return HeartbeatPacing(settings.heartbeat_seconds, rarest)


def _described(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        framework = FastAPI.openapi(app)
        routes = [route for router in route_modules() for route in router.routes]
        gated = [route for route in routes if isinstance(route, GatedRoute)]
        app.openapi_schema = describe(framework, gated, "/v1")
    return app.openapi_schema


def _at_once(_: Request, error: Exception) -> Response:
    assert isinstance(error, AnswerAtOnceError)
    return error.response


def stop_waiting(app: FastAPI) -> None:
    """End open event streams and long polls before the process stops."""
    app.state.stopping = True
    room: ClaimDispatcher | None = getattr(app.state, "waiting_room", None)
    if room is not None:  # the application has begun
        room.close()


def route_modules() -> list[APIRouter]:
    """Return the routers of all modules in `service.api.routes`, in the order of matching.

    Each module defines the variable `router`, so a new file adds its routes. Modules with the
    variable `ASKED_OFTEN` come first, so that frequent requests are matched quickly.
    """
    names = sorted((m.name for m in pkgutil.iter_modules(routes.__path__)), reverse=True)
    modules = [importlib.import_module(f"{routes.__name__}.{name}") for name in names]
    modules.sort(key=lambda module: not getattr(module, "ASKED_OFTEN", False))
    return [module.router for module in modules]
