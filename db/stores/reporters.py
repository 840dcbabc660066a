"""Lookup of the worker that measured a claim about speed, and of the worker's owner."""

from __future__ import annotations

import sqlalchemy as sa

from tilewright.db.models import WorkerRow
from tilewright.db.review_state import ClaimReporter
from tilewright.db.stores.statements import table_of

_workers = table_of(WorkerRow)


def reporter_of(connection: sa.Connection, worker: str) -> ClaimReporter:
    """Return the worker with its owner as a ClaimReporter, given the worker's id.

    The owner is the token that the worker has now, or "" if the worker is unknown or has no token.
    """
    query = sa.select(_workers.c.owner).where(_workers.c.id == worker)
    return ClaimReporter(worker, connection.execute(query).scalar() or "")
