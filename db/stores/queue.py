"""Whether requests wait in the queue of measurements, which every waiting worker asks."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from db.engine import reading
from db.models import RequestRow
from db.notices import is_queued
from db.stores.statements import table_of

_requests = table_of(RequestRow)


class QueueStore:
    """Reads the index of waiting requests, so that finished ones cost nothing."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def waiting(self, target_keys: Sequence[str], worker_id: str | None = None) -> bool:
        """Whether a request for one of these targets waits; with a worker, one that it may take."""
        query = sa.select(_requests.c.serial).where(
            is_queued(), _requests.c.target_key.in_(list(target_keys))
        )
        if worker_id is not None:
            only = _requests.c.only_worker
            query = query.where(sa.or_(only.is_(None), only == worker_id))
        with reading(self._engine) as connection:
            return connection.execute(query.limit(1)).first() is not None
