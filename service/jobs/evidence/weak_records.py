"""Repeats measurements of weakly attested records while the tuner has no job.

A record is weakly attested if only workers of one owner have measured it. Jobs have priority over
this work: only a few records are measured at a time, by idle workers, with a lower priority than
any job's requests, and only until a job arrives.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence

import structlog

from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.target import Target
from tilewright.db.review_state import ClaimReporter
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import StoredRecord
from tilewright.db.stores.workers import Health
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.service.jobs.evidence.schedule_reviews import ScheduleReviews
from tilewright.service.jobs.plan.model_tasks import task_of
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.measure.references import ReferenceCache

log = structlog.get_logger("tilewright.tuner")

TURN = "weak records"
"""Name of the lock that lets one tuner at a time measure weakly attested records again."""

AGAIN = "again-"
"""Prefix of the job ids in requests for repeated measurements. Ids of real jobs never start with
it."""

LOOK_SECONDS = 30.0
"""Pause in seconds between two searches for weakly attested records."""

AT_A_TIME = 4
"""Number of records that are measured together. A new job waits for at most so many
measurements."""

AGAIN_SECONDS = 3600.0
"""Seconds until a record is measured again if only one owner still attests it after a
repetition."""

MOST_TRIED = 1000
"""Limit of the records that must wait AGAIN_SECONDS until their next measurement. If there are
more, those measured earliest need not wait."""

AWAY_SECONDS = 10.0
"""Longest time in seconds to wait for an absent worker."""

AFTER_JOBS = -1
"""Priority of the requests for repeated measurements, which come after all jobs' requests."""


class WeakRecords:
    """Repeats the measurements of stored records that only workers of one owner have measured.

    Each tuner process has an instance. A lock in the database ensures that only one tuner at a time
    repeats measurements.

    Args:
        storage: the database.
        name: the tuner's name.
        clock: returns the time in seconds.
    """

    def __init__(
        self, storage: Storage, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage = storage
        self._name = name
        self._clock = clock
        self._looked_at = float("-inf")
        self._tried: dict[str, float] = {}

    def due(self) -> Sequence[StoredRecord]:
        """Return the tuning records that an idle worker should measure next, all for one target.

        So far, only workers of one owner have measured these records. A measurement by a worker of
        another owner would make them more trustworthy. The result has at most AT_A_TIME records. It
        is empty in three cases:

        - no such record exists;
        - another tuner process has the database lock for repeating measurements;
        - the last search was less than LOOK_SECONDS ago.

        Raises:
            StorageError: if the database fails.
        """
        now = self._clock()
        if now - self._looked_at < LOOK_SECONDS:
            return ()
        self._looked_at = now
        if not self.keep_turn():
            return ()
        # this tuner has no request in flight: the existing ones are from a tuner that has gone
        left = self._storage.leases.unfinished(AGAIN)
        if left:
            self._storage.leases.cancel(request_ids=left)
        tried = [(name, at) for name, at in self._tried.items() if now - at < AGAIN_SECONDS]
        self._tried = dict(tried[-MOST_TRIED:])
        weak = [
            self._storage.ledger.weak(
                target, CODEGEN_VERSION, workers, but=self._tried, limit=AT_A_TIME
            )
            for target, workers in self._idle_workers().items()
        ]
        found = max(filter(None, weak), key=lambda some: some[0].stored_at, default=())
        self._tried |= {one.id: now for one in found}
        return found

    def keep_turn(self) -> bool:
        """Acquire the lock that lets one tuner repeat measurements, or renew it for a few seconds.

        While `measure` runs in a thread, the tuner must call this method repeatedly, and cancel
        `measure` if another tuner has the lock.

        Returns:
            whether this tuner has the lock.

        Raises:
            StorageError: if the database fails.
        """
        return self._storage.sweeps.take(TURN, self._name) is not None

    def measure(
        self,
        due: Sequence[StoredRecord],
        builder: Builder,
        references: ReferenceCache,
        token: CancelToken,
    ) -> None:
        """Repeat the measurements of records of one target, and confirm or dispute the records.

        Args:
            due: the records, at least one.
            builder: compiles the kernels.
            references: the cache of expected outputs.
            token: ends the work when it is cancelled.

        Raises:
            CompilerError: if a kernel cannot be compiled.
            DatabaseError: if the database fails.
        """
        storage = self._storage
        first = due[0].record.key
        target = Target.from_json(storage.workloads.target(first.target_key)[1])
        texts = storage.workloads.workloads([one.record.key.workload_key for one in due])
        tasks = [
            task_of(
                Workload.parse(texts[key.workload_key]), Mode(target, key.threads, key.numerics)
            )
            for key in (one.record.key for one in due)
        ]
        name = f"{AGAIN}{uuid.uuid4().hex}"  # not a job's id: its results are read once
        device = LeasedDevice(
            storage,
            name,
            target,
            CancelToken(),
            token,
            absent_seconds=AWAY_SECONDS,
            priority=AFTER_JOBS,
        )
        again = ScheduleReviews(storage, builder, device, name, references, token)
        try:
            with device:
                found = again.back(tasks, due)
        except (Interrupted, JobCancelled):
            return
        finally:
            storage.leases.cancel(job_id=name)
        self._looked_at = float("-inf")  # there may be more
        log.info("measured again", target=target.name, **found.to_json())

    def _idle_workers(self) -> Mapping[str, Sequence[ClaimReporter]]:
        """Return the healthy workers that have nothing to measure, by target key.

        A worker is listed under each of its targets. A target is left out if measurement requests
        for it are queued.
        """
        busy = self._storage.leases.in_hand()
        found: dict[str, list[ClaimReporter]] = {}
        for worker in self._storage.workers.presences().values():
            if worker.health is Health.HEALTHY and not busy.get(worker.id):
                for target in worker.target_keys:
                    found.setdefault(target, []).append(
                        ClaimReporter(worker.id, worker.owner or "")
                    )
        waiting = self._storage.leases.waiting_targets(found)
        return {target: workers for target, workers in found.items() if target not in waiting}
