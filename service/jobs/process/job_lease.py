"""A tuner's lease on a job, which a background thread renews.

If the lease is lost, the thread sets a token that ends the work on the job.
"""

from __future__ import annotations

import threading
from types import TracebackType

import structlog

from tilewright.db.errors import StaleLeaseError, StorageError
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import JobClaim
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled
from tilewright.tuner.cancel import AnyToken, CancelToken

log = structlog.get_logger("tilewright.tuner")

RENEW_SECONDS = 0.5
"""Longest time in seconds between two renewals of a tuner's lease on a job. Within this time the
tuner notices that the user has paused or cancelled the job."""


class JobLease:
    """Renews a tuner's claim on a job in a background thread, inside a `with` block.

    Attributes:
        claim: the claim.
        cancel: set when the user has cancelled the job.
        interrupt: set when the job is paused, another tuner has claimed it, or this process ends.
        stop: set when `cancel` or `interrupt` is set.
    """

    def __init__(self, storage: Storage, claim: JobClaim, lease_seconds: float) -> None:
        self.claim = claim
        self.cancel = CancelToken()
        self.interrupt = CancelToken()
        self.stop = AnyToken((self.cancel, self.interrupt))
        self._storage = storage
        self._lease_seconds = lease_seconds
        self._over = threading.Event()
        name = f"hold-{claim.job_id[:8]}"
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    def __enter__(self) -> JobLease:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def lost(self) -> None:
        """Set the token that ends this process's work on the job, after the claim was lost.

        The token is `cancel` if the job was cancelled, otherwise `interrupt`.
        """
        match self._storage.jobs.get(self.claim.job_id).state:
            case JobState.CANCELLED:
                self.cancel.cancel()
            case JobState.PAUSED:
                self.interrupt.cancel("paused")
            case _:
                self.interrupt.cancel("another tuner has the job")

    def check(self) -> None:
        """Raise an exception if the tuner must stop work on the job.

        Raises:
            Interrupted: if `interrupt` is set.
            JobCancelled: if `cancel` is set.
        """
        if self.interrupt.cancelled:
            raise Interrupted(self.interrupt.reason)
        if self.cancel.cancelled:
            raise JobCancelled(self.cancel.reason)

    def _keep(self) -> None:
        pause = min(RENEW_SECONDS, self._lease_seconds / 4)
        while not self._over.wait(pause):
            try:
                if self._renewed():
                    continue
                self.lost()
                return
            except StorageError as error:
                log.warning("claim not renewed", job=self.claim.job_id, error=str(error))

    def _renewed(self) -> bool:
        try:
            self._storage.jobs.renew(self.claim, self._lease_seconds)
        except StaleLeaseError:
            return False
        return True
