"""Writing of audit log entries about requests to the API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from tilewright.db.storage import Storage
from tilewright.db.stores.audit import Action
from tilewright.db.stores.tokens import Token
from tilewright.service.api.deps import StorageDep, request_token


class Auditor:
    """Writes audit log entries about one request.

    Each entry has the request's token as its actor, and the client's address.
    """

    def __init__(self, token: Token, origin: str, storage: Storage) -> None:
        self._token = token
        self._origin = origin
        self._storage = storage

    def __call__(self, action: Action, subject: str, **detail: Any) -> None:
        """Write one entry: `action` was done to `subject`, such as a job's id.

        `detail` has further values, which are stored as JSON.

        Raises:
            StorageError: if the database fails.
        """
        self._storage.audit.add(
            action,
            subject,
            actor=self._token.id,
            actor_name=self._token.name,
            origin=self._origin,
            detail=detail,
        )


async def get_auditor(request: Request, storage: StorageDep) -> Auditor:
    client = request.client
    return Auditor(request_token(request), "" if client is None else client.host, storage)


AuditDep = Annotated[Auditor, Depends(get_auditor)]
