"""One run after the other through the queue of leases, and the workers that may do them.

The name of a request is derived from its content, the job and the worker. So the successor of a
killed tuner finds its requests, running or done. Results are kept as long as the job is open.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from tilewright.compiler.targets.target import Target
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest, RequestState, RequestStatus
from tilewright.db.stores.workers import Health, RegisteredWorker
from tilewright.service.jobs.device.device import DeviceError
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled, WorkerAbsent
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.run_packing import Blobs, request_name
from tilewright.tuner.protocol.judge import ImplausibleError, check_run
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RaceWork, RunRequest
from tilewright.tuner.protocol.version import ProtocolError

POLL_SECONDS = 0.02
LOOK_SECONDS = 1.0
"""Seconds between two looks at which workers are alive."""

TURN_SECONDS = 30.0
"""The time that a run waits for its worker before another worker gets it."""


class RunQueue:
    """The runs of one job, all on one worker: the first live worker, of all or of the named ones.
    If that worker is lost, or takes no run, another takes over.

    Args:
        storage: the queue, the workers and the blobs.
        job_id: the job that submits the runs.
        target: the target of the generated code.
        interrupt: set when this process must let go of the job.
        cancel: set when the user wants the job to end.
        worker_ids: the only workers that may be used, in order of preference; empty for all.
        absent_seconds: how long a run waits while no worker can take it.
        gives_back: whether the job is given back then (WorkerAbsent) instead of DeviceError.
        opinion: a label that separates runs: results are never shared between two opinions.
    """

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        target: Target,
        interrupt: CancelToken,
        cancel: CancelToken,
        worker_ids: Sequence[str],
        absent_seconds: float,
        gives_back: bool = False,
        opinion: str = "",
    ) -> None:
        self._storage = storage
        self._job_id = job_id
        self._target = target
        self._interrupt = interrupt
        self._cancel = cancel
        self._worker_ids = tuple(worker_ids)
        self._opinion = opinion
        self._absent_seconds = absent_seconds
        self._gives_back = gives_back
        self._chosen: RegisteredWorker | None = None
        self._nobody_came = False
        self._had_a_turn: list[str] = []
        self._attempts: dict[str, int] = {}

    @property
    def worker(self) -> RegisteredWorker | None:
        """The worker of the runs; None until one is known."""
        return self._chosen or next(iter(self.known(self._target)), None)

    def known(self, target: Target) -> Sequence[RegisteredWorker]:
        """Workers that run the target: live workers first, and among these first the workers that
        have not left a run untaken."""

        def order(worker: RegisteredWorker) -> tuple[bool, int, int]:
            named = self._worker_ids.index(worker.id) if self._worker_ids else 0
            passed = self._had_a_turn.index(worker.id) + 1 if worker.id in self._had_a_turn else 0
            return worker.health is not Health.HEALTHY, passed, named

        found = [
            worker
            for worker in self._storage.workers.list()
            if target.key in worker.target_keys
            and (not self._worker_ids or worker.id in self._worker_ids)
        ]
        return sorted(found, key=order)

    def run(self, request: RunRequest, blobs: Blobs, target: Target) -> tuple[RunResult, str]:
        """Name and run a request; return its result and the worker's id.

        Raises:
            DeviceError: if no worker takes it, or the run fails.
            Interrupted, JobCancelled: if this process must let go of the job, or the job is to end.
            WorkerAbsent: if no worker takes it, and the job is given back.
        """
        status = None
        while status is None:
            worker = self.await_worker(target)
            name = self._submit(request, blobs, worker, target)
            status = self._await(name, worker, target)
        # not acknowledged: while the job is open, its next tuner may request the result again
        by = status.worker_id or worker.id  # another one, if this one let it lie
        names = {each.id: each.name for each in self.known(target)}
        where = f"worker '{names.get(by, by)}'"
        return _read(replace(request, request_id=name), status, where), by

    def await_worker(self, target: Target) -> RegisteredWorker:
        """Wait for a worker for this job's runs, and return it.

        Raises:
            DeviceError, Interrupted, JobCancelled: as `run` does.
        """
        # after one wait in vain, later runs do not wait
        ends = time.monotonic() + (0.0 if self._nobody_came else self._absent_seconds)
        while True:
            self._check_tokens()
            # a worker in quarantine if no other is alive: the run is its canary
            alive = self._alive(target) or self._alive(target, Health.QUARANTINED)
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
            self._interrupt.wait(min(LOOK_SECONDS, max(0.0, ends - time.monotonic())))

    def _submit(
        self, request: RunRequest, blobs: Blobs, worker: RegisteredWorker, target: Target
    ) -> str:
        """Queue a request unless it exists; returns its name.

        A request that ended without a result in an earlier process of the job is queued anew. So is
        a race that this process has requested before: the second run is another sample.
        """
        salt = (worker.id, self._opinion) if self._opinion else (worker.id,)
        base = request_name(request, *salt, 0)
        attempt = self._attempts.get(base, 0)
        while True:
            name = request_name(request, *salt, attempt)
            known = self._storage.leases.status([name]).get(name)
            if known is None or not known.state.final or _holds(known):
                break
            attempt += 1
        if isinstance(request.work, RaceWork):
            self._attempts[base] = attempt + 1
        if known is not None and known.state.final:
            return name
        self._save(blobs)
        new = NewRequest(
            request_id=name,
            target_key=target.key,
            payload=replace(request, request_id=name).to_json(),
            blob_digests=request.digests,
            job_id=self._job_id,
            worker_id=worker.id,
        )
        self._storage.leases.submit([new])
        return name

    def _save(self, blobs: Blobs) -> None:
        there = self._storage.blobs.touch(blobs.keys())
        for digest in blobs.keys() - there:
            self._storage.blobs.put(bytes(blobs[digest]))

    def _await(self, name: str, worker: RegisteredWorker, target: Target) -> RequestStatus | None:
        """The final status of a request; None if its worker was lost and another one is alive."""
        leases = self._storage.leases
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
                    worker, asked = self._pass_on(name, worker, target), now
                if self._present(worker, status.state):
                    seen = now
                elif self._alive(target):
                    leases.cancel(request_ids=[name])
                    return None
                elif now - seen >= self._absent_seconds:
                    self._give_back(target)
                    leases.cancel(request_ids=[name])
                    raise DeviceError(
                        f"worker '{worker.name}' was not heard of for {self._absent_seconds:g} "
                        "seconds while a run waited for it"
                    )
            time.sleep(POLL_SECONDS)

    def _pass_on(self, name: str, worker: RegisteredWorker, target: Target) -> RegisteredWorker:
        """Offer a run that its worker does not claim to another live worker, if there is one;
        returns the worker that has it."""
        others = [other for other in self._alive(target) if other.id != worker.id]
        if not others or not self._storage.leases.hand_on([name], others[0].id):
            return worker
        self._had_a_turn = [w for w in self._had_a_turn if w != worker.id] + [worker.id]
        self._chosen = others[0]
        return others[0]

    def _give_back(self, target: Target) -> None:
        """Raise WorkerAbsent if the job should wait for a worker that runs its target."""
        # the job would be woken at once for one in quarantine, whose pause is not over
        resting = self._alive(target, Health.QUARANTINED)
        if self._gives_back and target.key == self._target.key and not resting:
            raise WorkerAbsent(self._nobody(target))

    def _check_tokens(self, name: str = "") -> None:
        """Raise Interrupted or JobCancelled; the request of a cancelled job is withdrawn."""
        if self._interrupt.cancelled:
            raise Interrupted(self._interrupt.reason)
        if self._cancel.cancelled:
            if name:
                self._storage.leases.cancel(request_ids=[name])
            raise JobCancelled(self._cancel.reason)

    def _alive(self, target: Target, health: Health = Health.HEALTHY) -> Sequence[RegisteredWorker]:
        return [worker for worker in self.known(target) if worker.health is health]

    def _present(self, worker: RegisteredWorker, state: RequestState) -> bool:
        """Whether the worker may still finish a request. A request that it has leased counts
        whatever its health."""
        found = {each.id: each.health for each in self._storage.workers.list()}.get(worker.id)
        in_hand = state is RequestState.LEASED and found in (Health.DRAINING, Health.QUARANTINED)
        return found is Health.HEALTHY or in_hand

    def _nobody(self, target: Target) -> str:
        within = f"within {self._absent_seconds:g} seconds"
        if not self._worker_ids:
            return f"no worker for '{target.name}' came {within}"
        name = self._worker_ids[0] if self.worker is None else self.worker.name
        return f"worker '{name}' did not come {within}"


def _holds(status: RequestStatus) -> bool:
    """Whether a repetition would give the same result. A device that was short of memory may have
    some by now."""
    if status.state is not RequestState.DONE:
        return False
    said = (status.result or {}).get("status")
    return said not in (RunStatus.OUT_OF_MEMORY, RunStatus.REFUSED)


def _read(request: RunRequest, status: RequestStatus, where: str) -> RunResult:
    """The result of a run that succeeded. Raises DeviceError for any other."""
    match status.state:
        case RequestState.DONE:
            try:
                result = RunResult.from_json(status.result or {})
                check_run(request, result)
            except (ProtocolError, ImplausibleError) as error:
                raise DeviceError(f"{where}: {error}") from error
            if result.status is RunStatus.OK:
                return result
            ran = result.status not in (RunStatus.OUT_OF_MEMORY, RunStatus.REFUSED)
            raise DeviceError(f"{where}: {result.error}", ran=ran)
        case RequestState.CANCELLED:
            raise DeviceError(f"{where}: the run was cancelled")
        case _:
            raise DeviceError(f"{where}: {status.error or 'lost'}")
