"""A job's client of the lease queue: submits requests, ranks workers and interprets results.

A request is a batch of kernel measurements or a run of programs; the client treats both alike. A
request whose id is already in the queue is not queued again. A request may be offered to one worker
first. Its outcome is either a plausible result or the reason why the result is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest, RequestState, RequestStatus
from tilewright.db.stores.workers import Health, RegisteredWorker
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.protocol.judge import ImplausibleError, check_result
from tilewright.tuner.protocol.messages import Request, WorkResult, read_request, read_result
from tilewright.tuner.protocol.version import ProtocolError

POLL_SECONDS = 0.02
"""Interval in seconds at which the state of a request is polled."""


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """The outcome of a request.

    Attributes:
        state: the final state of the request.
        worker: the id of the last worker that leased the request; "" if no worker leased it.
        result: the worker's result; None if it is missing, malformed or implausible.
        error: the reason why `result` is None.
    """

    state: RequestState
    worker: str
    result: WorkResult | None
    error: str = ""


class LeaseClient:
    """Submits one job's requests to the lease queue, for kernel measurements and for program runs.

    Args:
        storage: the queue, the workers and the blobs.
        job_id: the job that submits the requests.
        interrupt: set when this process must stop work on the job.
        cancel: set when the user has cancelled the job.
        worker_ids: the only workers that may be used, in order of preference; empty for all.
    """

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        interrupt: CancelToken,
        cancel: CancelToken,
        worker_ids: Sequence[str] = (),
    ) -> None:
        self.leases = storage.leases
        self.interrupt = interrupt
        self.cancel = cancel
        self.worker_ids = tuple(worker_ids)
        self._storage = storage
        self._job_id = job_id
        self._had_a_turn: list[str] = []

    def check_interrupt(self) -> None:
        """Raise Interrupted if this process must stop work on the job."""
        if self.interrupt.cancelled:
            raise Interrupted(self.interrupt.reason)

    def check_cancelled(self) -> None:
        """Raise JobCancelled if the user wants the job to end."""
        if self.cancel.cancelled:
            raise JobCancelled(self.cancel.reason)

    def submit(
        self,
        requests: Collection[Request],
        blobs: Mapping[str, bytes | memoryview],
        target_key: str,
        worker_id: str | None,
        stored: Sequence[str] = (),
        priority: int = 0,
    ) -> set[str]:
        """Queue new requests in one transaction. Return the ids of requests that were already
        queued.

        The blobs are saved before the requests, so that a worker finds the blobs of its request.

        Args:
            requests: the requests; a request whose id is in the queue is not queued again.
            blobs: the bytes that the requests refer to, by digest.
            target_key: the target of the generated code.
            worker_id: the worker to which the requests are offered first; None for any worker of
                the target.
            stored: the ids of requests to acknowledge, because the job has stored their results.
            priority: the priority relative to other jobs' requests.

        Raises:
            StaleLeaseError: if the job was paused or has ended.
        """
        # existing blobs get a new time: the sweep keeps them until a request refers to them
        wanted = {digest for request in requests for digest in request.digests}
        for digest in wanted - self._storage.blobs.touch(wanted):
            self._storage.blobs.put(bytes(blobs[digest]))
        new = [
            NewRequest(
                request_id=request.request_id,
                target_key=target_key,
                payload=request.to_json(),
                blob_digests=request.digests,
                job_id=self._job_id,
                worker_id=worker_id,
                priority=priority,
            )
            for request in requests
        ]
        return {request.request_id for request in requests} - {*self.leases.submit(new, stored)}

    def unacknowledged(self) -> list[Request]:
        """Return the job's requests from earlier processes, unless their results are already
        stored.

        Requests that an older release of Tilewright wrote in another format are cancelled.
        """
        statuses = self.leases.of_job(self._job_id, unacknowledged=True)
        # requests that were cancelled when the job was paused are proposed again
        known = [s.request_id for s in statuses if s.state is not RequestState.CANCELLED]
        found = []
        for name, payload in self.leases.payloads(known).items():
            try:
                found.append(read_request(payload))
            except ProtocolError:
                self.leases.cancel(request_ids=[name])
                self.leases.acknowledge([name])
        return found

    def workers(self, target_key: str) -> Sequence[RegisteredWorker]:
        """Return the workers that run a target and that the job may use, healthy workers first.

        A worker that did not lease the requests offered to it comes after other workers of equal
        health.
        """

        def order(worker: RegisteredWorker) -> tuple[bool, int, int]:
            named = self.worker_ids.index(worker.id) if self.worker_ids else 0
            passed = self._had_a_turn.index(worker.id) + 1 if worker.id in self._had_a_turn else 0
            return worker.health is not Health.HEALTHY, passed, named

        found = [
            worker
            for worker in self._storage.workers.list()
            if target_key in worker.target_keys
            and (not self.worker_ids or worker.id in self.worker_ids)
        ]
        return sorted(found, key=order)

    def alive(self, target_key: str, health: Health = Health.HEALTHY) -> list[RegisteredWorker]:
        """Return the workers of a target with a certain health, in the order of `workers`."""
        return [worker for worker in self.workers(target_key) if worker.health is health]

    def health(self, worker_id: str) -> Health | None:
        """Return the health of a worker; None if it was removed."""
        known = self._storage.workers.presences([worker_id]).get(worker_id)
        return None if known is None else known.health

    def pass_on(
        self, names: Sequence[str], worker_id: str, target_key: str
    ) -> RegisteredWorker | None:
        """Offer requests to another healthy worker, because `worker_id` has not leased them.

        Args:
            names: the ids of the requests.
            worker_id: the worker to which the requests were offered.
            target_key: the target of the requests.

        Returns:
            the other worker; None if no other worker is healthy, or if every request is already
            leased.
        """
        other = next((each for each in self.alive(target_key) if each.id != worker_id), None)
        if other is None or not self.leases.hand_on(names, other.id):
            return None
        # workers that left requests untaken come last
        self._had_a_turn = [each for each in self._had_a_turn if each != worker_id] + [worker_id]
        return other


def answer_of(request: Request, status: RequestStatus) -> LeaseAnswer:
    """Return the outcome of a request that has ended. Raises ValueError if it has not ended."""
    worker = status.worker_id or ""
    match status.state:
        case RequestState.QUEUED | RequestState.LEASED:
            raise ValueError(f"request '{request.request_id}' is not finished")
        case RequestState.DONE:
            try:
                result = read_result(status.result)
                check_result(request, result)
            except (ProtocolError, ImplausibleError) as error:
                return LeaseAnswer(status.state, worker, None, str(error))
            return LeaseAnswer(status.state, worker, result.by(worker))
        case RequestState.CANCELLED:
            return LeaseAnswer(status.state, worker, None, "cancelled")
        case RequestState.FAILED | RequestState.EXPIRED | RequestState.SET_ASIDE:
            return LeaseAnswer(status.state, worker, None, status.error or "lost")
