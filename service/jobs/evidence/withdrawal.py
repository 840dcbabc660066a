"""Withdraws the results of a faulty device, and notifies the jobs that used them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.db.errors import NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_withdrawal import Withdrawn


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The effects of withdrawing stored measurement results that are no longer trusted.

    Attributes:
        withdrawn: the withdrawn tuning records, and the numbers of withdrawn trials (measurements
            of schedules) and races (timings of tuned against untuned programs).
        notified: the ids of the jobs that received an event about the withdrawal.
    """

    withdrawn: Withdrawn
    notified: tuple[str, ...]


def withdraw_records(
    storage: Storage,
    reason: str,
    *,
    record_ids: Collection[str] = (),
    workers: Collection[str] = (),
) -> Withdrawal:
    """Withdraw certain tuning records, and all results that certain workers measured.

    A job gets an event "withdrawn" if its artifact uses a withdrawn record, or if one of the
    workers measured for the job. Some races (timings of a tuned against an untuned program) are
    withdrawn too, so that they are run again: the races of the notified jobs, and the races that
    the workers ran.

    Args:
        storage: the database.
        reason: the reason, as text for users.
        record_ids: the ids of the records.
        workers: the names or ids of the workers.

    Returns:
        the withdrawn results, and the ids of the notified jobs.

    Raises:
        NotFoundError: if a record does not exist, or no worker of that name ever measured.
    """
    names = worker_names(storage, workers)
    done = storage.ledger.withdraw(reason, record_ids=record_ids, workers=names)
    known = names - set(workers) or {worker.id for worker in storage.workers.list()} & names
    if workers and not (known or done.records or done.races or done.trials):
        raise NotFoundError("worker", ", ".join(sorted(workers)))
    notified = tell(storage, done.jobs, reason, [one.id for one in done.records])
    return Withdrawal(done, notified)


def tell(
    storage: Storage, job_ids: Collection[str], reason: str, record_ids: Sequence[str]
) -> tuple[str, ...]:
    """Notify jobs by an event "withdrawn" that records are withdrawn.

    Args:
        storage: the database.
        job_ids: the jobs; ids of jobs that do not exist are ignored.
        reason: the reason, as text for users.
        record_ids: the ids of the withdrawn records.

    Returns:
        the ids of the jobs that got the event.
    """
    notified = []
    for job_id in job_ids:
        try:
            storage.jobs.get(job_id)
        except NotFoundError:
            continue  # a run of the command line, which has no events
        storage.events.append(
            job_id, [("withdrawn", {"reason": reason, "records": list(record_ids)})]
        )
        notified.append(job_id)
    return tuple(notified)


def worker_names(storage: Storage, workers: Collection[str]) -> set[str]:
    """Return all names and ids under which measurements of these workers may be stored.

    Args:
        storage: the database.
        workers: names or ids; for a name, the ids of all workers with this name are added.
    """
    return {*workers, *(one.id for one in storage.workers.list() if one.name in workers)}
