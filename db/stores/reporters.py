"""Reporters of claims, the workers that measured, read from the table of workers."""

from __future__ import annotations

import sqlalchemy as sa

from tilewright.db.models import WorkerRow
from tilewright.db.review_state import ClaimReporter
from tilewright.db.stores.statements import table_of

_workers = table_of(WorkerRow)


def reporter_of(connection: sa.Connection, worker: str) -> ClaimReporter:
    """Return the ClaimReporter for a worker id; its owner is the worker's present token."""
    query = sa.select(_workers.c.owner).where(_workers.c.id == worker)
    return ClaimReporter(worker, connection.execute(query).scalar() or "")
