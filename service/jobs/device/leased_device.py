"""A job's device that is implemented by remote workers.

Requests of the job reach the workers through the lease queue. `program_runs` builds the requests
for whole programs; `run_queue` waits for their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from tilewright.compiler.errors import InvalidFactsError
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.target import Target
from tilewright.db.review_state import Attestation, ClaimReporter
from tilewright.db.storage import Storage
from tilewright.db.stores.workers import Health, RegisteredWorker
from tilewright.service.jobs.device.lease_client import LeaseClient
from tilewright.service.jobs.device.program_runs import ProgramRuns
from tilewright.service.jobs.device.remote_runner import RemoteRunner
from tilewright.service.jobs.device.run_queue import RunQueue
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.run_packing import Blobs
from tilewright.tuner.protocol.run_results import RunResult
from tilewright.tuner.protocol.runs import RunRequest

ABSENT_SECONDS = 300.0
"""Seconds that a run waits if no worker is present that can execute it."""

SECOND_SECONDS = 60.0
"""Seconds that a second measurement on another device waits for an absent worker."""

LIMIT_SECONDS = 300.0
"""Time limit in seconds of one step of a run: loading a program, or running it once. The limit is
high because boards load programs from slow memory cards."""


class LeasedDevice(ProgramRuns):
    """A device that measures kernels and runs programs on remote workers. A context manager.

    All program runs of a job go to one worker (`RunQueue`). Kernels are measured by all workers of
    the target. If `worker_ids` names workers, only one of these measures at a time
    (`RemoteRunner`).

    Methods that run code raise DeviceError if no worker completes the run. They raise Interrupted
    if this process must release the job, and JobCancelled if the user has cancelled the job.

    Args:
        storage: the queue, the workers and the blobs.
        job_id: the job that submits the runs.
        target: the target of the generated code.
        interrupt: set when this process must stop work on the job.
        cancel: set when the user has cancelled the job.
        worker_ids: the only workers that may be used, in order of preference; empty for all.
        absent_seconds: how long a method waits while no worker can take a run.
        gives_back: determines the error after this wait. If true, it is WorkerAbsent, and the job
            then waits in the queue for a worker. If false, it is DeviceError.
        limit_seconds: the wall-time limit of each step of a run. Loading a program is one step;
            each run of the program is another step.
        second: true if this device repeats earlier measurements to confirm them. It then never
            reuses the results of the earlier measurements.
        canaries: whether kernel measurements also wait for workers in quarantine. Each of these
            gets one request as a test.
        priority: the priority of this job's kernel measurements relative to other jobs'.
        given: the user's input values for the model; other inputs are random.
    """

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        target: Target,
        interrupt: CancelToken,
        cancel: CancelToken,
        worker_ids: Sequence[str] = (),
        *,
        absent_seconds: float = ABSENT_SECONDS,
        gives_back: bool = False,
        limit_seconds: float = LIMIT_SECONDS,
        second: bool = False,
        canaries: bool = True,
        priority: int = 0,
        given: GivenInputs = NONE_GIVEN,
    ) -> None:
        super().__init__(job_id, target, limit_seconds, given)
        self._storage = storage
        self._target = target
        self._tokens = interrupt, cancel
        self._worker_ids = tuple(worker_ids)
        self._gives_back = gives_back
        self._priority = priority
        self._absent_seconds = absent_seconds
        self._runner = RemoteRunner(
            storage,
            job_id,
            target.key,
            interrupt,
            worker_ids,
            cancel=cancel,
            absent_seconds=absent_seconds,
            gives_back=gives_back,
            canaries=canaries,
            priority=priority,
            plain=target.family.modules,
        )
        self._queue = RunQueue(
            LeaseClient(storage, job_id, interrupt, cancel, worker_ids),
            target,
            absent_seconds,
            gives_back,
            "second" if second else "",
        )
        self._facts: DeviceFacts | None = None

    def __enter__(self) -> LeasedDevice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.close()

    @property
    def name(self) -> str:
        worker = self._queue.worker
        if worker is not None:
            return worker.name
        return f"a worker for '{self._target.name}'"

    @property
    def facts(self) -> DeviceFacts | None:
        """The properties of the worker for the job's runs, such as its CPU and caches.

        They are read once and never change during the job. None if no worker for the target is
        registered, or if the worker's description is malformed.
        """
        if self._facts is None:
            worker = self._queue.worker
            if worker is not None:
                self._facts = _facts(worker)
        return self._facts

    @property
    def runner(self) -> RemoteRunner:
        return self._runner

    @property
    def trusted(self) -> bool:
        return False

    def second_opinion(self, first: ClaimReporter) -> LeasedDevice:
        """Return a device that uses only live workers other than `first`, idle workers first.

        If there are workers of another owner, only these are used, because an owner of two workers
        could confirm a false claim. If no other worker is alive, the new device has the same
        workers as this one.
        """
        others = self._others(first)
        absent = min(self._absent_seconds, SECOND_SECONDS) if others else self._absent_seconds
        return LeasedDevice(
            self._storage,
            self._job_id,
            self._target,
            *self._tokens,
            [worker.id for worker in others] or self._worker_ids,
            absent_seconds=absent,
            gives_back=self._gives_back and not others,
            limit_seconds=self._limit_seconds,
            second=True,
            canaries=not others,
            priority=self._priority,
            given=self._given,
        )

    def worth(self, first: ClaimReporter) -> Attestation:
        other = next(iter(self._others(first)), self._queue.worker)
        return Attestation.ONCE if other is None else _worth(first, other)

    def _others(self, first: ClaimReporter) -> Sequence[RegisteredWorker]:
        """Return the healthy workers for the target that could best confirm a claim by `first`.

        These are workers of another owner, or, if no such worker is healthy, other workers of the
        same owner. The workers with the fewest leased requests come first.
        """
        others = [
            worker
            for worker in self._storage.workers.list()
            if worker.health is Health.HEALTHY
            and worker.id != first.worker
            and self._target.key in worker.target_keys
        ]
        most = max((_worth(first, worker).rank for worker in others), default=0)
        best = [worker for worker in others if _worth(first, worker).rank == most]
        in_hand = self._storage.leases.in_hand() if len(best) > 1 else {}
        return sorted(best, key=lambda worker: in_hand.get(worker.id, 0))

    @property
    def workers(self) -> int:
        """The number of live workers that measure for the job."""
        return self._runner.workers

    def runs(self, target: Target) -> bool:
        return bool(self._queue.known(target))

    def absence(self, target: Target) -> str:
        return f"no worker runs target '{target.name}'"

    def _await(self, target: Target) -> None:
        self._queue.await_worker(target)

    @property
    def _where(self) -> str:
        return f"worker '{self.name}'"

    def _answered(
        self, request: RunRequest, blobs: Blobs, target: Target | None
    ) -> tuple[RunResult, str]:
        return self._queue.run(request, blobs, target or self._target)


def _worth(first: ClaimReporter, other: RegisteredWorker) -> Attestation:
    return first.second(ClaimReporter(other.id, other.owner or ""))


def _facts(worker: RegisteredWorker) -> DeviceFacts | None:
    """Return the device properties that a worker reported; None if they are malformed."""
    try:
        return DeviceFacts.from_json(worker.device)
    except InvalidFactsError:
        return None
