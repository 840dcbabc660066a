"""Sends a job's program runs through the lease queue, one after the other, and waits for
results.

The name of a request is derived from its content, the job and the worker. If a tuner process is
killed, the next process computes the same names and finds its requests, running or done. Results
are kept until the job ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from tilewright.compiler.targets.target import Target
from tilewright.db.stores.leases import RequestState, RequestStatus
from tilewright.db.stores.workers import Health, RegisteredWorker
from tilewright.service.jobs.device.device import DeviceError
from tilewright.service.jobs.device.lease_client import (
    POLL_SECONDS,
    LeaseAnswer,
    LeaseClient,
    answer_of,
)
from tilewright.service.jobs.process.interrupts import JobCancelled, WorkerAbsent
from tilewright.tuner.measure.run_packing import Blobs, request_name
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RaceWork, RunRequest

LOOK_SECONDS = 1.0
"""Interval in seconds at which the run queue checks which workers are alive."""

TURN_SECONDS = 30.0
"""Seconds that a queued run waits for its worker before another worker gets it."""


class RunQueue:
    """Runs the programs of one job on one worker through the lease queue.

    The first live worker in the order of `LeaseClient.workers` gets all runs. If that worker is
    lost, or does not lease a run within `TURN_SECONDS`, another worker gets the runs.

    Args:
        client: the job's client of the lease queue.
        target: the target of the generated code.
        absent_seconds: the time to wait while no worker can take a run.
        gives_back: whether to raise WorkerAbsent, so that the job waits for a worker, if no worker
            can take a run for `absent_seconds`. Otherwise DeviceError is raised.
        opinion: a label for the runs, such as "second" for the runs of a review. A run never reuses
            the result of a run with another label.
    """

    def __init__(
        self,
        client: LeaseClient,
        target: Target,
        absent_seconds: float,
        gives_back: bool = False,
        opinion: str = "",
    ) -> None:
        self._client = client
        self._target = target
        self._opinion = opinion
        self._absent_seconds = absent_seconds
        self._gives_back = gives_back
        self._chosen: RegisteredWorker | None = None
        self._nobody_came = False
        self._attempts: dict[str, int] = {}

    @property
    def worker(self) -> RegisteredWorker | None:
        """The worker that gets the runs; None if no worker for the target is registered."""
        return self._chosen or next(iter(self.known(self._target)), None)

    def known(self, target: Target) -> Sequence[RegisteredWorker]:
        """Return the workers that run a target, in the order of `LeaseClient.workers`."""
        return self._client.workers(target.key)

    def run(self, request: RunRequest, blobs: Blobs, target: Target) -> tuple[RunResult, str]:
        """Execute a run on a worker; return its result and the id of that worker.

        If an earlier process of the job has queued the same run, its result is reused.

        Raises:
            DeviceError: if no worker takes the run, or the run fails.
            Interrupted: if this process must stop work on the job.
            JobCancelled: if the user has cancelled the job.
            WorkerAbsent: if no worker takes the run, and the job must wait for one.
        """
        status = None
        while status is None:
            worker = self.await_worker(target)
            name = self._submit(request, blobs, worker, target)
            status = self._await(name, worker, target)
        # not acknowledged: while the job is open, its next tuner may request the result again
        by = status.worker_id or worker.id  # another worker, if this one left the run untaken
        names = {each.id: each.name for each in self.known(target)}
        where = f"worker '{names.get(by, by)}'"
        return _result(answer_of(replace(request, request_id=name), status), where), by

    def await_worker(self, target: Target) -> RegisteredWorker:
        """Wait for a live worker for this job's runs, and return it.

        If no worker is alive within `absent_seconds`, an exception makes the job fail, or wait for
        a worker, depending on the argument `gives_back` of this queue.

        Raises:
            DeviceError: if no worker is alive, and the job fails.
            WorkerAbsent: if no worker is alive, and the job must wait for one.
            Interrupted: if this process must stop work on the job.
            JobCancelled: if the user has cancelled the job.
        """
        # if one wait ended without a worker, later runs do not wait
        ends = time.monotonic() + (0.0 if self._nobody_came else self._absent_seconds)
        while True:
            self._client.check_interrupt()
            self._client.check_cancelled()
            # a worker in quarantine if no other is alive: the run tests it
            alive = self._client.alive(target.key)
            alive = alive or self._client.alive(target.key, Health.QUARANTINED)
            chosen = None if self._chosen is None else self._chosen.id
            same = [worker for worker in alive if worker.id == chosen]
            if alive:
                self._chosen = (same or alive)[0]
                self._nobody_came = False
                return self._chosen
            if time.monotonic() >= ends:
                self._nobody_came = True
                self._give_back(target)
                raise DeviceError(self._nobody(target))
            self._client.interrupt.wait(min(LOOK_SECONDS, max(0.0, ends - time.monotonic())))

    def _submit(
        self, request: RunRequest, blobs: Blobs, worker: RegisteredWorker, target: Target
    ) -> str:
        """Queue a request for a run, and return the request's name in the queue.

        A request that is already in the queue is not queued again, with two exceptions. The first
        is a request whose earlier attempt ended without a usable result. The second is a race (a
        comparison of programs by time) that this process has already run, because its repetition
        must be a new sample. In both cases the request gets a new name.
        """
        salt = (worker.id, self._opinion) if self._opinion else (worker.id,)
        base = request_name(request, *salt, 0)
        attempt = self._attempts.get(base, 0)
        while True:
            name = request_name(request, *salt, attempt)
            known = self._client.leases.status([name]).get(name)
            if known is None or not known.state.final or _holds(known):
                break
            attempt += 1
        if isinstance(request.work, RaceWork):
            self._attempts[base] = attempt + 1
        if known is not None and known.state.final:
            return name
        named = replace(request, request_id=name)
        self._client.submit([named], blobs, target.key, worker.id)
        return name

    def _await(self, name: str, worker: RegisteredWorker, target: Target) -> RequestStatus | None:
        """Wait for a request to end, and return its status.

        If the worker was lost and another worker is alive, the request is cancelled and None is
        returned, so that the caller can queue the run for the other worker.

        Raises:
            DeviceError: if no worker is alive for `absent_seconds`, and the job fails.
            WorkerAbsent: if no worker is alive for `absent_seconds`, and the job must wait for one.
            Interrupted: if this process must stop work on the job.
            JobCancelled: if the user has cancelled the job.
        """
        leases = self._client.leases
        seen = looked = asked = time.monotonic()
        while True:
            self._check_tokens(name)
            status = leases.status([name]).get(name)
            if status is None:
                raise DeviceError(f"worker '{worker.name}': the run was removed from the queue")
            if status.state.final:
                return status
            now = time.monotonic()
            if now - looked >= LOOK_SECONDS:
                looked = now
                if status.state is RequestState.QUEUED and now - asked >= TURN_SECONDS:
                    asked = now
                    if other := self._client.pass_on([name], worker.id, target.key):
                        worker = self._chosen = other
                if self._present(worker, status.state):
                    seen = now
                elif self._client.alive(target.key):
                    leases.cancel(request_ids=[name])
                    return None
                elif now - seen >= self._absent_seconds:
                    self._give_back(target)
                    leases.cancel(request_ids=[name])
                    raise DeviceError(
                        f"worker '{worker.name}' did not report for {self._absent_seconds:g} "
                        "seconds while a run waited for it"
                    )
            time.sleep(POLL_SECONDS)

    def _give_back(self, target: Target) -> None:
        """Raise WorkerAbsent if the job may wait for a worker of its target; otherwise return."""
        # a worker in quarantine would queue the job again at once, before its pause has ended
        resting = self._client.alive(target.key, Health.QUARANTINED)
        if self._gives_back and target.key == self._target.key and not resting:
            raise WorkerAbsent(self._nobody(target))

    def _check_tokens(self, name: str) -> None:
        """Raise Interrupted if this process must stop work on the job, and JobCancelled if the user
        cancelled it.

        If the user cancelled the job, the request `name` is cancelled, too.
        """
        self._client.check_interrupt()
        try:
            self._client.check_cancelled()
        except JobCancelled:
            self._client.leases.cancel(request_ids=[name])
            raise

    def _present(self, worker: RegisteredWorker, state: RequestState) -> bool:
        """Whether a worker can still be expected to complete a request.

        This holds for a healthy worker. It also holds for a draining or quarantined worker that has
        leased the request.

        Args:
            worker: the worker.
            state: the state of the request.
        """
        found = self._client.health(worker.id)
        in_hand = state is RequestState.LEASED and found in (Health.DRAINING, Health.QUARANTINED)
        return found is Health.HEALTHY or in_hand

    def _nobody(self, target: Target) -> str:
        within = f"within {self._absent_seconds:g} seconds"
        if not self._client.worker_ids:
            return f"no worker for '{target.name}' came {within}"
        name = self._client.worker_ids[0] if self.worker is None else self.worker.name
        return f"worker '{name}' did not come {within}"


def _holds(status: RequestStatus) -> bool:
    """Whether an ended request has a result that a later request for the same run may reuse.

    Return False if it has no result, or if the worker lacked memory or refused the run, because
    the run may succeed later.
    """
    if status.state is not RequestState.DONE:
        return False
    said = (status.result or {}).get("status")
    return said not in (RunStatus.OUT_OF_MEMORY, RunStatus.REFUSED)


def _result(answer: LeaseAnswer, where: str) -> RunResult:
    """Return the result of a successful run.

    Raises DeviceError for any other outcome; its message begins with the device's name, `where`.
    """
    match answer.result, answer.state:
        case RunResult(status=RunStatus.OK) as result, _:
            return result
        case RunResult(status=status, error=error), _:
            ran = status not in (RunStatus.OUT_OF_MEMORY, RunStatus.REFUSED)
            raise DeviceError(f"{where}: {error}", ran=ran)
        case _, RequestState.CANCELLED:
            raise DeviceError(f"{where}: the run was cancelled")
        case _:
            raise DeviceError(f"{where}: {answer.error}")
