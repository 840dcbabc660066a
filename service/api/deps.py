"""Dependencies of the routes: the stores, the settings, and a token with the right scope."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from db.storage import Storage
from db.stores.tokens import Scope, Token
from service.api.gate import Needs
from service.api.notifier import Notifier
from service.api.waiting import WaitingRoom
from service.settings import Settings


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


Reader = Annotated[Token, Depends(Needs(Scope.READ))]
Submitter = Annotated[Token, Depends(Needs(Scope.SUBMIT))]
Measurer = Annotated[Token, Depends(Needs(Scope.MEASURE))]
Admin = Annotated[Token, Depends(Needs(Scope.ADMIN))]
