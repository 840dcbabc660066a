"""What the web process does by itself: leases of workers that went silent run out.

No other process does this. While the web process is down workers can neither renew nor report; what
they finish meanwhile must not be given to somebody else.
"""

from __future__ import annotations

import asyncio

import structlog
from starlette.concurrency import run_in_threadpool

from db.errors import DatabaseError
from service.settings import Settings
from service.storage import Storage

log = structlog.get_logger("tilewright.web")

PERIOD_SECONDS = 0.5


async def keep_house(storage: Storage, settings: Settings) -> None:
    """Give every lease a new term, then let leases run out; until it is cancelled."""
    graced = False
    while True:
        try:
            if not graced:
                await run_in_threadpool(storage.leases.grace, settings.lease_seconds)
                graced = True
            expiry = await run_in_threadpool(storage.leases.expire)
        except DatabaseError as error:
            log.warning("housekeeping", error=str(error))
        else:
            if expiry.requeued or expiry.lost:
                log.info("leases ran out", requeued=len(expiry.requeued), lost=len(expiry.lost))
        await asyncio.sleep(PERIOD_SECONDS)
