"""How a claim waits for work: woken by the queue, in turn with all who wait for the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from db.notices import queue_topic, worker_topic
from db.stores.leases import Lease
from db.stores.workers import RegisteredWorker
from service.api.notifier import Notifier


@dataclass(frozen=True, slots=True)
class Look:
    """What a worker found in the queue."""

    leases: Sequence[Lease] = ()
    empty: bool = False
    """No request for the worker's targets waits, so that nobody else need look."""
    leaves: bool = False
    """The worker has left: it waits only for this answer to end."""


class _Turn:
    """Whose turn it is to look at a queue, and the last wake after which it was empty."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.empty_at = -1


class WaitingRoom:
    """The workers whose long polls wait, without a thread or a connection.

    A request that comes wakes all that wait for its target. They look one after the other, and
    when one finds nothing left, those behind it do not look at all.
    """

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._turns: WeakValueDictionary[tuple[str, ...], _Turn] = WeakValueDictionary()
        self.closed = False

    def close(self) -> None:
        """Send everybody home with what there is."""
        self.closed = True
        self._notifier.wake_all()

    async def first_work(
        self,
        worker: RegisteredWorker,
        look: Callable[[], Look],
        seconds: float,
        request: Request,
    ) -> Sequence[Lease]:
        """What `look` finds (in a thread), at once or until so many seconds are over.

        Empty also for a client that went away, and for a worker that leaves.
        """
        ends = time.monotonic() + seconds
        queues = [queue_topic(key) for key in worker.target_keys]
        turn = self._turns.setdefault(worker.target_keys, _Turn())
        with self._notifier.listening(worker_topic(worker.id), *queues) as ears:
            found = await run_in_threadpool(look)
            if found.leases or found.leaves or not seconds:
                return found.leases
            gone = asyncio.ensure_future(_disconnected(request))
            gone.add_done_callback(lambda _: ears.wake("disconnected"))
            try:
                while not self.closed and (left := ends - time.monotonic()) > 0:
                    woken = await ears.woken(left)
                    if gone.done() or not woken:
                        break
                    async with turn.lock:
                        heard = self._notifier.last_wake(queues)
                        if turn.empty_at >= heard and woken.issubset(queues):
                            continue
                        found = await run_in_threadpool(look)
                        if found.empty:
                            turn.empty_at = heard
                    if found.leases or found.leaves:
                        break
            finally:
                gone.cancel()
        return found.leases


async def _disconnected(request: Request) -> None:
    """Returns when the client has gone. Its request was read to the end before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
