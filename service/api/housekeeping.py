"""What the web process does by itself, beside answering requests.

Twice a second it lets the leases of silent workers run out. No other process does this: while the
web process is down workers can neither renew nor report, and what they finish meanwhile must not be
given to somebody else.

At longer intervals it removes finished measurement requests, blobs that nothing names, and workers
that were not heard of for long. Trials, records, jobs, models and artifacts stay.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass

import structlog
from starlette.concurrency import run_in_threadpool

from db.errors import DatabaseError
from db.storage import Storage
from service.api.metrics import Metrics
from service.settings import Settings

log = structlog.get_logger("tilewright.web")

PERIOD_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Tidied:
    """What was removed: rows of requests and workers, bytes of blobs."""

    requests: int
    blob_bytes: int
    workers: int


def tidy(storage: Storage, settings: Settings) -> Tidied:
    """Remove what nobody needs any more. Any process may call it at any time, several at once.

    It keeps every request whose outcome an open job's tuner has not stored. It keeps every blob
    that a row refers to, and every young one, because the row may be about to be written.
    """
    requests = storage.leases.prune(settings.keep_finished_seconds)
    blob_bytes = storage.blobs.sweep(settings.keep_blobs_seconds)
    return Tidied(requests, blob_bytes, storage.workers.forget(settings.keep_workers_seconds))


async def keep_house(storage: Storage, settings: Settings, metrics: Metrics) -> None:
    """Give every lease a new term, then let leases run out, and tidy; until it is cancelled.

    The first tidying comes an interval after the start: workers have reported themselves by then.
    """
    graced = False
    tidied = time.monotonic()
    while True:
        try:
            if not graced:
                await run_in_threadpool(storage.leases.grace, settings.lease_seconds)
                graced = True
            expiry = await run_in_threadpool(storage.leases.expire)
            if expiry.requeued or expiry.lost:
                log.info("leases ran out", requeued=len(expiry.requeued), lost=len(expiry.lost))
                metrics.leases_over.inc(len(expiry.requeued) + len(expiry.lost))
            if time.monotonic() - tidied >= settings.housekeeping_seconds:
                tidied = time.monotonic()  # an error is not met again at once
                removed = await run_in_threadpool(tidy, storage, settings)
                if any(asdict(removed).values()):
                    log.info("tidied", **asdict(removed))
                metrics.count_removed(asdict(removed))
        except DatabaseError as error:
            log.warning("housekeeping", error=str(error))
        await asyncio.sleep(PERIOD_SECONDS)
