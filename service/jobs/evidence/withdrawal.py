"""Taking back what a bad device said, and telling those who built on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.db.errors import NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_withdrawal import Withdrawn


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What was taken back, and the jobs that were told."""

    withdrawn: Withdrawn
    told: tuple[str, ...]


def withdraw_records(
    storage: Storage,
    reason: str,
    *,
    record_ids: Collection[str] = (),
    workers: Collection[str] = (),
) -> Withdrawal:
    """Withdraw records by their ids, and everything that workers measured, by name or id.

    Each job that was built with such a record, or that the worker measured for, gets an event
    `withdrawn`. The verdicts of its races, and of the workers' races, are withdrawn: the races are
    run anew.

    Raises:
        NotFoundError: if there is no such record, or nobody by that name ever measured anything.
    """
    names = worker_names(storage, workers)
    done = storage.ledger.withdraw(reason, record_ids=record_ids, workers=names)
    known = names - set(workers) or {worker.id for worker in storage.workers.list()} & names
    if workers and not (known or done.records or done.races or done.trials):
        raise NotFoundError("worker", ", ".join(sorted(workers)))
    told = tell(storage, done.jobs, reason, [one.id for one in done.records])
    return Withdrawal(done, told)


def tell(
    storage: Storage, job_ids: Collection[str], reason: str, record_ids: Sequence[str]
) -> tuple[str, ...]:
    """An event `withdrawn` for each of these jobs that is there; which were told."""
    told = []
    for job_id in job_ids:
        try:
            storage.jobs.get(job_id)
        except NotFoundError:
            continue  # a run of the command line: nobody listens
        storage.events.append(
            job_id, [("withdrawn", {"reason": reason, "records": list(record_ids)})]
        )
        told.append(job_id)
    return tuple(told)


def worker_names(storage: Storage, workers: Collection[str]) -> set[str]:
    """What measurements of these workers are signed with: names and ids as given, and the ids of
    workers of these names."""
    return {*workers, *(one.id for one in storage.workers.list() if one.name in workers)}
