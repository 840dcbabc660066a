"""A device that workers stand for: requests of a job go through the queue of leases.

The requests are those of `tuner.measure.run_wire`; `run_queue` waits for their results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

import numpy as np

from compiler.device import DeviceFacts
from compiler.errors import InvalidFactsError
from compiler.roofline import Speeds, cache_sizes, probe_library, vector_bytes
from compiler.runtime.speeds import largest_block
from compiler.target import Target
from db.storage import Storage
from db.stores.workers import RegisteredWorker
from service.jobs.device import Checked, DeviceError, Loadable, Variant
from service.jobs.remote_runner import RemoteRunner
from service.jobs.run_queue import RunQueue
from tuner.cancel import CancelToken
from tuner.measure.model_runs import Race
from tuner.measure.run_packing import (
    Blobs,
    PackedProgram,
    make_request,
    pack_program,
)
from tuner.measure.run_result import FETCH_BYTES, RunResult
from tuner.measure.run_wire import (
    CheckWork,
    ProfileWork,
    RaceWork,
    SpeedsWork,
    Work,
)
from tuner.measure.statistics import Comparison
from tuner.measure.wire import array_to_bytes, digest_bytes

ABSENT_SECONDS = 300.0
"""How long a run waits while nobody can take it."""

LIMIT_SECONDS = 300.0
"""Of one step of a run: loading a program, one run of it. Boards load from memory cards."""


class LeasedDevice:
    """All workers of one target, or a single one. A context.

    All runs of a job go to one worker (`RunQueue`); kernels are measured by all of the target.
    Methods that run something raise Interrupted and JobCancelled beside DeviceError.

    Args:
        storage: the queue, the workers and the blobs.
        job_id: what asks.
        target: what code is generated for.
        interrupt: set when this process must let go of the job.
        cancel: set when the user wants the job to end.
        worker_id: the only worker that may be asked.
        absent_seconds: how long a run waits while nobody can take it.
        gives_back: whether the job is given back then (WorkerAbsent), to wait for a worker.
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
        gives_back: bool = False,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._job_id = job_id
        self._target = target
        self._limit_seconds = limit_seconds
        self._runner = RemoteRunner(
            storage,
            job_id,
            target.key,
            interrupt,
            worker_id,
            cancel=cancel,
            absent_seconds=absent_seconds,
            gives_back=gives_back,
        )
        self._queue = RunQueue(
            storage, job_id, target, interrupt, cancel, worker_id, absent_seconds, gives_back
        )
        self._facts: DeviceFacts | None = None
        self._speeds: dict[str, Speeds] = {}

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
        """Facts of the worker that was asked for, or of the first one; the same all through the
        job."""
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

    def second_runner(self, worker: str) -> RemoteRunner:
        return self._runner.beside(worker)

    @property
    def workers(self) -> int:
        """Living workers that measure for the job."""
        return self._runner.workers

    def runs(self, target: Target) -> bool:
        return bool(self._queue.known(target))

    def speeds(self, target: Target) -> Speeds:
        known = self._speeds.get(target.key)
        if known is not None:
            return known
        self._queue.await_worker(target)
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
        most = largest_block(work.cache_bytes, work.memory_bytes)
        result = self._result((), 1, work, more, most, target)
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
        files = {name: array_to_bytes(array) for name, array in expected.items()}
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
        variants: Iterable[Variant],
        threads: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Race:
        """One request for each pair, so that it can be `stopped` in between.

        So a device must hold only two variants at a time.
        """
        turns = iter(variants)
        incumbent = tuple(map(_packed, next(turns)))
        fastest: float | None = None
        comparisons: list[Comparison] = []
        for variant in turns:
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

    def _result(
        self,
        programs: Sequence[PackedProgram],
        threads: int,
        work: Work,
        more: Blobs,
        work_bytes: int,
        target: Target | None = None,
    ) -> RunResult:
        """The worker's result of a run."""
        request, blobs = make_request(
            self._job_id, threads, programs, work, more, work_bytes, self._limit_seconds
        )
        return self._queue.run(request, blobs, target or self._target)

    def _incomplete(self) -> DeviceError:
        return DeviceError(f"worker '{self.name}' reported a run without its results")


def _packed(loadable: Loadable) -> PackedProgram:
    program = loadable.program
    return pack_program(program, loadable.weights, loadable.link() if program.kernels else b"")


def _facts(worker: RegisteredWorker) -> DeviceFacts | None:
    """What a worker said of its device; None if it is not what devices say."""
    try:
        return DeviceFacts.from_json(worker.device)
    except InvalidFactsError:
        return None
