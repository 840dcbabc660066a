"""Who said something, as the tables know it, and what is left when a worker is not believed."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from tilewright.db.models import WorkerRow
from tilewright.db.standing import Backing, Standing, Witness
from tilewright.db.stores.statements import table_of

_workers = table_of(WorkerRow)


def witness(connection: sa.Connection, worker: str) -> Witness:
    """A worker by its id, with the token that it has now."""
    query = sa.select(_workers.c.owner).where(_workers.c.id == worker)
    return Witness(worker, connection.execute(query).scalar() or "")


def lost_second(workers: Collection[str], table: sa.Table) -> sa.Update:
    """Statement: what these workers confirmed rests on the first word alone again."""
    held = table.c.state.in_([Standing.CONFIRMED.value, Standing.SUPERSEDED.value])
    return (
        sa.update(table)
        .where(table.c.confirmed_by.in_(workers), held)
        .values(confirmed_by=None, confirmation=None, backing=Backing.ONCE.value)
    )
