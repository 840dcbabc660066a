"""The tuner's runner over the queue of measurements: workers elsewhere do the work.

Requests and their results live in the database, so a tuner that was killed finds them again. Only
the web process lets leases run out: while it is away no worker can renew one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from db.storage import Storage
from db.stores.leases import NewRequest, RequestState, RequestStatus
from db.stores.workers import Health
from service.jobs.interrupts import Interrupted, JobCancelled, WorkerAbsent
from tuner.cancel import CancelToken
from tuner.measure.measurement import Measurement, Status
from tuner.measure.plausible import ImplausibleError, check_measured
from tuner.measure.run_wire import is_run
from tuner.measure.wire import MeasureRequest, MeasureResult, ProtocolError

POLL_SECONDS = 0.02
REQUESTS_PER_WORKER = 3
"""Requests in the queue for each worker: some are measured, interleaved, while the others lie
ready."""

TURN_SECONDS = 10.0
"""For so long requests lie for one of several workers that were named, before the next has them."""


class RemoteRunner:
    """Measures for one job, through all workers of a target, or some that are named.

    Those that are named have a turn each: the first that is well gets all requests, the next one
    those that it has not taken in time. Where none of them has been alive for `absent_seconds`
    while requests wait, the job is given back (`gives_back`: WorkerAbsent), or the requests are
    cancelled. One in quarantine counts as alive where it may be tried with them (`canaries`).
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._priority = priority
        self._cancel = cancel or CancelToken()
        self._absent_seconds = absent_seconds
        self._gives_back = gives_back
        self._canaries = canaries
        self._present = self._turned = clock()
        self._storage = storage
        self._job_id = job_id
        self._target_key = target_key
        self._interrupt = interrupt
        self._worker_ids = tuple(worker_ids)
        self._open: dict[str, MeasureRequest] = {}
        # asked for by an earlier process of this job, which may have stored what came of them
        self._known: set[str] = set()
        self._looked_for_workers = float("-inf")
        self._workers = self._in_quarantine = 0

    @property
    def capacity(self) -> int:
        """`REQUESTS_PER_WORKER` for each living worker; as many without any, which wait for one."""
        return REQUESTS_PER_WORKER * max(1, self.workers)

    @property
    def workers(self) -> int:
        """Living workers for the target, looked up at most once a second."""
        if self._clock() - self._looked_for_workers >= 1.0:
            self._looked_for_workers = self._clock()
            found = self._storage.workers.healths(self._target_key, self._worker_ids)
            self._workers, self._in_quarantine = found[Health.HEALTHY], found[Health.QUARANTINED]
        return self._workers

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        """Queue a request; its blobs are saved first, so that no worker looks for them in vain.

        Raises:
            JobCancelled: if the job has ended: nobody is to measure for it.
            StaleLeaseError: if it is paused or has ended, and this process does not know yet.
        """
        if self._cancel.cancelled:
            raise JobCancelled(self._cancel.reason)
        # those that are there are made young: the sweep spares them until the request names them
        there = self._storage.blobs.touch(request.digests)
        for digest in set(request.digests) - there:
            self._storage.blobs.put(blobs[digest])
        if not self._open:
            self._turned = self._clock()  # a turn begins when there is something to take
        new = self._storage.leases.submit(
            [
                NewRequest(
                    request_id=request.request_id,
                    target_key=self._target_key,
                    payload=request.to_json(),
                    blob_digests=request.digests,
                    job_id=self._job_id,
                    worker_id=next(iter(self._worker_ids), None),
                    priority=self._priority,
                )
            ]
        )
        self._open[request.request_id] = request
        self._known.update({request.request_id} - {*new})

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        """Results that are there, waiting up to the timeout for a first one.

        Raises:
            Interrupted: if the process must let go of the job.
            WorkerAbsent: if nobody is there who could measure.
        """
        ends = time.monotonic() + timeout_seconds
        while True:
            if self._interrupt.cancelled:
                raise Interrupted(self._interrupt.reason)
            results = self._collect()
            self._look_for_workers()
            self._pass_on()
            left = ends - time.monotonic()
            if results or left <= 0:
                return results
            time.sleep(min(POLL_SECONDS, left))

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        """The trials are stored."""
        self._storage.leases.acknowledge(request_ids)

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        ids = list(self._open) if request_ids is None else list(request_ids)
        self._storage.leases.cancel(request_ids=ids)

    def resume(self) -> list[MeasureRequest]:
        """Requests of an earlier process of this job whose trials were not stored."""
        statuses = self._storage.leases.of_job(self._job_id, unacknowledged=True)
        # what was cancelled when the job was paused is proposed again
        known = [s.request_id for s in statuses if s.state is not RequestState.CANCELLED]
        payloads = self._storage.leases.payloads(known)
        found = []
        for request_id, payload in payloads.items():
            if is_run(payload):
                continue  # who asks for a run again finds it by its name
            try:
                found.append(MeasureRequest.from_json(payload))
            except ProtocolError:
                # of an older release: nobody could measure or read it
                self._storage.leases.cancel(request_ids=[request_id])
                self._storage.leases.acknowledge([request_id])
        self._open.update((request.request_id, request) for request in found)
        return found

    def close(self) -> None:
        """Nothing to release: the queue is the database's."""

    def _look_for_workers(self) -> None:
        """Raises WorkerAbsent, or cancels what waits, where nobody has been there for long."""
        now = self._clock()
        if not self._open or self.workers or (self._canaries and self._in_quarantine):
            self._present = now
        elif now - self._present >= self._absent_seconds:
            if self._gives_back:
                raise WorkerAbsent("no worker is alive that could measure")
            self.cancel()

    def _pass_on(self) -> None:
        """Give what nobody has taken to the next worker, if the turn of the last one is over."""
        if len(self._worker_ids) < 2 or not self._open:
            return
        now = self._clock()
        if now - self._turned < TURN_SECONDS:
            return
        self._turned = now
        known = self._storage.workers.presences(self._worker_ids)
        last, *others = self._worker_ids
        well = [name for name in others if name in known and known[name].health is Health.HEALTHY]
        if well:
            self._storage.leases.hand_on(list(self._open), well[0])
            # whoever had a turn comes last
            self._worker_ids = (well[0], *(n for n in others if n != well[0]), last)

    def _collect(self) -> list[MeasureResult]:
        if not self._open:
            return []
        outcomes = [*self._known, *self._storage.leases.unstored(self._job_id)]
        ours = [request_id for request_id in dict.fromkeys(outcomes) if request_id in self._open]
        found = self._storage.leases.status(ours)
        final = {name: status for name, status in found.items() if status.state.final}
        self._known -= final.keys()
        return [result_of(self._open.pop(name), status) for name, status in final.items()]


def result_of(request: MeasureRequest, status: RequestStatus) -> MeasureResult:
    """The outcome of a request as the tuner knows it. Raises ValueError if it has none yet."""
    worker = status.worker_id or ""
    match status.state:
        case RequestState.DONE:
            try:
                result = MeasureResult.from_json(status.result or {})
                check_measured(request, result)
                return _by(worker, result)
            except (ProtocolError, ImplausibleError) as error:
                return _same(request, Status.WORKER_LOST, str(error), worker)
        case RequestState.CANCELLED:
            return _same(request, Status.CANCELLED, "cancelled", worker)
        case RequestState.FAILED | RequestState.EXPIRED:
            return _same(request, Status.WORKER_LOST, status.error or "lost", worker)
        case RequestState.SET_ASIDE:
            # one of them takes machines down: none of them is tried again
            return _same(request, Status.CRASH, status.error or "set aside", worker)
        case RequestState.QUEUED | RequestState.LEASED:
            raise ValueError(f"request '{request.request_id}' is not finished")


def _by(worker: str, result: MeasureResult) -> MeasureResult:
    """The result with the worker's id: who it is is not what it says."""
    named = tuple((name, replace(m, worker=worker)) for name, m in result.measurements)
    return replace(result, measurements=named, worker=worker)


def _same(request: MeasureRequest, status: Status, error: str, worker: str) -> MeasureResult:
    measurement = Measurement(status, error, worker=worker)
    measurements = tuple((c.trial_id, measurement) for c in request.candidates)
    return MeasureResult(request.request_id, measurements, worker)
