"""The tuner process: takes jobs from the database, tunes, builds and verifies the artifact.

It shares nothing with the web process but the database and the blobs. If it is killed at any
moment, the next tuner process goes on from the trials that were stored.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

from compiler.errors import CompilerError
from compiler.target import Target, resolve_target
from db.errors import DatabaseError, StaleLeaseError, StorageError
from db.job_states import JobState
from db.storage import Storage
from db.stores.jobs import Job, JobClaim
from service.jobs.cost_models import train_due
from service.jobs.graph_choice import LEAST_SECONDS
from service.jobs.job_spec import JobSpec
from service.jobs.leased_device import LeasedDevice
from service.jobs.planning import ModelRequest
from service.jobs.remote_runner import Interrupted
from service.jobs.run_job import JobWatcher, Workshop, run_job
from service.jobs.run_queue import JobCancelled
from service.jobs.tracker import Tracker
from service.jobs.tuning import default_builders, store_artifact
from service.settings import Settings
from tuner.cancel import CancelToken
from tuner.events import Event, Finished, Recorded
from tuner.measure.builder import ProcessBuilder
from tuner.measure.oracle import ReferenceCache

log = structlog.get_logger("tilewright.tuner")

PROGRESS_SECONDS = 0.25
"""Shortest time between two progress events of a job."""

RETRY_SECONDS = 2.0
"""Pause after the database did not answer."""


class ClaimKeeper:
    """A context that renews the claim on a job.

    `cancel` is set when the user wants the job to end, `interrupt` when another tuner has it.
    """

    def __init__(
        self,
        storage: Storage,
        claim: JobClaim,
        lease_seconds: float,
        cancel: CancelToken,
        interrupt: CancelToken,
    ) -> None:
        self._storage = storage
        self._claim = claim
        self._lease_seconds = lease_seconds
        self._cancel = cancel
        self._interrupt = interrupt
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="claim-keeper", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        # often enough that a user's cancel is noticed soon
        pause = min(1.0, self._lease_seconds / 4)
        while not self._over.wait(pause):
            try:
                job = self._storage.jobs.renew(self._claim, self._lease_seconds)
            except StaleLeaseError:
                self._interrupt.cancel("another tuner has the job")
                return
            except StorageError as error:
                log.warning("claim not renewed", job=self._claim.job_id, error=str(error))
                continue
            if job.cancel_requested:
                self._cancel.cancel()


class TunerProcess:
    """Works on one job after the other until it is stopped."""

    def __init__(self, settings: Settings, storage: Storage, name: str | None = None) -> None:
        self._settings = settings
        self._storage = storage
        self._name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._stopping = threading.Event()
        self._interrupt = CancelToken()
        self._builder: ProcessBuilder | None = None
        self._references = ReferenceCache()

    def stop(self) -> None:
        """End soon: the job in hand goes back to the queue. Safe in a signal handler."""
        self._stopping.set()
        self._interrupt.cancel("shutdown")

    def run(self) -> None:
        """Work until `stop`."""
        log.info("tuner is up", name=self._name)
        learned = False
        try:
            while not self._stopping.is_set():
                try:
                    worked = self.work_once()
                except StorageError as error:
                    log.warning("database", error=str(error))
                    self._stopping.wait(RETRY_SECONDS)
                    continue
                if worked:
                    learned = False
                elif not learned:
                    # while nobody waits for a job
                    learned = self._learn()
                else:
                    self._stopping.wait(self._settings.tuner_poll_seconds)
        finally:
            if self._builder is not None:
                self._builder.close()
            log.info("tuner is down", name=self._name)

    def _learn(self) -> bool:
        """Train cost models for the targets with enough new trials; always true: it was tried."""
        try:
            train_due(self._storage, self._settings.cost_model_trials)
        except DatabaseError as error:
            log.warning("cost model not trained", error=str(error))
        except Exception as error:
            # a model is a help and no more: jobs go on without
            log.error("bug", exc_info=error)
        return True

    def work_once(self) -> bool:
        """Take a job, if there is one, and work on it to its end; returns whether there was one."""
        claimed = self._storage.jobs.claim(self._name, self._settings.job_lease_seconds)
        if claimed is None:
            return False
        claim, job = claimed
        # tokens of its own for each job; `stop` may have come in between
        cancel, interrupt = CancelToken(), CancelToken()
        self._interrupt = interrupt
        if self._stopping.is_set():
            interrupt.cancel("shutdown")
        log.info("job", job=job.id, model=job.model_digest[:12], target=job.target)
        lease_seconds = self._settings.job_lease_seconds
        try:
            with ClaimKeeper(self._storage, claim, lease_seconds, cancel, interrupt):
                self._work(claim, job, cancel, interrupt)
        except StaleLeaseError:
            log.warning("job lost to another tuner", job=job.id)
        return True

    def _work(self, claim: JobClaim, job: Job, cancel: CancelToken, interrupt: CancelToken) -> None:
        try:
            self._run(claim, job, cancel, interrupt)
        except Interrupted as error:
            log.info("job given back", job=job.id, reason=str(error))
            self._storage.jobs.release(claim)
        except JobCancelled:
            self._storage.leases.cancel(job_id=job.id)
            self._storage.jobs.transition(claim, JobState.CANCELLED)
        except StaleLeaseError:
            raise
        except CompilerError as error:
            self._fail(claim, str(error))
        except DatabaseError as error:
            if isinstance(error, StorageError) and error.retryable:
                raise  # the claim runs out, and the job is taken up again
            self._fail(claim, str(error))
        except OSError as error:
            self._fail(claim, f"the tuner's machine: {error.strerror or error}")
        except Exception as error:
            log.error("bug", job=job.id, exc_info=error)
            self._fail(claim, f"internal error: {type(error).__name__}: {error}")

    def _run(self, claim: JobClaim, job: Job, cancel: CancelToken, interrupt: CancelToken) -> None:
        storage = self._storage
        target = _target_of(job, storage)
        options = dict(job.options)
        worker_id = options.pop("worker_id", None)
        spec = JobSpec.of_options(
            ModelRequest(
                storage.blobs.get(job.model_digest),
                target,
                job.threads,
                job.numerics,
                digest=job.model_digest,
            ),
            options,
        )
        budget = replace(spec.budget, seconds=_seconds_left(job, storage))
        reporter = JobReporter(storage, claim, job, interrupt)
        workshop = Workshop(storage, self.builder, self._references)
        with (
            LeasedDevice(storage, job.id, target, interrupt, cancel, worker_id) as device,
            tempfile.TemporaryDirectory(prefix="tilewright-artifact-") as temporary,
        ):
            reporter.device = device
            folder = Path(temporary) / "artifact"
            outcome = run_job(
                replace(spec, budget=budget),
                device,
                workshop,
                reporter,
                job_id=job.id,
                token=cancel,
                output=folder,
            )
            if outcome.cancelled:
                storage.leases.cancel(job_id=job.id)
                storage.jobs.transition(claim, JobState.CANCELLED)
                return
            digest = store_artifact(folder, storage)
        storage.jobs.transition(
            claim, JobState.SUCCEEDED, result=outcome.report(), artifact_digest=digest
        )
        log.info("job succeeded", job=job.id, trials=outcome.finished.trials_done)

    def _fail(self, claim: JobClaim, error: str) -> None:
        log.warning("job failed", job=claim.job_id, error=error)
        self._storage.leases.cancel(job_id=claim.job_id)
        self._storage.jobs.transition(claim, JobState.FAILED, error=error)

    @property
    def builder(self) -> ProcessBuilder:
        """Builder processes, started for the first job and kept."""
        if self._builder is None:
            self._builder = ProcessBuilder(self._settings.builders or default_builders())
            self._builder.start()
        return self._builder


class JobReporter(JobWatcher):
    """Tells the database how a job goes, and ends it when the tuner has to let go of it."""

    def __init__(self, storage: Storage, claim: JobClaim, job: Job, interrupt: CancelToken) -> None:
        self._storage = storage
        self._claim = claim
        self._job = job
        self._interrupt = interrupt
        self._tracker: Tracker | None = None
        self._told = float("-inf")
        self.device: LeasedDevice | None = None

    def phase(self, name: str) -> None:
        """Raises Interrupted if the process must let go of the job."""
        if self._interrupt.cancelled:
            raise Interrupted(self._interrupt.reason)
        if name == "settling" and self.device is not None:
            # what the search still had under way is of no use any more
            self.device.runner.cancel()
        if name == "building":
            self._storage.jobs.transition(self._claim, JobState.VERIFYING)
        base = self._job.progress if self._tracker is None else self._tracker.progress
        self._storage.jobs.progress(self._claim, replace(base, phase=name))

    def tasks(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._storage.tasks.put(self._claim, list(tracker.rows.values()))
        self._storage.jobs.progress(self._claim, tracker.progress)

    def event(self, event: Event, tracker: Tracker) -> None:
        changed = tracker.take(event)
        self._storage.tasks.put(self._claim, changed)
        if isinstance(event, Recorded):
            row = changed[0]
            data = {"name": row.name, "status": row.status.value, "best_seconds": row.best_seconds}
            self._storage.events.append(self._job.id, [("task", data)])
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS or isinstance(event, Finished):
            self._told = now
            extra: dict[str, Any] = {}
            if self.device is not None:
                extra["workers"] = self.device.workers
            if tracker.candidates_per_second is not None:
                extra["candidates_per_second"] = tracker.candidates_per_second
            self._storage.jobs.progress(self._claim, tracker.progress, event=extra)


def _target_of(job: Job, storage: Storage) -> Target:
    """The target that the api resolved for the job: "host" is the api's machine, not this one."""
    if job.target_key is None:  # a job of an earlier release
        return resolve_target(job.target)
    _, description = storage.workloads.target(job.target_key)
    return Target.from_json(description)


def _seconds_left(job: Job, storage: Storage) -> float | None:
    """Seconds left of the job's time, which also runs while no tuner is up."""
    seconds = job.options.get("seconds")
    if seconds is None:
        return None
    started = job.started_at or storage.clock()
    return max(LEAST_SECONDS, float(seconds) - (storage.clock() - started))
