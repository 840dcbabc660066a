"""State shared by the threads of a worker: its in-flight leases, and the next step of each."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tilewright.service.worker.cache import BlobCache
from tilewright.service.worker.state import StateFolder
from tilewright.tuner.measure.job_queue import JobQueue
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.messages import Request

PREFETCHED = 4
"""The most in-flight leases: some are measured, interleaved, and the next ones are ready."""


@dataclass(slots=True)
class HeldLease:
    """A lease that this process works on. `lost` is set when the service reports it lost."""

    request: Request
    lease_id: str
    lost: threading.Event = field(default_factory=threading.Event)


class InFlightLeases:
    """The in-flight leases of a worker. The condition `changed` guards them and their files.

    Attributes:
        changed: must be held to access `leases` or `unreported`; notified when a slot is free.
        leases: the leases by request id.
        unreported: request ids whose results wait in the spool.
        ready: leases whose blobs are on the disk.
        away: whether the device is unreachable; the worker then claims no leases.
        stopping: set when the worker ends, by any thread.
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
        """Stop the worker: all threads check this flag."""
        self.stopping.set()
        self.report_now.set()

    def room(self) -> int:
        """Number of leases that may be claimed, at most PREFETCHED. Call it with `changed` held.

        Returns 0 while a result is unreported. Results are reported first, because the service
        offers a request again once its lease expires.
        """
        return 0 if self.unreported or self.away else PREFETCHED - len(self.leases)

    def held(self) -> dict[str, str]:
        """The lease of each in-flight request."""
        with self.changed:
            return {name: work.lease_id for name, work in self.leases.items()}

    def digests(self) -> set[str]:
        """The digests of the blobs that in-flight leases need."""
        with self.changed:
            return {d for work in self.leases.values() for d in work.request.digests}

    def release(self, request_id: str) -> None:
        """Remove a lease that is measured, lost or failed."""
        with self.changed:
            work = self.leases.pop(request_id, None)
            self.files.drop(request_id)
            if work is not None and isinstance(work.request, MeasureRequest):
                library = work.request.library_digest
                if library not in self.digests():
                    # no other request uses this library; references and weights are shared
                    self.cache.path(library).unlink(missing_ok=True)
            self.changed.notify_all()
