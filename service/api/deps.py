"""Dependencies of the routes: the stores, the settings, and a token with the right scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from db.storage import Storage
from db.stores.tokens import Scope, Token
from service.api.errors import forbidden, unauthorized
from service.api.notifier import Notifier
from service.api.waiting import WaitingRoom
from service.settings import Settings

_bearer = HTTPBearer(auto_error=False, description="A token with the scope of the route")


def get_storage(request: Request) -> Storage:
    storage = request.app.state.storage
    assert isinstance(storage, Storage)
    return storage


def get_settings(request: Request) -> Settings:
    settings = request.app.state.settings
    assert isinstance(settings, Settings)
    return settings


def get_notifier(request: Request) -> Notifier:
    notifier = request.app.state.notifier
    assert isinstance(notifier, Notifier)
    return notifier


def get_waiting_room(request: Request) -> WaitingRoom:
    room = request.app.state.waiting_room
    assert isinstance(room, WaitingRoom)
    return room


StorageDep = Annotated[Storage, Depends(get_storage)]
SettingsDep = Annotated[Settings, Depends(get_settings)]
NotifierDep = Annotated[Notifier, Depends(get_notifier)]
WaitingRoomDep = Annotated[WaitingRoom, Depends(get_waiting_room)]


def authenticated(
    storage: StorageDep,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Token:
    """The token of the request. Raises a 401 problem."""
    if credentials is None:
        raise unauthorized("a bearer token is needed")
    token = storage.tokens.verify(credentials.credentials)
    if token is None:
        raise unauthorized("the token is unknown, revoked or over")
    return token


def _require(scope: Scope) -> Callable[[Token], Token]:
    def check(token: Annotated[Token, Depends(authenticated)]) -> Token:
        if not token.allows(scope):
            raise forbidden(f"token '{token.name}' has no scope '{scope}'")
        return token

    return check


Reader = Annotated[Token, Depends(_require(Scope.READ))]
Submitter = Annotated[Token, Depends(_require(Scope.SUBMIT))]
Measurer = Annotated[Token, Depends(_require(Scope.MEASURE))]
Admin = Annotated[Token, Depends(_require(Scope.ADMIN))]
