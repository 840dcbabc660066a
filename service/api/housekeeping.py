"""Periodic background work of the web process: expiry of leases, and removal of old data.

Twice a second, one replica ends the leases of silent workers. A lock in the database decides which
replica does it. While no web process runs, workers can neither renew leases nor report results. So
after an outage, all leases are extended by its duration. Otherwise a request that a worker finished
during the outage would be leased again.

At longer intervals the process removes finished measurement requests, unreferenced blobs, and
workers without a recent heartbeat. It removes trials, jobs, models, artifacts and audit entries
only if a setting says so.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import asdict, dataclass, fields

import structlog
from starlette.concurrency import run_in_threadpool

from tilewright.db.storage import Storage
from tilewright.db.stores.retention import Retention
from tilewright.db.stores.sweeps import TERM_SECONDS
from tilewright.service.api.metrics import Metrics
from tilewright.service.jobs.knowledge.families import name_workloads
from tilewright.service.jobs.process.orphaned_results import store_orphaned_results
from tilewright.service.settings import Settings

log = structlog.get_logger("tilewright.web")

PERIOD_SECONDS = 0.5

SWEEP = "leases"
"""Name of the lock under which one replica expires leases. `storage.sweeps.age` returns the time
since leases were last checked."""


BUCKET_IDLE_SECONDS = 120.0
"""Idle seconds after which the bucket of a rate limit is removed. One minute refills a bucket
completely."""


@dataclass(frozen=True, slots=True)
class RemovedData:
    """The amount of data that one call of `remove_old_data` removed.

    `blob_bytes` is in bytes. All other attributes are numbers of database rows.
    """

    requests: int
    blob_bytes: int
    workers: int
    trials: int = 0
    jobs: int = 0
    artifacts: int = 0
    models: int = 0
    audit: int = 0


def remove_old_data(storage: Storage, settings: Settings) -> RemovedData:
    """Remove data that is no longer needed. Several processes may call this concurrently.

    If a job ended before its tuner stored all measured results, they are first stored as trials. A
    measurement request is kept if its job is open and the job's tuner has not stored the outcome
    yet. A blob is kept if a row of the database refers to it, or if it is so recent that the row
    may not be written yet.
    """
    store_orphaned_results(storage)
    requests = storage.leases.prune(settings.keep_finished_seconds)
    storage.rate_limits.remove_full(BUCKET_IDLE_SECONDS)
    storage.idempotency.remove(settings.keep_answers_seconds)
    forgotten = storage.retention.apply(retention(settings))
    # after the rows, because removed rows no longer refer to their blobs
    blob_bytes = storage.blobs.sweep(settings.keep_blobs_seconds)
    workers = storage.workers.forget(settings.keep_workers_seconds)
    return RemovedData(requests, blob_bytes, workers, **forgotten)


def retention(settings: Settings) -> Retention:
    """Return the ages in days at which data is deleted, from the settings `keep_KIND_days`."""
    kinds = (one.name for one in fields(Retention))
    return Retention(**{kind: getattr(settings, f"keep_{kind}_days") for kind in kinds})


def sweep(
    storage: Storage, metrics: Metrics, holder: str, idle_seconds: float = float("inf")
) -> bool:
    """End overdue leases, if this replica holds the lock that assigns this work to one replica.

    If no replica held the lock for some time, the service was down, and workers could not renew
    their leases. Then all leases are first extended by that time.

    Args:
        storage: the stores of the leases and of the lock.
        metrics: counts the expired leases.
        holder: the name of this replica.
        idle_seconds: seconds since this replica's last call, an upper bound for the extension.

    Returns:
        whether this replica holds the lock.
    """
    turn = storage.sweeps.take(SWEEP, holder)
    if turn is None:
        return False
    away = min(turn.away_seconds, idle_seconds)
    if away > TERM_SECONDS:
        extended = storage.leases.extend(away)
        log.info("nobody swept", seconds=round(away), extended=extended)
    expiry = storage.leases.expire()
    if expiry.count:
        log.info(
            "leases ran out",
            requeued=len(expiry.requeued),
            lost=len(expiry.lost),
            set_aside=len(expiry.set_aside),
        )
        metrics.leases_over.inc(expiry.count)
    storage.leases.wake()
    return True


async def name_all(storage: Storage) -> None:
    """Compute the readable names of all workloads that have none yet, in batches."""
    while await run_in_threadpool(name_workloads, storage):
        pass


async def keep_house(storage: Storage, settings: Settings, metrics: Metrics) -> None:
    """Expire leases and remove old data periodically, until cancelled.

    Failures are logged and retried. The first removal happens one interval after the start. By
    then, live workers have sent heartbeats and are not removed.
    """
    holder = uuid.uuid4().hex
    tidied = time.monotonic()
    tried = float("-inf")
    while True:
        try:
            now = time.monotonic()
            mine = await run_in_threadpool(sweep, storage, metrics, holder, now - tried)
            tried = now
            if mine and time.monotonic() - tidied >= settings.housekeeping_seconds:
                tidied = time.monotonic()  # set first: an error is not retried immediately
                removed = await run_in_threadpool(remove_old_data, storage, settings)
                if any(asdict(removed).values()):
                    log.info("tidied", **asdict(removed))
                metrics.count_removed(asdict(removed))
        except Exception as error:
            # keep running: otherwise leases would never expire, without any sign of it
            log.error("housekeeping", error=repr(error), exc_info=error)
        await asyncio.sleep(PERIOD_SECONDS)
