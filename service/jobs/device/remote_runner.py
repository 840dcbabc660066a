"""The tuner's runner that measures kernels on remote workers, over the lease queue.

Requests and their results are stored in the database. If a tuner process is killed, the process
that continues the job finds them there. Only the web process expires leases. While it is down, no
worker can renew a lease, so expiry by another process would cancel leases of healthy workers.

Submissions and acknowledgements are batched until the tuner polls, and then written in one
transaction. With many workers, a commit per request took most of a tuner's time. If a tuner is
killed, its unwritten batch is lost, but no worker has seen it, and the next process proposes the
same candidates again. An unwritten acknowledgement does no harm: the trials of the request are
already stored, and the next process does not store them twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tilewright.db.storage import Storage
from tilewright.db.stores.leases import RequestState, RequestStatus
from tilewright.db.stores.workers import Health
from tilewright.service.jobs.device.lease_client import POLL_SECONDS, LeaseClient, answer_of
from tilewright.service.jobs.process.interrupts import WorkerAbsent
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.plain_form import PlainForms
from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult
from tilewright.tuner.protocol.measurement import Measurement, Status

FEW = 16
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5e-4, 0.2
"""The pause in seconds between two polls of the queue is `PAUSE_SECONDS` per request in flight
beyond `FEW`, at most `LONGEST_PAUSE_SECONDS`.

The workers have enough work meanwhile. Results that arrive together are read, stored and queued in
one transaction each.
"""

REQUESTS_PER_WORKER = 3
"""Number of queued requests per worker. The worker measures some of them, interleaved, while the
others are ready."""

MOST_GATHERED, MOST_BYTES = 100, 16 << 20
"""Limits of a batch that waits for the tuner's next poll: the number of requests, and the bytes of
their blobs. A larger batch is queued at once."""

TURN_SECONDS = 10.0
"""Seconds that requests wait for one of several named workers before the next worker gets them."""


class RemoteRunner:
    """Measures the kernels of one job on all workers of a target, or on named workers.

    Named workers are used one at a time: the first one is offered all requests, and the next live
    one is offered the requests that the first has not leased after `TURN_SECONDS`.

    Args:
        storage: the queue, the workers and the blobs.
        job_id: the job that measures.
        target_key: the target of the generated code.
        interrupt: set when this process must stop work on the job.
        worker_ids: the only workers that may be used, in order of preference; empty for all.
        cancel: set when the user has cancelled the job.
        absent_seconds: the time without a live worker after which the unfinished requests are
            cancelled.
        gives_back: whether to raise WorkerAbsent after this time, so that the job waits for a
            worker, instead of cancelling the requests.
        canaries: whether a worker in quarantine, which gets one request as a test, counts as alive.
        priority: the priority relative to other jobs' requests.
        plain: whether requests contain the input arrays, for workers without NumPy, which cannot
            generate them (`tuner.measure.plain_form`).
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        target_key: str,
        interrupt: CancelToken,
        worker_ids: Sequence[str] = (),
        *,
        cancel: CancelToken | None = None,
        absent_seconds: float = float("inf"),
        gives_back: bool = False,
        canaries: bool = True,
        priority: int = 0,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._plain = PlainForms() if plain else None
        cancel = cancel or CancelToken()
        self._client = LeaseClient(storage, job_id, interrupt, cancel, worker_ids)
        self._priority = priority
        self._absent_seconds = absent_seconds
        self._gives_back = gives_back
        self._canaries = canaries
        self._present = self._turned = clock()
        self._storage = storage
        self._job_id = job_id
        self._target_key = target_key
        self._worker = next(iter(worker_ids), None)  # the worker whose turn it is
        self._open: dict[str, MeasureRequest] = {}
        self._gathered: dict[str, MeasureRequest] = {}  # not queued yet
        self._blobs: dict[str, bytes] = {}
        self._stored: list[str] = []
        self._withdrawn: dict[str, MeasureRequest] = {}
        # requested by an earlier process of this job, which may have stored their results
        self._known: set[str] = set()
        self._looked_for_workers = self._next_look = float("-inf")
        self._workers = self._in_quarantine = 0

    @property
    def capacity(self) -> int:
        """The number of requests that the tuner keeps in flight.

        It is `REQUESTS_PER_WORKER` for each live worker, or for one worker if none is alive.
        """
        return REQUESTS_PER_WORKER * max(1, self.workers)

    @property
    def workers(self) -> int:
        """The number of live workers for the target. The database is read at most once a second."""
        if self._clock() - self._looked_for_workers >= 1.0:
            self._looked_for_workers = self._clock()
            found = self._storage.workers.healths(self._target_key, self._client.worker_ids)
            self._workers, self._in_quarantine = found[Health.HEALTHY], found[Health.QUARANTINED]
        return self._workers

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        """Add a request to the batch, which is queued when it is full or when the tuner polls.

        Raises:
            JobCancelled: if the user has cancelled the job.
            StaleLeaseError: if another process has paused or ended the job.
        """
        self._client.check_cancelled()
        if self._plain is not None:
            request, more = self._plain.batch(request)
            blobs = {**blobs, **more}
        self._withdrawn.pop(request.request_id, None)
        self._open[request.request_id] = self._gathered[request.request_id] = request
        self._blobs |= {digest: blobs[digest] for digest in request.digests if digest in blobs}
        size = sum(map(len, self._blobs.values()))
        if len(self._gathered) >= MOST_GATHERED or size >= MOST_BYTES:
            self._send()

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        """Queue the batch and return the available results; block until a result arrives, or the
        timeout.

        Raises:
            Interrupted: if this process must stop work on the job.
            StaleLeaseError: if another process has paused or ended the job.
            WorkerAbsent: if no worker that could measure has been alive for `absent_seconds`.
        """
        ends = self._clock() + timeout_seconds
        while True:
            self._client.check_interrupt()
            if self._clock() >= self._next_look and (results := self._look()):
                return results
            left = ends - self._clock()
            if left > 0:
                self._client.interrupt.wait(min(POLL_SECONDS, left))
            if left <= POLL_SECONDS:
                return []  # the next poll looks at once

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        """Record that the trials of these requests are stored.

        The acknowledgement is written to the queue with the next batch, or when the tuner polls.
        """
        self._stored += request_ids
        if self._gathered:  # the tuner learns from the trials now, and that may take a while
            self._send()

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        ids = list(self._open) if request_ids is None else list(request_ids)
        self._withdraw(ids)
        self._storage.leases.cancel(request_ids=ids)

    def resume(self) -> list[MeasureRequest]:
        """Return the requests of this job's earlier processes whose trials were not stored.

        Later calls of `poll` return their results.
        """
        # acknowledge first: a request whose trial this process stored in another stage of the job
        # would be resumed here, and no result would follow once it is acknowledged
        self._tell_stored()
        # a repeated run finds its request by its name
        unacknowledged = self._client.unacknowledged()
        found = [request for request in unacknowledged if isinstance(request, MeasureRequest)]
        self._open.update((request.request_id, request) for request in found)
        return found

    def close(self) -> None:
        """Write the pending acknowledgements, and drop the requests that are not queued yet."""
        self._tell_stored()

    def _tell_stored(self) -> None:
        self._storage.leases.acknowledge(self._stored)
        self._stored.clear()

    def _send(self) -> None:
        """Write the batched requests and acknowledgements to the queue.

        Raises:
            StaleLeaseError: if another process has paused or ended the job.
        """
        if self._client.cancel.cancelled:
            self._withdraw(list(self._gathered))
        if not (self._gathered or self._stored):
            return
        if self._gathered and len(self._open) == len(self._gathered):
            self._turned = self._clock()  # a turn begins when there is something to take
        self._known |= self._client.submit(
            self._gathered.values(),
            self._blobs,
            self._target_key,
            self._worker,
            self._stored,
            self._priority,
        )
        self._gathered.clear()
        self._blobs.clear()
        self._stored.clear()

    def _withdraw(self, request_ids: Sequence[str]) -> None:
        """Remove requests from the batch that is not queued yet, because they were cancelled.

        `poll` returns a CANCELLED result for each. But if an earlier process of the job has queued
        the same request, `poll` returns that request's result.
        """
        mine = [name for name in request_ids if name in self._gathered]
        if not mine:
            return
        there = self._storage.leases.status(mine)
        for name in mine:
            del self._gathered[name]
            if name in there:
                self._known.add(name)
            else:
                self._withdrawn[name] = self._open.pop(name)
        if not self._gathered:
            self._blobs.clear()

    def _look_for_workers(self) -> None:
        """Cancel the unfinished requests if no worker has been alive for `absent_seconds`.

        If the runner was created with `gives_back`, raise WorkerAbsent instead.
        """
        now = self._clock()
        if not self._open or self.workers or (self._canaries and self._in_quarantine):
            self._present = now
        elif now - self._present >= self._absent_seconds:
            if self._gives_back:
                raise WorkerAbsent("no live worker can measure for this job")
            self.cancel()

    def _pass_on(self) -> None:
        """Offer requests to the next named worker if the present one has not leased them.

        The present worker has `TURN_SECONDS`, counted from the offer. Without named workers, the
        method does nothing.
        """
        now = self._clock()
        if self._worker is None or not self._open or now - self._turned < TURN_SECONDS:
            return
        self._turned = now
        other = self._client.pass_on(list(self._open), self._worker, self._target_key)
        if other is not None:
            self._worker = other.id

    def _look(self) -> list[MeasureResult]:
        """Queue the batch and return the available results.

        If the present named worker has not leased the requests in time, they are offered to the
        next one. If no worker has been alive for `absent_seconds`, they are cancelled, or
        WorkerAbsent is raised.
        """
        self._send()
        results = self._collect()
        self._look_for_workers()
        self._pass_on()
        many = max(0, len(self._open) - FEW)
        self._next_look = self._clock() + min(LONGEST_PAUSE_SECONDS, many * PAUSE_SECONDS)
        return results

    def _collect(self) -> list[MeasureResult]:
        if not self._open:
            return self._given_up()
        outcomes = [*self._known, *self._storage.leases.unstored(self._job_id)]
        ours = [request_id for request_id in dict.fromkeys(outcomes) if request_id in self._open]
        found = self._storage.leases.status(ours)
        final = {name: status for name, status in found.items() if status.state.final}
        self._known -= final.keys()
        ended = [result_of(self._open.pop(name), status) for name, status in final.items()]
        return self._given_up() + ended  # last: a failed query loses no result

    def _given_up(self) -> list[MeasureResult]:
        """Return a CANCELLED result for each request that was cancelled before it was queued.

        The next call does not return these results again.
        """
        withdrawn = [_same(r, Status.CANCELLED, "cancelled", "") for r in self._withdrawn.values()]
        self._withdrawn.clear()
        return withdrawn


def result_of(request: MeasureRequest, status: RequestStatus) -> MeasureResult:
    """Convert the outcome of a request to measurements of its candidates.

    If the request has no result, each candidate gets a measurement with an error status. Raises
    ValueError if the request has not ended.
    """
    answer = answer_of(request, status)
    match answer.result, answer.state:
        case MeasureResult() as result, _:
            return result
        case _, RequestState.CANCELLED:
            return _same(request, Status.CANCELLED, answer.error, answer.worker)
        case _, RequestState.SET_ASIDE:
            # one of the candidates crashes machines: none of them is tried again
            return _same(request, Status.CRASH, answer.error, answer.worker)
        case _:
            return _same(request, Status.WORKER_LOST, answer.error, answer.worker)


def _same(request: MeasureRequest, status: Status, error: str, worker: str) -> MeasureResult:
    measurement = Measurement(status, error, worker=worker)
    measurements = tuple((c.trial_id, measurement) for c in request.candidates)
    return MeasureResult(request.request_id, measurements, worker)
