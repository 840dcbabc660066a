"""The leases that a worker process holds, shared by its threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tilewright.service.worker.cache import BlobCache
from tilewright.service.worker.state import StateFolder
from tilewright.tuner.measure.job_queue import JobQueue
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.messages import Request

PREFETCHED = 4
"""Limit of the leases that a worker holds. The blobs of some are downloaded while others are
measured."""


@dataclass(slots=True)
class HeldLease:
    """A lease that this worker process holds.

    Attributes:
        request: the request to measure or run.
        lease_id: the id of the lease.
        lost: set when the service reports that the worker no longer holds the lease, for example
            because it expired. The worker then does not finish the request.
    """

    request: Request
    lease_id: str
    lost: threading.Event = field(default_factory=threading.Event)


class InFlightLeases:
    """The leases that a worker has claimed and not yet finished, shared by its threads.

    Attributes:
        files: the state on disk.
        cache: the blobs on disk.
        changed: a condition variable that must be held to access `leases` or `unreported`; notified
            when the worker may claim another lease.
        leases: the leases by request id.
        unreported: the request ids of the results in the spool, which the service has not
            acknowledged yet.
        ready: the leases whose blobs are on disk.
        away: whether the device is unreachable; the worker then claims no leases.
        stopping: set when any thread ends the worker.
        report_now: set when the spool has a new result.
    """

    def __init__(self, files: StateFolder, cache: BlobCache) -> None:
        self.files = files
        self.cache = cache
        self.changed = threading.Condition()
        self.leases: dict[str, HeldLease] = {}
        self.unreported: set[str] = set()
        self.ready: JobQueue[HeldLease] = JobQueue(lambda work: work.request)
        self.away = False
        self.stopping = threading.Event()
        self.report_now = threading.Event()

    def stop(self) -> None:
        """Tell all threads of the worker to end, by setting `stopping`."""
        self.stopping.set()
        self.report_now.set()

    def room(self) -> int:
        """Return how many more measurement requests the worker may claim, at most PREFETCHED.

        The number is 0 while the device is unreachable, or while a finished result is stored on
        disk because the service has not acknowledged it. The caller must hold the condition
        variable `changed`.
        """
        return 0 if self.unreported or self.away else PREFETCHED - len(self.leases)

    def held(self) -> dict[str, str]:
        """Return the lease id of each in-flight request, by request id."""
        with self.changed:
            return {name: work.lease_id for name, work in self.leases.items()}

    def digests(self) -> set[str]:
        """Return the digests of the blobs that the requests in `leases` need."""
        with self.changed:
            return {d for work in self.leases.values() for d in work.request.digests}

    def release(self, request_id: str) -> None:
        """Remove a lease that has ended: it is finished, lost, failed or returned to the service.

        The shared library of its candidates is deleted from the disk if no other lease uses it.
        """
        with self.changed:
            work = self.leases.pop(request_id, None)
            self.files.drop(request_id)
            if work is not None and isinstance(work.request, MeasureRequest):
                library = work.request.library_digest
                if library not in self.digests():
                    # no other request uses this library; references and weights are shared
                    self.cache.path(library).unlink(missing_ok=True)
            self.changed.notify_all()
