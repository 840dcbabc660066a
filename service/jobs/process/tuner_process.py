"""The tuner process: claims jobs, tunes their models, and builds and verifies artifacts.

The process runs several jobs at a time, each in a thread. All jobs share the builder processes,
which compile candidates. Without a job, the process trains cost models. It also repeats
measurements of tuning records that only workers of one owner have measured.

The process communicates with the web process only through the database and the blobs (stored
files). If it is killed at any moment, the next tuner process continues from the stored
measurements.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

import structlog

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.process import release_memory
from tilewright.db.errors import DatabaseError, StorageError
from tilewright.db.storage import Storage
from tilewright.db.stores.job_claims import SHARED_ATTEMPTS
from tilewright.db.stores.sweeps import CLAIMS, TERM_SECONDS
from tilewright.service.jobs.device.waiting import match_jobs
from tilewright.service.jobs.evidence.bounded_verification import verification_limits
from tilewright.service.jobs.evidence.weak_records import WeakRecords
from tilewright.service.jobs.knowledge.cost_models import Untrained, train_due
from tilewright.service.jobs.pipeline.job_run import JobRun
from tilewright.service.jobs.pipeline.run_job import JobContext
from tilewright.service.jobs.plan.bounded_planning import planning_limits
from tilewright.service.jobs.process.builders import open_builder
from tilewright.service.settings import Settings
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.measure.references import ReferenceCache

log = structlog.get_logger("tilewright.tuner")

RETRY_SECONDS = 2.0
"""Pause in seconds after the database did not answer."""

KEEP_SECONDS = TERM_SECONDS / 3
"""Longest time in seconds between two renewals of the lock for claiming jobs."""


class TunerProcess:
    """Runs jobs, several at a time, until it is stopped.

    Args:
        settings: the settings of the service.
        storage: the database and the blobs.
        name: the name of the process in the database; None for the host name and process id.
    """

    def __init__(self, settings: Settings, storage: Storage, name: str | None = None) -> None:
        self._settings = settings
        self._storage = storage
        self._name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._runs: dict[JobRun, threading.Thread] = {}
        self._builder: Builder | None = None
        self._weak = WeakRecords(storage, self._name)
        self._beside: threading.Thread | None = None
        self._leave_it = CancelToken()
        self._ended = False

    def stop(self) -> None:
        """Make `run` end soon; the running jobs return to the queue.

        Call this method from a thread, not from a signal handler; the handler can start the thread.
        """
        self._stopping.set()
        self._leave_it.cancel("shutdown")
        for run in list(self._runs):
            run.interrupt("shutdown")
        self._wake.set()

    def run(self) -> None:
        """Claim jobs and run them until `stop` is called."""
        log.info("tuner is up", name=self._name, jobs=self._settings.tuner_jobs)
        learned = False
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                try:
                    # the api reports ready only while a tuner passes here regularly
                    self._storage.sweeps.take(CLAIMS, self._name)
                    match_jobs(self._storage)
                    self._give_back()
                    taken = self.take()
                except StorageError as error:
                    log.warning("database", error=str(error))
                    self._stopping.wait(RETRY_SECONDS)
                    continue
                if taken is not None:
                    learned = False
                    self._leave_it.cancel("a job has come")
                    self._start(taken)
                elif not (learned or self._runs):
                    # while no job waits
                    learned = self._learn()
                else:
                    if not self._runs:
                        self._measure_again()
                    self._wake.wait(min(self._settings.tuner_poll_seconds, KEEP_SECONDS))
        finally:
            self._leave_it.cancel("shutdown")
            for thread in [*self._runs.values(), *filter(None, [self._beside])]:
                thread.join()
            if self._builder is not None:
                self._builder.close()
            with suppress(StorageError):  # other processes also notice a killed tuner
                self._storage.sweeps.leave(CLAIMS, self._name)
            log.info("tuner is down", name=self._name)

    def _give_back(self) -> None:
        """Return unused memory to the operating system if a job has ended and no other job runs."""
        if self._ended and not self._runs:
            self._ended = False
            release_memory()

    def take(self) -> JobRun | None:
        """Claim the next job, and return its run.

        A job that may have killed a tuner before runs alone, so that no other job is lost with it.

        Returns:
            the run of the job; None if no job waits, or the maximal number of jobs runs already.
        """
        held = [run.job for run in list(self._runs) if run.holds]
        if len(held) >= self._settings.tuner_jobs:
            return None
        if any(job.attempts > SHARED_ATTEMPTS for job in held):
            return None
        settings = self._settings
        claimed = self._storage.jobs.claim(
            self._name,
            settings.job_lease_seconds,
            max_running=settings.max_running_jobs,
            wait_seconds=settings.job_wait_seconds,
            stall_seconds=settings.job_stall_seconds,
            shared=bool(held),
        )
        if claimed is None:
            return None
        limits = planning_limits(settings), verification_limits(settings)
        job_context = JobContext(self._storage, self.builder, *limits, settings.max_samples_bytes)
        return JobRun(job_context, *claimed, settings.job_lease_seconds)

    def _start(self, run: JobRun) -> None:
        """Run a job in a separate thread."""

        def work() -> None:
            try:
                run.run()
            except StorageError as error:
                # the claim runs out, and the job is taken up again
                log.warning("database", job=run.job.id, error=str(error))
            finally:
                del self._runs[run]
                self._ended = True
                self._wake.set()

        thread = threading.Thread(target=work, name=f"job-{run.job.id[:8]}", daemon=True)
        self._runs[run] = thread
        thread.start()
        if self._stopping.is_set():  # `stop` may have been called before the run was in the list
            run.interrupt("shutdown")

    def _learn(self) -> bool:
        """Train cost models for the targets with enough new trials.

        Returns:
            True, which the main loop stores, so that it does not call this method again before the
            next job.
        """
        try:
            for trained in train_due(self._storage, self._settings.cost_model_trials):
                if isinstance(trained, Untrained):
                    log.warning("cost model not trained", error=trained.reason)
        except Exception as error:
            # a cost model is optional: jobs continue without one
            log.error("bug", exc_info=error)
        return True

    def _measure_again(self) -> None:
        """Start a thread that repeats measurements of records that only one owner has measured.

        If the thread already runs, renew the database lock that prevents other tuners from
        repeating the same measurements. If another tuner has the lock, stop the thread instead.
        """
        try:
            if self._beside is not None and self._beside.is_alive():
                if not self._weak.keep_turn():
                    self._leave_it.cancel("it is another tuner's turn")
                return
            due = self._weak.due()
            if not due:
                return
            builder, token = self.builder, CancelToken()
        except (CompilerError, StorageError) as error:
            # no builders or no database at present: only a log line, because no job is affected
            log.warning("not measured again", error=str(error))
            return

        def work() -> None:
            try:
                with ReferenceCache() as references:
                    self._weak.measure(due, builder, references, token)
            except (CompilerError, DatabaseError) as error:
                log.warning("not measured again", error=str(error))
            except Exception as error:
                # jobs continue without it
                log.error("bug", exc_info=error)
            finally:
                self._wake.set()

        self._leave_it = token
        self._beside = threading.Thread(target=work, name="again", daemon=True)
        self._beside.start()
        if self._stopping.is_set():  # `stop` may have cancelled the token before
            token.cancel("shutdown")

    @property
    def builder(self) -> Builder:
        """The builder processes; the first job starts them, and all jobs share them."""
        if self._builder is None:
            self._builder = open_builder(self._settings)
            self._builder.start()
        return self._builder
