"""What the web process does by itself, beside answering requests.

Twice a second it lets the leases of silent workers run out. One replica does it for all, by turns
in the database. No other process does this: while no replica is up, workers can neither renew nor
report. That time does not count for their leases, so that what they finish meanwhile is not given
to somebody else.

At longer intervals it removes finished measurement requests, blobs that nothing names, and workers
that were not heard of for long. Trials, jobs, models and artifacts go only where a setting says so.
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
"""The name of the turn, for `storage.sweeps.age`: how long ago leases were looked after."""


BUCKET_IDLE_SECONDS = 120.0
"""A bucket of a rate limit holds a minute's worth: it is full again by then."""


@dataclass(frozen=True, slots=True)
class Tidied:
    """What was removed: bytes of blobs, and rows of all else."""

    requests: int
    blob_bytes: int
    workers: int
    trials: int = 0
    jobs: int = 0
    artifacts: int = 0
    models: int = 0
    audit: int = 0


def tidy(storage: Storage, settings: Settings) -> Tidied:
    """Remove what nobody needs any more. Any process may call it at any time, several at once.

    It keeps every request whose outcome an open job's tuner has not stored, and stores what came
    of those of jobs that ended. It keeps every blob
    that a row refers to, and every young one, because the row may be about to be written.
    """
    store_orphaned_results(storage)
    requests = storage.leases.prune(settings.keep_finished_seconds)
    storage.rate_limits.remove_full(BUCKET_IDLE_SECONDS)
    storage.idempotency.remove(settings.keep_answers_seconds)
    forgotten = storage.retention.apply(retention(settings))
    # after the rows: what they named is free now
    blob_bytes = storage.blobs.sweep(settings.keep_blobs_seconds)
    workers = storage.workers.forget(settings.keep_workers_seconds)
    return Tidied(requests, blob_bytes, workers, **forgotten)


def retention(settings: Settings) -> Retention:
    """How long the settings `keep_KIND_days` keep each kind."""
    kinds = (one.name for one in fields(Retention))
    return Retention(**{kind: getattr(settings, f"keep_{kind}_days") for kind in kinds})


def sweep(
    storage: Storage, metrics: Metrics, holder: str, idle_seconds: float = float("inf")
) -> bool:
    """Let leases run out if it is this replica's turn; whether it was.

    Args:
        storage, metrics: what is looked after, and where it is counted.
        holder: names this replica.
        idle_seconds: since this replica tried last. It was up meanwhile, whoever had the turn.
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
    """Find the names of all workloads that came since the last time, a batch at a time."""
    while await run_in_threadpool(name_workloads, storage):
        pass


async def keep_house(storage: Storage, settings: Settings, metrics: Metrics) -> None:
    """Let leases run out, and tidy; until it is cancelled. Whatever fails is tried again.

    The first tidying comes an interval after the start: workers have reported themselves by then.
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
                tidied = time.monotonic()  # an error is not met again at once
                removed = await run_in_threadpool(tidy, storage, settings)
                if any(asdict(removed).values()):
                    log.info("tidied", **asdict(removed))
                metrics.count_removed(asdict(removed))
        except Exception as error:
            # without it no lease would ever run out, and nobody would be told
            log.error("housekeeping", error=repr(error), exc_info=error)
        await asyncio.sleep(PERIOD_SECONDS)
