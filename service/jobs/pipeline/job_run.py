"""Runs a job in a tuner process, from the claim until the job ends or goes back to the queue."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from tilewright.compiler.errors import CompilerError, memory_text
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.target import Target
from tilewright.db.errors import DatabaseError, StaleLeaseError, StorageError
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import Job, JobClaim
from tilewright.db.stores.tasks import JobTask
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.service.jobs.device.waiting import WorkerPool
from tilewright.service.jobs.inputs.given_files import (
    GivenFiles,
    SamplesFile,
    shown_name,
)
from tilewright.service.jobs.inputs.given_inputs import GivenInputs
from tilewright.service.jobs.knowledge.shared_tasks import SharedTasks
from tilewright.service.jobs.pipeline.incomplete import untuned
from tilewright.service.jobs.pipeline.job_spec import LEAST_SECONDS, JobSpec
from tilewright.service.jobs.pipeline.run_job import JobContext, JobWatcher, run_job
from tilewright.service.jobs.pipeline.tracker import Tracker
from tilewright.service.jobs.pipeline.tuning import store_artifact
from tilewright.service.jobs.plan.bounded_planning import given_bounded
from tilewright.service.jobs.plan.planning import ModelRequest
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled, WorkerAbsent
from tilewright.service.jobs.process.job_lease import JobLease
from tilewright.service.options import JobOptions
from tilewright.tuner.events import Ended, Event, Finished, Recorded

log = structlog.get_logger("tilewright.tuner")

PROGRESS_SECONDS = 0.25
"""Minimum interval in seconds between two progress events of a job."""

AWAY_SECONDS = 10.0
"""Seconds without a live worker after which a tuner stops work on a job. The job then waits in the
database until there is a worker."""


class JobRun:
    """A job that this tuner process has claimed; the method `run` runs it in the calling thread.

    Args:
        context: the resources of the process.
        claim: the tuner's claim on the job.
        job: the job.
        lease_seconds: the time after which the claim expires if it is not renewed.
    """

    def __init__(
        self, context: JobContext, claim: JobClaim, job: Job, lease_seconds: float
    ) -> None:
        self.job = job
        self._context = context
        self._storage = context.storage
        self._claim = claim
        self._lease = JobLease(self._storage, claim, lease_seconds)

    @property
    def holds(self) -> bool:
        """Whether this tuner may still work on the job: nothing has interrupted or cancelled it."""
        return not (self._lease.interrupt.cancelled or self._lease.cancel.cancelled)

    def interrupt(self, reason: str) -> None:
        """Make `run` stop work on the job as soon as possible, and return the job to the queue."""
        self._lease.interrupt.cancel(reason)

    def run(self) -> None:
        """Run the job until it ends, is cancelled or paused, or goes back to the queue."""
        job = self.job
        log.info("job", job=job.id, model=job.model_digest[:12], target=job.target)
        try:
            with self._lease:
                self._work()
        except StaleLeaseError:
            log.info("job let go", job=job.id, state=self._storage.jobs.get(job.id).state.value)
        finally:
            if self._storage.jobs.get(job.id).state in (JobState.CANCELLED, JobState.PAUSED):
                # requests that were queued before the tuner noticed that the job is stopped
                self._storage.leases.cancel(job_id=job.id)

    def _work(self) -> None:
        claim, jobs = self._claim, self._storage.jobs
        try:
            self._run()
        except WorkerAbsent as error:
            log.info("job waits for a worker", job=claim.job_id, reason=str(error))
            workforce = WorkerPool.of(self._storage)
            reason = workforce.reason(self.job.target_key, self.job.worker_id)
            jobs.release(claim, waits=reason)
        except Interrupted as error:
            log.info("job given back", job=claim.job_id, reason=str(error))
            jobs.release(claim)
        except JobCancelled:
            log.info("job cancelled", job=claim.job_id)
        except StaleLeaseError:
            raise
        except CompilerError as error:
            self._fail(str(error))
        except DatabaseError as error:
            if isinstance(error, StorageError) and error.retryable:
                raise  # the claim runs out, and the job is taken up again
            self._fail(str(error))
        except OSError as error:
            self._fail(f"the tuner's machine: {error.strerror or error}")
        except MemoryError as error:
            self._fail(f"the tuner's machine: {memory_text(error)}")
        except Exception as error:
            log.error("bug", job=claim.job_id, exc_info=error)
            self._fail(f"internal error: {type(error).__name__}: {error}")

    def _run(self) -> None:
        storage, job, hold = self._storage, self.job, self._lease
        target = _target_of(job, storage)
        spec = JobSpec.of_options(
            ModelRequest(
                storage.blobs.get(job.model_digest),
                Mode(target, job.threads, job.numerics),
                digest=job.model_digest,
            ),
            job.options,
        )
        spec = replace(spec, given=self._given(spec))
        options = replace(spec.options, seconds=_seconds_left(job, spec.options, storage))
        alone = self._is_alone()
        if alone:  # only known records can make an artifact, without any trial
            storage.leases.cancel(job_id=job.id)
            options = replace(options, trials=0)
        reporter = JobReporter(storage, hold, job)
        with (
            LeasedDevice(
                storage,
                job.id,
                target,
                hold.interrupt,
                hold.cancel,
                () if job.worker_id is None else (job.worker_id,),
                absent_seconds=0.0 if alone else AWAY_SECONDS,
                gives_back=not alone,
                given=spec.given,
            ) as device,
            tempfile.TemporaryDirectory(prefix="tilewright-artifact-") as temporary,
        ):
            reporter.device = device
            folder = Path(temporary) / "artifact"
            try:
                outcome = run_job(
                    replace(spec, options=options),
                    device,
                    self._context,
                    reporter,
                    job_id=job.id,
                    token=hold.cancel,
                    output=folder,
                    stop=hold.stop,
                    sharing=SharedTasks(storage, hold, lambda: reporter.phase("waiting")),
                )
            except JobCancelled:
                hold.check()  # which raises Interrupted if the user did not end the job
                raise
            hold.check()
            digest = store_artifact(folder, storage)
        if alone:
            outcome = replace(outcome, finished=replace(outcome.finished, ended=Ended.ABSENT))
        nothing = untuned(outcome, spec.options, storage, job.id)
        note = "" if nothing is None else nothing.note
        if alone and nothing is not None:
            note = f"no worker came in time: {job.reason}"
        # a verified artifact is a success of the job, whatever records it was built from
        verified = outcome.verification is not None and outcome.verification.complete
        done = nothing is None or (verified and not alone)
        state = JobState.SUCCEEDED if done else JobState.INCOMPLETE
        storage.jobs.transition(
            self._claim,
            state,
            reason=note or None,
            result={**outcome.report(), "note": note},
            artifact_digest=digest,
        )
        log.info("job ended", job=job.id, state=state.value, trials=outcome.finished.trials_done)

    def _given(self, spec: JobSpec) -> GivenInputs:
        """Read the samples and values that the user gave for the job's model."""
        options, shop = spec.options, self._context
        with ExitStack() as stack:
            files = tuple(
                SamplesFile(shown_name(each), stack.enter_context(self._storage.blobs.local(each)))
                for each in options.samples
            )
            given = GivenFiles(files, options.values, shop.samples_bytes)
            try:
                return given_bounded(spec, given, shop.planning, self._lease.stop)
            except JobCancelled:
                self._lease.check()  # which raises Interrupted if the user did not end the job
                raise

    def _is_alone(self) -> bool:
        """Whether the job has waited for a worker before, and still no worker is available."""
        job = self.job
        if job.reason is None:
            return False
        return not WorkerPool.of(self._storage).serves(job.target_key, job.worker_id)

    def _fail(self, error: str) -> None:
        log.warning("job failed", job=self.job.id, error=error)
        self._storage.jobs.transition(self._claim, JobState.FAILED, error=error)


class JobReporter(JobWatcher):
    """Writes the progress of a job to the database.

    A method raises Interrupted if this process must stop work on the job, and JobCancelled if the
    user has cancelled the job.
    """

    def __init__(self, storage: Storage, hold: JobLease, job: Job) -> None:
        self._storage = storage
        self._lease = hold
        self._claim = hold.claim
        self._job = job
        self._tracker: Tracker | None = None
        self._told = float("-inf")
        self.device: LeasedDevice | None = None

    def phase(self, name: str) -> None:
        """Record the name of the phase that begins, such as `planning`.

        Raises:
            Interrupted: if this process must stop work on the job.
            JobCancelled: if the user has cancelled the job.
        """
        self._lease.check()
        if name == "choosing" and self.device is not None:
            # the search's in-flight requests are no longer needed
            self.device.runner.cancel()
        with self._fenced():
            if name == "building":
                self._storage.jobs.transition(self._claim, JobState.VERIFYING)
            base = self._job.progress if self._tracker is None else self._tracker.progress
            self._storage.jobs.progress(self._claim, replace(base, phase=name))

    def tasks(self, tracker: Tracker) -> None:
        self._tracker = tracker
        with self._fenced():
            self._storage.tasks.put(self._claim, list(tracker.rows.values()))
            self._storage.jobs.progress(self._claim, tracker.progress)

    def event(self, event: Event, tracker: Tracker) -> None:
        changed = tracker.take(event)
        if self._lease.cancel.cancelled:
            return  # the loop still stores finished measurements, for later jobs
        try:
            with self._fenced():
                self._tell(event, tracker, changed)
        except JobCancelled:
            return

    def _tell(self, event: Event, tracker: Tracker, changed: list[JobTask]) -> None:
        self._storage.tasks.put(self._claim, changed)
        if isinstance(event, Recorded):
            row = changed[0]
            data = {"name": row.name, "status": row.status.value, "best_seconds": row.best_seconds}
            self._storage.jobs.tell(self._claim, [("task", data)])
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS or isinstance(event, Finished):
            self._told = now
            extra: dict[str, Any] = {}
            if self.device is not None:
                extra["workers"] = self.device.workers
            if tracker.candidates_per_second is not None:
                extra["candidates_per_second"] = tracker.candidates_per_second
            self._storage.jobs.progress(self._claim, tracker.progress, event=extra)

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """A context for a write that requires the tuner's claim on the job.

        If the claim is lost, the context raises Interrupted or JobCancelled.
        """
        try:
            yield
        except StaleLeaseError:
            self._lease.lost()
            self._lease.check()


def _target_of(job: Job, storage: Storage) -> Target:
    """Return the target of a job, as the API stored it.

    The name in the job is not resolved again, because "host" means the API's machine, not this one.
    """
    _, description = storage.workloads.target(job.target_key)
    return Target.from_json(description)


def _seconds_left(job: Job, options: JobOptions, storage: Storage) -> float | None:
    """Return the remaining seconds of a job's time budget, at least LEAST_SECONDS; None without a
    budget.

    The time counts from the start of the job, also while no tuner runs it.
    """
    if options.seconds is None:
        return None
    started = job.started_at or storage.clock()
    return max(LEAST_SECONDS, options.seconds - (storage.clock() - started))
