"""Taking back what a bad device said, and telling those who built on it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from db.errors import NotFoundError
from db.storage import Storage
from db.stores.record_ledger import Withdrawn


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What was taken back, and the jobs that were told."""

    withdrawn: Withdrawn
    told: tuple[str, ...]
    verdicts: int
    plans: int


def withdraw_records(
    storage: Storage,
    reason: str,
    *,
    record_ids: Collection[str] = (),
    workers: Collection[str] = (),
) -> Withdrawal:
    """Withdraw records by their ids, and everything that workers measured, by name or id.

    Each job that was built with such a record, or that the worker measured for, gets an event
    `withdrawn`. Its race and the choice of its model's plan are forgotten: they are made anew.

    Raises:
        NotFoundError: if there is no such record, or nobody by that name ever measured anything.
    """
    names = worker_names(storage, workers)
    done = storage.ledger.withdraw(reason, record_ids=record_ids, workers=names)
    known = names - set(workers) or {worker.id for worker in storage.workers.list()} & names
    if workers and not (known or done.records or done.trials):
        raise NotFoundError("worker", ", ".join(sorted(workers)))
    told, verdicts, plans = [], 0, 0
    for job_id in done.jobs:
        try:
            job = storage.jobs.get(job_id)
        except NotFoundError:
            continue  # a run of the command line: nobody listens
        ids = [one.id for one in done.records]
        storage.events.append(job_id, [("withdrawn", {"reason": reason, "records": ids})])
        verdicts += storage.verdicts.forget(job_id)
        plans += storage.plans.forget(job.model_digest, job.target_key or "")
        told.append(job_id)
    return Withdrawal(done, tuple(told), verdicts, plans)


def worker_names(storage: Storage, workers: Collection[str]) -> set[str]:
    """What measurements of these workers are signed with: names and ids as given, and the ids of
    workers of these names."""
    return {*workers, *(one.id for one in storage.workers.list() if one.name in workers)}
