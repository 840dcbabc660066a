"""The number of trials that each worker has measured, by status.

The numbers are stored because counting millions of trials would be slow, and because old trials are
deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import sqlalchemy as sa

from tilewright.db.models import WorkerOutcomeRow, WorkerRow
from tilewright.db.stores.statements import chunks, table_of, upsert

_outcomes = table_of(WorkerOutcomeRow)
_workers = table_of(WorkerRow)


def count_outcomes(connection: sa.Connection, ended: Iterable[tuple[str, str]]) -> None:
    """Add newly stored trials to the counts of their workers.

    `ended` has the (worker id, status) of each trial. Trials of the service's own machine, of other
    services and of deleted workers are not counted.
    """
    counts = Counter((worker, status) for worker, status in ended if worker)
    known: set[str] = set()
    for some in chunks(sorted({worker for worker, _ in counts})):
        query = sa.select(_workers.c.id).where(_workers.c.id.in_(some))
        known.update(connection.execute(query).scalars())
    # in the order in which all code changes several rows
    rows = [
        {"worker": worker, "status": status, "trials": count}
        for (worker, status), count in sorted(counts.items())
        if worker in known
    ]
    if rows:
        insert = upsert(connection, _outcomes)
        insert = insert.on_conflict_do_update(
            index_elements=[_outcomes.c.worker, _outcomes.c.status],
            set_={"trials": _outcomes.c.trials + insert.excluded.trials},
        )
        connection.execute(insert, rows)


def outcomes_of(
    connection: sa.Connection, worker_ids: Collection[str]
) -> Mapping[str, Mapping[str, int]]:
    """Return the number of trials by worker id and status. Workers without trials are left out."""
    found: dict[str, dict[str, int]] = {}
    for some in chunks(sorted(worker_ids)):
        query = sa.select(_outcomes).where(_outcomes.c.worker.in_(some))
        for row in connection.execute(query.order_by(_outcomes.c.worker, _outcomes.c.status)):
            found.setdefault(row.worker, {})[row.status] = row.trials
    return found


def forget_outcomes(connection: sa.Connection) -> None:
    """Delete the counts of workers that no longer exist."""
    known = sa.select(_workers.c.id)
    connection.execute(sa.delete(_outcomes).where(_outcomes.c.worker.not_in(known)))
