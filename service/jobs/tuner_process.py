"""The tuner process: takes jobs from the database, tunes, builds and verifies the artifact.

It shares nothing with the web process but the database and the blobs. Killed at any moment, its
successor (or itself, started again) goes on from the trials that were stored.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

from compiler.errors import CompilerError
from compiler.program_builder import KernelCache
from compiler.runtime.artifact import Artifact
from db.errors import DatabaseError, StaleLeaseError, StorageError
from db.job_states import JobState
from db.storage import Storage
from db.stores.jobs import Job, JobClaim, JobProgress
from service.jobs.cost_models import train_due
from service.jobs.graph_choice import choose_plan, confirm_plan, keep_plan
from service.jobs.no_regret import settle
from service.jobs.planning import ModelRequest, Planned, plan_model, tasks_of
from service.jobs.remote_runner import Interrupted, RemoteRunner
from service.jobs.tracker import Tracker
from service.jobs.tuning import (
    Budget,
    build_artifact,
    default_builders,
    save_texts,
    store_artifact,
    tune_tasks,
)
from service.jobs.verification import Verifier
from service.settings import Settings
from tuner.cancel import CancelToken
from tuner.events import Event, Finished, Recorded
from tuner.measure.builder import ProcessBuilder
from tuner.measure.oracle import ReferenceCache
from tuner.tasks import Task

log = structlog.get_logger("tilewright.tuner")

PROGRESS_SECONDS = 0.25
"""Shortest time between two progress events of a job."""

RETRY_SECONDS = 2.0
"""Pause after the database did not answer."""

LEAST_SECONDS = 1.0
"""Given to a job whose time ran out while no tuner was up, so that it ends in order."""


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
        """Take a job, if there is one, and work on it to its end; whether there was one."""
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
            _Run(self, claim, job, cancel, interrupt).run()
        except Interrupted as error:
            log.info("job given back", job=job.id, reason=str(error))
            self._storage.jobs.release(claim)
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

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def references(self) -> ReferenceCache:
        return self._references


class _Run:
    """One job in one tuner."""

    def __init__(
        self,
        tuner: TunerProcess,
        claim: JobClaim,
        job: Job,
        cancel: CancelToken,
        interrupt: CancelToken,
    ) -> None:
        self._tuner = tuner
        self._storage = tuner.storage
        self._claim = claim
        self._job = job
        self._cancel = cancel
        self._interrupt = interrupt
        self._told = float("-inf")
        self._kernels = KernelCache()

    def run(self) -> None:
        job, storage = self._job, self._storage
        options = job.options
        self._phase("importing")
        planned = plan_model(
            ModelRequest(
                storage.blobs.get(job.model_digest),
                job.target,
                job.threads,
                job.numerics,
                options.get("dims"),
                job.model_digest,
            )
        )
        budget = replace(Budget.of_job(options), seconds=self._seconds())
        target_key = planned.target.key
        runner = RemoteRunner(storage, job.id, target_key, self._interrupt)
        self._phase("planning")
        chosen = choose_plan(
            planned,
            storage,
            self._tuner.builder,
            runner,
            budget,
            job_id=job.id,
            token=self._cancel,
            references=self._tuner.references,
            kernels=self._kernels,
        )
        planned, budget = chosen.planned, chosen.budget
        save_texts(planned, storage)
        tasks = tasks_of(planned)
        tracker = Tracker(tasks, budget.trials)
        storage.tasks.put(self._claim, list(tracker.rows.values()))
        storage.jobs.progress(self._claim, tracker.progress, target_key=target_key)

        def on_event(event: Event) -> None:
            self._report(tracker, event, runner)

        def tuned(
            tasks: list[Task],
            budget: Budget,
            on_event: Callable[[Event], None] = lambda _: None,
        ) -> Finished:
            return tune_tasks(
                tasks,
                storage,
                self._tuner.builder,
                runner,
                budget,
                job_id=job.id,
                on_event=on_event,
                token=self._cancel,
                references=self._tuner.references,
            )

        finished = tuned(tasks, budget, on_event)
        if not finished.cancelled:
            planned = confirm_plan(chosen, storage, tuned, self._kernels)
        storage.leases.cancel(job_id=job.id)
        if finished.cancelled or self._cancel.cancelled:
            storage.jobs.transition(self._claim, JobState.CANCELLED)
            return
        self._deliver(planned, tracker, finished)

    def _seconds(self) -> float | None:
        """What is left of the job's time: it also runs while no tuner is up."""
        seconds = self._job.options.get("seconds")
        if seconds is None:
            return None
        started = self._job.started_at or self._storage.clock()
        return max(LEAST_SECONDS, float(seconds) - (self._storage.clock() - started))

    def _report(self, tracker: Tracker, event: Event, runner: RemoteRunner) -> None:
        changed = tracker.take(event)
        self._storage.tasks.put(self._claim, changed)
        if isinstance(event, Recorded):
            row = changed[0]
            data = {"name": row.name, "status": row.status.value, "best_seconds": row.best_seconds}
            self._storage.events.append(self._job.id, [("task", data)])
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS or isinstance(event, Finished):
            self._told = now
            extra: dict[str, Any] = {"workers": runner.workers}
            if tracker.candidates_per_second is not None:
                extra["candidates_per_second"] = tracker.candidates_per_second
            self._storage.jobs.progress(self._claim, tracker.progress, event=extra)

    def _deliver(self, planned: Planned, tracker: Tracker, finished: Finished) -> None:
        """Build the artifact, verify it, and end the job."""
        storage, job = self._storage, self._job
        storage.jobs.transition(self._claim, JobState.VERIFYING)
        self._phase("building", tracker.progress)
        with tempfile.TemporaryDirectory(prefix="tilewright-artifact-") as temporary:
            folder = Path(temporary) / "artifact"
            settled = settle([planned], storage, job_id=job.id, kernels=self._kernels)
            (served,) = settled.planned
            with Verifier([served]) as verifier:

                def check(made: Artifact) -> None:
                    self._phase("verifying", tracker.progress)
                    verifier.verify(made)

                build_artifact(
                    [served], settled.schedules, folder, kernels=self._kernels, check=check
                )
            checked = verifier.found
            digest = store_artifact(folder, storage)
        keep_plan(planned, storage)
        result = {
            "default_seconds": tracker.progress.default_seconds,
            "best_seconds": tracker.progress.best_seconds,
            "trials": finished.trials_done,
            "tuning_seconds": finished.seconds_elapsed,
            "ended": finished.ended.value,
            "forecast": None if finished.forecast is None else asdict(finished.forecast),
            "forecast_error": None
            if finished.forecast_error is None
            else asdict(finished.forecast_error),
            "largest_error": checked.error,
            "verified": checked.complete,
            "unverified": list(checked.unverified),
            "end_to_end": settled.verdict.to_json(),
            "tasks": len(finished.tasks),
            "tasks_from_database": sum(status.from_store for status in finished.tasks),
            "plan": served.decision,
        }
        storage.jobs.transition(
            self._claim, JobState.SUCCEEDED, result=result, artifact_digest=digest
        )
        log.info("job succeeded", job=job.id, trials=finished.trials_done)

    def _phase(self, phase: str, progress: JobProgress | None = None) -> None:
        if self._interrupt.cancelled:
            raise Interrupted(self._interrupt.reason)
        base = progress or self._job.progress
        self._storage.jobs.progress(self._claim, replace(base, phase=phase))
