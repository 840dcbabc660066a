"""FastAPI dependencies that many routes share, such as the storage, the settings and the token."""

from __future__ import annotations

from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Query, Request

from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope, Token
from tilewright.service.api.expansion import RequestExpander
from tilewright.service.api.gate import Needs
from tilewright.service.api.notifier import Notifier
from tilewright.service.api.planning import Planning
from tilewright.service.api.schemas.fields import SHOWN_TARGET
from tilewright.service.api.waiting import ClaimDispatcher
from tilewright.service.api.worker_traffic import WorkerTraffic
from tilewright.service.settings import Settings

# All are coroutines: the framework runs a plain function in a thread of a limited pool.


async def get_storage(request: Request) -> Storage:
    storage = request.app.state.storage
    assert isinstance(storage, Storage)
    return storage


async def get_settings(request: Request) -> Settings:
    settings = request.app.state.settings
    assert isinstance(settings, Settings)
    return settings


async def get_notifier(request: Request) -> Notifier:
    notifier = request.app.state.notifier
    assert isinstance(notifier, Notifier)
    return notifier


async def get_waiting_room(request: Request) -> ClaimDispatcher:
    room = request.app.state.waiting_room
    assert isinstance(room, ClaimDispatcher)
    return room


async def get_worker_traffic(request: Request) -> WorkerTraffic:
    traffic = request.app.state.worker_traffic
    assert isinstance(traffic, WorkerTraffic)
    return traffic


async def get_planning(request: Request) -> Planning:
    planning = request.app.state.planning
    assert isinstance(planning, Planning)
    return planning


async def get_expander(request: Request) -> RequestExpander:
    expander = request.app.state.expander
    assert isinstance(expander, RequestExpander)
    return expander


async def get_upload_limiter(request: Request) -> CapacityLimiter:
    limiter = request.app.state.upload_limiter
    assert isinstance(limiter, CapacityLimiter)
    return limiter


def request_token(request: Request) -> Token:
    """Return the token that the access checks (`service.api.gate`) have verified for a request."""
    token = request.scope["tilewright_token"]
    assert isinstance(token, Token)
    return token


StorageDep = Annotated[Storage, Depends(get_storage)]
SettingsDep = Annotated[Settings, Depends(get_settings)]
NotifierDep = Annotated[Notifier, Depends(get_notifier)]
ExpanderDep = Annotated[RequestExpander, Depends(get_expander)]
PlanningDep = Annotated[Planning, Depends(get_planning)]
UploadLimiterDep = Annotated[CapacityLimiter, Depends(get_upload_limiter)]
ClaimDispatcherDep = Annotated[ClaimDispatcher, Depends(get_waiting_room)]
WorkerTrafficDep = Annotated[WorkerTraffic, Depends(get_worker_traffic)]


Reader = Annotated[Token, Depends(Needs(Scope.READ))]
Submitter = Annotated[Token, Depends(Needs(Scope.SUBMIT))]
Measurer = Annotated[Token, Depends(Needs(Scope.MEASURE))]
Admin = Annotated[Token, Depends(Needs(Scope.ADMIN))]

JobTargetQuery = Annotated[
    str,
    Query(max_length=200, description="Target key or name, or a worker", examples=[SHOWN_TARGET]),
]
