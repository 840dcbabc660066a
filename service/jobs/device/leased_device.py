"""A device that workers stand for: requests of a job go through the queue of leases.

The requests are those of `tuner.measure.run_wire`; `run_queue` waits for their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

import numpy as np

from tilewright.compiler.errors import InvalidFactsError
from tilewright.compiler.runtime.speeds import largest_block
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.target import Target
from tilewright.db.review_state import Attestation, ClaimReporter
from tilewright.db.storage import Storage
from tilewright.db.stores.workers import Health, RegisteredWorker
from tilewright.service.jobs.device.device import Checked, DeviceError, Loadable, Variant
from tilewright.service.jobs.device.remote_runner import RemoteRunner
from tilewright.service.jobs.device.run_queue import RunQueue
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.model_runs import INPUT_SEED, Race
from tilewright.tuner.measure.plain_form import plain_programs
from tilewright.tuner.measure.roofline import Speeds, cache_sizes, dots, probe_library, vector_bytes
from tilewright.tuner.measure.run_packing import (
    Blobs,
    PackedProgram,
    make_request,
    pack_program,
)
from tilewright.tuner.measure.run_result import FETCH_BYTES, RunResult
from tilewright.tuner.measure.run_wire import (
    CheckWork,
    ProfileWork,
    RaceWork,
    SpeedsWork,
    Work,
)
from tilewright.tuner.measure.wire import array_to_bytes, digest_bytes

ABSENT_SECONDS = 300.0
"""How long a run waits while nobody can take it."""

SECOND_SECONDS = 60.0
"""How long a second opinion waits while its worker is away."""

LIMIT_SECONDS = 300.0
"""Of one step of a run: loading a program, one run of it. Boards load from memory cards."""


class LeasedDevice:
    """All workers of one target, or some of them. A context.

    All runs of a job go to one worker (`RunQueue`); kernels are measured by all of the target, or
    by those that are named in turn (`RemoteRunner`).
    Methods that run something raise Interrupted and JobCancelled beside DeviceError.

    Args:
        storage: the queue, the workers and the blobs.
        job_id: what asks.
        target: what code is generated for.
        interrupt: set when this process must let go of the job.
        cancel: set when the user wants the job to end.
        worker_ids: the only workers that may be asked, the first ones first; empty for all.
        absent_seconds: how long a run waits while nobody can take it.
        gives_back: whether the job is given back then (WorkerAbsent), to wait for a worker.
        limit_seconds: wall time that one step of a run may take.
        second: whether a second opinion is asked for: it is never what was said before.
        canaries: whether a worker in quarantine is waited for.
        priority: of kernels that are measured, beside those of others.
        given: real inputs of the model whose programs are run.
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
        self._storage = storage
        self._job_id = job_id
        self._target = target
        self._tokens = interrupt, cancel
        self._worker_ids = tuple(worker_ids)
        self._gives_back = gives_back
        self._priority = priority
        self._given = given
        self._absent_seconds = absent_seconds
        self._limit_seconds = limit_seconds
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
            storage,
            job_id,
            target,
            interrupt,
            cancel,
            worker_ids,
            absent_seconds,
            gives_back,
            "second" if second else "",
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

    @property
    def fetch_bytes(self) -> int:
        return FETCH_BYTES

    def beside(self, first: ClaimReporter) -> LeasedDevice:
        """The same for other living workers of the target, the idle ones first; for those of this
        device if there is no other.

        Those of other owners are preferred: who sends several could confirm his own lies.
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
        """Those whose word is worth the most beside the first's, who has least in hand first."""
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
        """Living workers that measure for the job."""
        return self._runner.workers

    def runs(self, target: Target) -> bool:
        return bool(self._queue.known(target))

    def absence(self, target: Target) -> str:
        return f"no worker runs target '{target.name}'"

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
            tuple(dots(target)),
        )
        more = {work.library: memoryview(library)}
        most = largest_block(work.cache_bytes, work.memory_bytes)
        result, _ = self._run((), 1, work, more, most, target)
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
        packed = self._packed(loadable, seed)
        result, _ = self._run((packed,), threads, work, more, largest + coming)
        arrays = result.arrays()
        if result.errors.keys() != expected.keys() or arrays.keys() != set(fetch):
            raise self._incomplete()
        return Checked(dict(result.errors), arrays)

    def race(
        self,
        variants: Iterable[Variant],
        threads: int,
    ) -> Race:
        """One request for each pair, so that a device must hold only two variants at a time."""
        turns = iter(variants)
        incumbent = tuple(map(self._packed, next(turns)))
        found: list[Race] = []
        for variant in turns:
            found.append(self._race([incumbent, tuple(map(self._packed, variant))], threads))
        if not found:
            found.append(self._race([incumbent], threads))
        workers = {race.worker for race in found}
        return Race(
            min(race.incumbent_seconds for race in found),
            tuple(comparison for race in found for comparison in race.comparisons),
            workers.pop() if len(workers) == 1 else "",
        )

    def profile(self, loadable: Loadable, threads: int, samples: int) -> np.ndarray:
        work = ProfileWork(0, samples)
        result, _ = self._run((self._packed(loadable),), threads, work, {}, 0)
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
        result, worker = self._run(programs, threads, RaceWork(tuple(numbers)), {}, 0)
        found = result.race
        if found is None or len(found.comparisons) != len(variants) - 1:
            raise self._incomplete()
        return replace(found, worker=worker)

    def _run(
        self,
        programs: Sequence[PackedProgram],
        threads: int,
        work: Work,
        more: Blobs,
        work_bytes: int,
        target: Target | None = None,
    ) -> tuple[RunResult, str]:
        """A worker's result of a run, and the worker's id."""
        target = target or self._target
        plain: tuple[str, ...] = ()
        if target.family.modules and not isinstance(work, SpeedsWork):
            try:
                plain, spelled = plain_programs(
                    [each.program for each in programs],
                    work.seed,
                    [each.given for each in programs],
                )
            except ValueError as error:
                raise DeviceError(f"worker '{self.name}': {error}") from error
            more = {**more, **{name: memoryview(data) for name, data in spelled.items()}}
        request, blobs = make_request(
            self._job_id, threads, programs, work, more, work_bytes, self._limit_seconds
        )
        return self._queue.run(replace(request, plain=plain), blobs, target)

    def _packed(self, loadable: Loadable, seed: int = INPUT_SEED) -> PackedProgram:
        program = loadable.program
        library = loadable.link() if program.kernels else b""
        given = self._given.provided(program.inputs, seed)
        return pack_program(program, loadable.weights, library, given)

    def _incomplete(self) -> DeviceError:
        return DeviceError(f"worker '{self.name}' reported a run without its results")


def _worth(first: ClaimReporter, other: RegisteredWorker) -> Attestation:
    return first.second(ClaimReporter(other.id, other.owner or ""))


def _facts(worker: RegisteredWorker) -> DeviceFacts | None:
    """What a worker said of its device; None if it is not what devices say."""
    try:
        return DeviceFacts.from_json(worker.device)
    except InvalidFactsError:
        return None
