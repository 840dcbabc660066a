"""A device that workers stand for: what a job asks of it goes through the queue of leases.

Requests have names made of their content and the job. So a tuner that was killed finds what its
predecessor asked for, under way or done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Any

import numpy as np

from compiler.device import DeviceFacts
from compiler.roofline import Speeds, cache_sizes, probe_library, vector_bytes
from compiler.target import Target
from db.storage import Storage
from db.stores.leases import NewRequest, RequestState, RequestStatus
from db.stores.workers import Health, Worker
from service.jobs.device import Checked, DeviceError, Loadable, Variant
from service.jobs.remote_runner import Interrupted, RemoteRunner
from tuner.cancel import CancelToken
from tuner.measure.model_runs import Race
from tuner.measure.run_packing import (
    Blobs,
    PackedProgram,
    make_request,
    pack_program,
    request_name,
)
from tuner.measure.run_wire import (
    FETCH_BYTES,
    CheckWork,
    ProfileWork,
    RaceWork,
    RunRequest,
    RunResult,
    RunStatus,
    SpeedsWork,
    Work,
)
from tuner.measure.statistics import Comparison
from tuner.measure.wire import ProtocolError, array_to_bytes, digest_bytes

ABSENT_SECONDS = 300.0
"""How long a run waits while nobody can take it."""

LIMIT_SECONDS = 300.0
"""Of one step of a run: loading a program, one run of it. Boards load from memory cards."""

POLL_SECONDS = 0.02
LOOK_SECONDS = 1.0
"""Between two looks at who is alive."""

SPEEDS_BYTES = 512 << 20
"""The most that measuring a roofline takes."""


class JobCancelled(Exception):
    """The user wants the job to end; what it had asked for is withdrawn."""


class LeasedDevice:
    """Workers of one target, or one of them. A context, which removes the blobs of its runs.

    All runs of a job go to one worker: the one that was asked for, or the first that is alive.
    Another takes over when that one is lost. Kernels are measured by all workers of the target.

    Args:
        storage: the queue, the workers and the blobs.
        job_id: what asks.
        target: what code is generated for.
        interrupt: set when this process must let go of the job.
        cancel: set when the user wants the job to end.
        worker_id: the only worker that may be asked.
        absent_seconds: how long a run waits while nobody can take it.
        limit_seconds: wall time that one step of a run may take.
    """

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        target: Target,
        interrupt: CancelToken,
        cancel: CancelToken,
        worker_id: str | None = None,
        *,
        absent_seconds: float = ABSENT_SECONDS,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._storage = storage
        self._job_id = job_id
        self._target = target
        self._interrupt = interrupt
        self._cancel = cancel
        self._worker_id = worker_id
        self._absent_seconds = absent_seconds
        self._limit_seconds = limit_seconds
        self._runner = RemoteRunner(storage, job_id, target.key, interrupt, worker_id)
        self._worker: Worker | None = None
        self._facts: DeviceFacts | None = None
        self._speeds: dict[str, Speeds] = {}
        self._weights: set[str] = set()

    def __enter__(self) -> LeasedDevice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.close()
        if not isinstance(error, Interrupted):  # else the next tuner goes on with them
            self._remove(self._weights)

    @property
    def name(self) -> str:
        worker = self._worker or self._first(self._known())
        if worker is not None:
            return worker.name
        return f"a worker for '{self._target.name}'"

    @property
    def facts(self) -> DeviceFacts | None:
        """Of the worker that was asked for or the first one; they stay the same for the job."""
        if self._facts is None:
            worker = self._worker or self._first(self._known())
            if worker is not None:
                self._facts = _facts(worker)
        return self._facts

    @property
    def runner(self) -> RemoteRunner:
        return self._runner

    @property
    def workers(self) -> int:
        """Living workers that measure for the job."""
        return self._runner.workers

    def runs(self, target: Target) -> bool:
        return any(target.key in worker.target_keys for worker in self._known(target))

    def speeds(self, target: Target) -> Speeds:
        known = self._speeds.get(target.key)
        if known is not None:
            return known
        self._await_worker(target)
        facts = self.facts
        if facts is None:
            raise DeviceError(f"worker '{self.name}' does not say what its device is")
        library = probe_library(target)
        work = SpeedsWork(
            digest_bytes(library),
            vector_bytes(target),
            cache_sizes(facts),
            facts.memory_bytes,
        )
        more = {work.library: memoryview(library)}
        result = self._result((), 1, work, more, SPEEDS_BYTES, target)
        if result.speeds is None:
            raise self._incomplete()
        self._speeds[target.key] = result.speeds
        return result.speeds

    def check(
        self,
        loadable: Loadable,
        threads: int,
        seed: int,
        expected: Mapping[str, np.ndarray],
        fetch: Sequence[str] = (),
    ) -> Checked:
        ports = {port.name: port for port in loadable.program.outputs}
        coming = sum(ports[name].bytes for name in fetch)
        if coming > FETCH_BYTES:
            raise DeviceError(
                f"worker '{self.name}' brings back outputs of at most {FETCH_BYTES} bytes, "
                f"{coming} are wanted"
            )
        files = {name: array_to_bytes(_plain(array)) for name, array in expected.items()}
        names = {name: digest_bytes(data) for name, data in files.items()}
        more = {names[name]: memoryview(data) for name, data in files.items()}
        # an output and what is expected of it, both as float64, and their difference
        largest = max((3 * 8 * array.size for array in expected.values()), default=0)
        work = CheckWork(0, seed, names, tuple(fetch))
        result = self._result((_packed(loadable),), threads, work, more, largest + coming)
        arrays = result.arrays()
        if result.errors.keys() != expected.keys() or arrays.keys() != set(fetch):
            raise self._incomplete()
        return Checked(dict(result.errors), arrays)

    def race(
        self,
        variants: Sequence[Variant],
        threads: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Race:
        """One request for each pair, so that it can be `stopped` in between.

        What a device must hold at a time is two variants.
        """
        incumbent = tuple(map(_packed, variants[0]))
        fastest: float | None = None
        comparisons: list[Comparison] = []
        for variant in variants[1:]:
            if stopped():
                break
            found = self._race([incumbent, tuple(map(_packed, variant))], threads)
            fastest = min(found.incumbent_seconds, fastest or float("inf"))
            comparisons += found.comparisons
        if fastest is None:
            fastest = self._race([incumbent], threads).incumbent_seconds
        return Race(fastest, tuple(comparisons))

    def profile(self, loadable: Loadable, threads: int, samples: int) -> np.ndarray:
        work = ProfileWork(0, samples)
        result = self._result((_packed(loadable),), threads, work, {}, 0)
        seconds = np.array(result.seconds, np.float64)
        if len(seconds) != sum(1 for _ in loadable.program.walk()):
            raise self._incomplete()
        return seconds

    def _race(self, variants: Sequence[Sequence[PackedProgram]], threads: int) -> Race:
        numbers: list[tuple[int, ...]] = []
        programs: list[PackedProgram] = []
        for variant in variants:
            numbers.append(tuple(range(len(programs), len(programs) + len(variant))))
            programs += variant
        found = self._result(programs, threads, RaceWork(tuple(numbers)), {}, 0).race
        if found is None or len(found.comparisons) != len(variants) - 1:
            raise self._incomplete()
        return found

    # ---- one run

    def _result(
        self,
        programs: Sequence[PackedProgram],
        threads: int,
        work: Work,
        more: Blobs,
        work_bytes: int,
        target: Target | None = None,
    ) -> RunResult:
        """What a worker says of a run.

        Raises:
            DeviceError, Interrupted, JobCancelled.
        """
        target = target or self._target
        request, blobs = make_request(
            self._job_id, threads, programs, work, more, work_bytes, self._limit_seconds
        )
        self._weights |= {part.digest for each in programs for part in each.parts}
        status = None
        while status is None:
            worker = self._await_worker(target)
            name = self._submit(request, blobs, worker, target)
            status = self._await(name, worker, target)
        self._storage.leases.acknowledge([status.request_id])
        self._remove(blobs.keys() - self._weights)
        return self._read(status)

    def _submit(self, request: RunRequest, blobs: Blobs, worker: Worker, target: Target) -> str:
        """Queue a request unless it is there; its id.

        One that ended without a result, in an earlier life of the job, is asked for anew.
        """
        attempt = 0
        while True:
            name = request_name(request, worker.id, attempt)
            known = self._storage.leases.status([name]).get(name)
            if known is None or not known.state.final or known.state is RequestState.DONE:
                break
            attempt += 1
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
        # once more: before it was queued, another job may have removed what it needed no more
        self._save(blobs)
        return name

    def _save(self, blobs: Blobs) -> None:
        for digest, data in blobs.items():
            if not self._storage.blobs.touch(digest):
                self._storage.blobs.put(bytes(data))

    def _await(self, name: str, worker: Worker, target: Target) -> RequestStatus | None:
        """How a request ended; None if its worker was lost and another one is there."""
        leases = self._storage.leases
        seen = looked = time.monotonic()
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
                if self._present(worker, status.state):
                    seen = now
                elif self._first(self._alive(target)) is not None:
                    leases.cancel(request_ids=[name])
                    return None
                elif now - seen >= self._absent_seconds:
                    leases.cancel(request_ids=[name])
                    raise DeviceError(
                        f"worker '{worker.name}' was not heard of for {self._absent_seconds:g} "
                        "seconds while a run waited for it"
                    )
            time.sleep(POLL_SECONDS)

    def _check_tokens(self, name: str = "") -> None:
        if self._interrupt.cancelled:
            raise Interrupted(self._interrupt.reason)
        if self._cancel.cancelled:
            if name:
                self._storage.leases.cancel(request_ids=[name])
            raise JobCancelled(self._cancel.reason)

    def _read(self, status: RequestStatus) -> RunResult:
        """The result of a run that went well."""
        where = f"worker '{self.name}'"
        match status.state:
            case RequestState.DONE:
                try:
                    result = RunResult.from_json(status.result or {})
                except ProtocolError as error:
                    raise DeviceError(f"{where}: {error}") from error
                if result.status is RunStatus.OK:
                    return result
                ran = result.status not in (RunStatus.OUT_OF_MEMORY, RunStatus.REFUSED)
                raise DeviceError(f"{where}: {result.error}", ran=ran)
            case RequestState.CANCELLED:
                raise DeviceError(f"{where}: the run was cancelled")
            case _:
                raise DeviceError(f"{where}: {status.error or 'lost'}")

    def _incomplete(self) -> DeviceError:
        return DeviceError(f"worker '{self.name}' reported a run without its results")

    def _remove(self, digests: Iterable[str]) -> None:
        """Delete blobs that no open request names."""
        gone = set(digests)
        if gone:
            for digest in sorted(gone - self._storage.leases.blob_digests()):
                self._storage.blobs.delete(digest)

    # ---- who is there

    def _await_worker(self, target: Target) -> Worker:
        """The worker of this job's runs, once there is one."""
        ends = time.monotonic() + self._absent_seconds
        while True:
            self._check_tokens()
            alive = self._alive(target)
            chosen = None if self._worker is None else self._worker.id
            same = [worker for worker in alive if worker.id == chosen]
            found = self._first(same or alive)
            if found is not None:
                self._worker = found
                return found
            if time.monotonic() >= ends:
                raise DeviceError(
                    f"no worker for '{target.name}' came within {self._absent_seconds:g} seconds"
                    if self._worker_id is None
                    else f"worker '{self.name}' did not come within {self._absent_seconds:g} "
                    "seconds"
                )
            self._interrupt.wait(min(LOOK_SECONDS, max(0.0, ends - time.monotonic())))

    def _known(self, target: Target | None = None) -> Sequence[Worker]:
        """Workers that run the target, those that are alive first."""
        key = (target or self._target).key
        found = [
            worker
            for worker in self._storage.workers.list()
            if key in worker.target_keys and self._worker_id in (None, worker.id)
        ]
        return sorted(found, key=lambda worker: worker.health is not Health.HEALTHY)

    def _alive(self, target: Target) -> Sequence[Worker]:
        return [worker for worker in self._known(target) if worker.health is Health.HEALTHY]

    def _present(self, worker: Worker, state: RequestState) -> bool:
        """Whether the worker may yet finish a request; a drained one finishes what it has."""
        health = {found.id: found.health for found in self._known()}.get(worker.id)
        leased = state is RequestState.LEASED
        return health is Health.HEALTHY or (health is Health.DRAINING and leased)

    @staticmethod
    def _first(workers: Sequence[Worker]) -> Worker | None:
        return workers[0] if workers else None


def _packed(loadable: Loadable) -> PackedProgram:
    program = loadable.program
    return pack_program(program, loadable.weights, loadable.link() if program.kernels else b"")


def _facts(worker: Worker) -> DeviceFacts | None:
    """What a worker said of its device; None if it is not what devices say."""
    names = {field.name for field in fields(DeviceFacts)}
    told: dict[str, Any] = {name: value for name, value in worker.device.items() if name in names}
    try:
        return DeviceFacts.from_json(told)
    except (TypeError, KeyError, ValueError):
        return None


def _plain(array: np.ndarray) -> np.ndarray:
    """In a type that .npy files know: bfloat16 as float32."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array
