"""Distributes measurement requests to the workers whose claims wait in this process, in batches.

In this module, a claim is a worker's call for leases. One transaction leases requests to many
claims; claims that arrive during it form the next batch. A claim for which no request is queued
waits without a thread or a connection. When a notice announces new requests for a target, the
dispatcher tries the claims that wait for this target again, until no request is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import structlog
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.requests import Request

from tilewright.db.errors import DatabaseError, NotFoundError
from tilewright.db.notices import queue_topic, worker_topic
from tilewright.db.stores.lease_claims import Claim, Found
from tilewright.db.stores.leases import Lease
from tilewright.service.api.notifier import Notifier

MOST = 64
"""Limit of worker claims for which one transaction looks for requests."""

log = structlog.get_logger("tilewright.web")


class _Queue:
    """The waiting claims for the same targets, in the order in which they are tried next.

    A claim is a worker's call for measurement requests.

    Attributes:
        idle: the waiting claims that are neither scheduled for a batch nor in the running batch.
        members: the number of all claims for these targets.
        announced: how often new measurement requests for the targets were announced so far.
        empty_at: the value of `announced` before the last batch that found no queued request.
    """

    def __init__(self, called: Callable[[], None]) -> None:
        self._called = called
        self.idle: dict[_Waiter, None] = {}
        self.members = 0
        self.announced = 0
        self.empty_at = 0
        self.place = ExitStack()

    def wake(self, _: str) -> None:
        self.announced += 1
        self._called()

    def due(self, most: int) -> list[_Waiter]:
        """Return up to `most` claims (workers' calls for measurement requests) for the next batch.

        Return an empty list if the last batch found no queued request for the targets, and no new
        request was announced since then.
        """
        if self.empty_at == self.announced:
            return []
        # claims that were looked up since the last notice are at the end
        return [w for w in islice(self.idle, most) if w.looked_at != self.announced]


class _Waiter:
    """A worker's call for measurement requests (a claim), which waits for an answer.

    If the worker has sent the claim again, all its HTTP requests share one waiter. An unanswered
    claim is scheduled for the next batch, in the running batch, or idle. An idle claim waits until
    new measurement requests are announced.
    """

    def __init__(self, claim: Claim, queue: _Queue, woken: Callable[[_Waiter], None]) -> None:
        self.claim = claim
        self.queue = queue
        self.answer: asyncio.Future[Sequence[Lease]] = asyncio.get_running_loop().create_future()
        self.place = ExitStack()
        self.askers = 0
        self.taken = False  # whether a request received the answer
        self.patient = True
        self.looking = False
        self.changed = False  # its worker changed during the look-up
        self.looked_at = -1  # the queue's `announced` at the last look-up
        self._woken = woken

    def wake(self, _: str) -> None:
        self._woken(self)


class ClaimDispatcher:
    """Leases measurement requests to workers whose claims wait in this process.

    Args:
        notifier: announces new requests for targets, and changes of workers.
        look: leases requests to a batch of claims; called in a thread.
        give_back: releases leases of a worker, given its id and the lease ids; called in a thread.
    """

    def __init__(
        self,
        notifier: Notifier,
        look: Callable[[Sequence[Claim]], Sequence[Found | NotFoundError]],
        give_back: Callable[[str, Sequence[str]], object],
    ) -> None:
        self._notifier = notifier
        self._look = look
        self._give_back = give_back
        self._queues: dict[tuple[str, ...], _Queue] = {}
        self._named: dict[tuple[str, str], _Waiter] = {}
        self._changed: dict[_Waiter, None] = {}
        self._serving: asyncio.Task[None] | None = None
        self._giving_back: set[asyncio.Task[None]] = set()
        self._thread = CapacityLimiter(1)  # a separate thread that other work cannot delay
        self.closed = False

    def close(self) -> None:
        """Answer all waiting claims without leases, because the process stops.

        A claim is a worker's call for measurement requests. A claim in the running batch gets the
        result of that batch. A claim that arrives later does not wait: it gets only requests that
        are queued at that time.
        """
        self.closed = True
        for queue in self._queues.values():
            for waiter in list(queue.idle):
                self._no_longer(waiter)

    async def end(self) -> None:
        """Wait for the end of the running batch and of all releases of leases.

        Call `close` first, so that no waiting claim starts another batch.
        """
        while tasks := {*self._giving_back, *([self._serving] if self._serving else [])}:
            await asyncio.wait(tasks)

    async def first_work(self, claim: Claim, seconds: float, request: Request) -> Sequence[Lease]:
        """Wait up to `seconds` for requests that a claim can lease. Return the leases.

        The result is empty at the timeout, if the worker unregisters, or if the client disconnects.
        Leases that a disconnected client did not receive are released.
        """
        with self._waiting(claim) as waiter:
            gone = asyncio.ensure_future(_disconnected(request))
            either: set[asyncio.Future[Any]] = {waiter.answer, gone}
            try:
                await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if not gone.done():
                    self._no_longer(waiter)
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return ()
                waiter.taken = True
                return waiter.answer.result()
            finally:
                gone.cancel()

    @contextmanager
    def _waiting(self, claim: Claim) -> Iterator[_Waiter]:
        """Yield the `_Waiter` object of a claim (a worker's call for measurement requests).

        HTTP requests that repeat a claim share one object. When the last of these requests ends,
        the object is removed.
        """
        waiter = self._named.get(_name(claim)) or self._enter(claim)
        waiter.askers += 1
        try:
            yield waiter
        finally:
            waiter.askers -= 1
            if not waiter.askers and not waiter.looking:
                self._leave(waiter)

    def _enter(self, claim: Claim) -> _Waiter:
        queue = self._queues.get(claim.target_keys)
        if queue is None:
            queue = self._queues[claim.target_keys] = _Queue(self._call)
            topics = [queue_topic(key) for key in claim.target_keys]
            queue.place.enter_context(self._notifier.telling(queue, *topics))
        queue.members += 1
        waiter = _Waiter(claim, queue, self._woken)
        topic = worker_topic(claim.worker_id)
        waiter.place.enter_context(self._notifier.telling(waiter, topic))
        if claim.claim_id is not None:
            self._named[_name(claim)] = waiter
        waiter.patient = not self.closed
        self._changed[waiter] = None
        self._call()
        return waiter

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a waiting claim that no HTTP request awaits any more.

        A claim is a worker's call for measurement requests. If leases were granted to the claim but
        not delivered to an HTTP request, they are released.
        """
        queue = waiter.queue
        self._changed.pop(waiter, None)
        queue.idle.pop(waiter, None)
        self._named.pop(_name(waiter.claim), None)
        waiter.place.close()
        queue.members -= 1
        if not queue.members:
            queue.place.close()
            del self._queues[waiter.claim.target_keys]
        answered = waiter.answer.done() and waiter.answer.exception() is None
        if answered and not waiter.taken and (leases := waiter.answer.result()):
            task = asyncio.create_task(self._return(waiter.claim.worker_id, leases))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _return(self, worker_id: str, leases: Sequence[Lease]) -> None:
        names = [lease.lease_id for lease in leases]
        try:
            await run_sync(self._give_back, worker_id, names)
        except DatabaseError as error:  # then the leases expire
            log.warning("leases not given back", worker=worker_id, error=str(error))

    def _no_longer(self, waiter: _Waiter) -> None:
        """Let a claim (a worker's call for measurement requests) wait no longer.

        An idle claim is answered at once, without leases. A claim in the running or the next batch
        gets the result of that batch.
        """
        waiter.patient = False
        if waiter in waiter.queue.idle:
            del waiter.queue.idle[waiter]
            waiter.answer.set_result(())

    def _woken(self, waiter: _Waiter) -> None:
        """Try a waiting claim again in the next batch, because the state of its worker has changed.

        A claim is a worker's call for measurement requests. For example, an unregistered worker
        gets no leases any more, so its claim stops waiting.
        """
        waiter.changed = waiter.looking
        if waiter in waiter.queue.idle:
            del waiter.queue.idle[waiter]
            self._changed[waiter] = None
            self._call()

    def _call(self) -> None:
        if self._serving is None:  # the task starts after the callbacks that are already due
            self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        """Lease measurement requests to the waiting workers, one batch of workers at a time.

        Return when no waiting worker can get a request until new requests are announced.
        """
        try:
            while some := self._due():
                claims = [waiter.claim for waiter in some]
                found: Sequence[Found | Exception]
                try:
                    found = await run_sync(self._look, claims, limiter=self._thread)
                except Exception as error:  # noqa: BLE001 (each waiter of the batch raises it)
                    found = [error] * len(some)
                for waiter, each in zip(some, found, strict=True):
                    self._told(waiter, each)
        finally:
            self._serving = None

    def _due(self) -> Sequence[_Waiter]:
        """Select up to `MOST` claims (workers' calls for measurement requests) for the next batch.

        New claims, and claims of workers whose state changed, come first. Then follow claims whose
        targets may have queued requests. The selected claims are marked as part of the batch.
        """
        some = list(islice(self._changed, MOST))
        for queue in self._queues.values():
            some += queue.due(MOST - len(some))
        for waiter in some:
            self._changed.pop(waiter, None)
            waiter.queue.idle.pop(waiter, None)
            waiter.looking = True
            waiter.looked_at = waiter.queue.announced
        return some

    def _told(self, waiter: _Waiter, found: Found | Exception) -> None:
        waiter.looking = False
        changed, waiter.changed = waiter.changed, False
        if isinstance(found, Exception):
            waiter.answer.set_exception(found)
        elif found.leases or found.gone or not waiter.patient or self.closed:
            waiter.answer.set_result(found.leases)
        elif changed:
            self._changed[waiter] = None
        else:
            waiter.queue.idle[waiter] = None
        if isinstance(found, Found) and found.empty:
            waiter.queue.empty_at = waiter.looked_at
        if not waiter.askers:
            self._leave(waiter)


def _name(claim: Claim) -> tuple[str, str]:
    """Return the (worker id, claim id) pair that identifies a worker's claim for requests.

    A claim that is sent again has the same pair.
    """
    return claim.worker_id, claim.claim_id or ""


async def _disconnected(request: Request) -> None:
    """Wait until the client disconnects. The request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
