"""Locks on tasks, so that only one job at a time tunes the same task.

Tasks are the same if they agree in workload, target, threads, numerics and code-generator version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from tilewright.db.clock import Clock, instant
from tilewright.db.engine import writing
from tilewright.db.models import JobRow, OpenTaskRow
from tilewright.db.stores.job_rows import JobClaim, check_claim, held_states
from tilewright.db.stores.statements import chunks, one_at_a_time, table_of, upsert

_open = table_of(OpenTaskRow)
_jobs = table_of(JobRow)


@dataclass(frozen=True, slots=True)
class OpenTask:
    """Identifies a task, which only one job should tune at a time."""

    workload_key: str
    target_key: str
    threads: int
    numerics: str
    codegen_version: str


class OpenTaskStore:
    """Stores which job is tuning which task, so that two jobs do not tune the same task.

    A task stays reserved as long as the tuner that reserved it holds the job.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._now = instant(clock)

    def take(self, claim: JobClaim, wanted: Sequence[OpenTask]) -> frozenset[OpenTask]:
        """Reserve tasks for a claimed job, except those that another running job has reserved.

        Return the reserved tasks.

        Raises:
            StaleLeaseError: if another tuner holds the job, or the job was stopped or has ended.
        """
        with writing(self._engine) as connection:
            check_claim(connection, claim)
            one_at_a_time(connection, "open tasks")
            live = sa.and_(
                _jobs.c.state.in_(held_states),
                _jobs.c.deadline > self._now(),
                _jobs.c.fencing_token == _open.c.fencing_token,
            )
            taken: set[OpenTask] = set()
            for some in chunks(sorted({task.workload_key for task in wanted})):
                query = sa.select(_open).join(_jobs, _jobs.c.id == _open.c.job_id)
                query = query.where(
                    _open.c.workload_key.in_(some), live, _open.c.job_id != claim.job_id
                )
                taken |= {
                    OpenTask(*(row._mapping[name] for name in OpenTask.__slots__))
                    for row in connection.execute(query)
                }
            mine = [task for task in dict.fromkeys(wanted) if task not in taken]
            insert = upsert(connection, _open)
            insert = insert.on_conflict_do_update(
                index_elements=[_open.c[name] for name in OpenTask.__slots__],
                set_={
                    "job_id": insert.excluded.job_id,
                    "fencing_token": insert.excluded.fencing_token,
                    "since": self._now(),
                },
            )
            by = {"job_id": claim.job_id, "fencing_token": claim.fencing_token}
            for task in mine:
                row = {name: getattr(task, name) for name in OpenTask.__slots__}
                connection.execute(insert.values(**row, **by, since=self._now()))
        return frozenset(mine)

    def release(self, claim: JobClaim) -> None:
        """Release all tasks that were reserved under this claim of a job.

        If another tuner has claimed the job since then, the tasks that it reserved stay reserved.
        """
        mine = _open.c.job_id == claim.job_id, _open.c.fencing_token == claim.fencing_token
        with writing(self._engine) as connection:
            connection.execute(sa.delete(_open).where(*mine))
