"""Runs of whole programs on any device: builds requests and interprets their results.

`tuner.protocol.runs` defines the requests. A subclass decides how a request reaches the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.compiler.runtime.speeds import largest_block
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.target import Target
from tilewright.service.jobs.device.device import Checked, DeviceError, Loadable, Variant
from tilewright.service.jobs.inputs.given_inputs import GivenInputs
from tilewright.tuner.measure.plain_form import plain_programs
from tilewright.tuner.measure.roofline import Speeds, cache_sizes, dots, probe_library, vector_bytes
from tilewright.tuner.measure.run_packing import (
    Blobs,
    PackedProgram,
    make_request,
    pack_program,
)
from tilewright.tuner.protocol.blobs import array_to_bytes, digest_bytes
from tilewright.tuner.protocol.run_results import FETCH_BYTES, Race, RunResult
from tilewright.tuner.protocol.runs import (
    INPUT_SEED,
    CheckWork,
    ProfileWork,
    RaceWork,
    RunRequest,
    SpeedsWork,
    Work,
)


class ProgramRuns(ABC):
    """Base class of devices: packs programs into requests, and interprets their results.

    Args:
        job_id: the job that submits the runs.
        target: the target of the generated code; None if each call names the target.
        limit_seconds: the wall-time limit of each step of a run: loading a program, or running it
            once.
        given: the user's input values for the model; other inputs are random.
    """

    def __init__(
        self, job_id: str, target: Target | None, limit_seconds: float, given: GivenInputs
    ) -> None:
        self._job_id = job_id
        self._run_target = target
        self._limit_seconds = limit_seconds
        self._given = given
        self._speeds: dict[str, Speeds] = {}

    @property
    @abstractmethod
    def facts(self) -> DeviceFacts | None:
        """The properties of the device; see `Device.facts`."""

    @property
    @abstractmethod
    def _where(self) -> str:
        """The first words of an error message, which name the device, such as `worker 'board'`."""

    @abstractmethod
    def _await(self, target: Target) -> None:
        """Wait until the device is available.

        Raises:
            DeviceError: if the device does not become available.
        """

    @abstractmethod
    def _answered(
        self, request: RunRequest, blobs: Blobs, target: Target | None
    ) -> tuple[RunResult, str]:
        """Execute a run. Return its result, and the id of the worker that executed it.

        Raises:
            DeviceError: if the device cannot execute the run.
        """

    @property
    def fetch_bytes(self) -> int:
        """The largest total size, in bytes, of the outputs that one call of `check` may fetch."""
        return FETCH_BYTES

    def speeds(self, target: Target) -> Speeds:
        """Return the measured roofline of the device; measure it at the first call for a target.

        See `Device.speeds`.
        """
        known = self._speeds.get(target.key)
        if known is not None:
            return known
        self._await(target)
        facts = self.facts
        if facts is None:
            raise DeviceError(f"{self._where} does not report the facts of its device")
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
        """Run a program once and compare its outputs; see `Device.check`."""
        ports = {port.name: port for port in loadable.program.outputs}
        coming = sum(ports[name].bytes for name in fetch)
        if coming > FETCH_BYTES:
            raise DeviceError(
                f"{self._where} brings back outputs of at most {FETCH_BYTES} bytes, "
                f"{coming} are wanted"
            )
        files = {name: array_to_bytes(array) for name, array in expected.items()}
        names = {name: digest_bytes(data) for name, data in files.items()}
        more = {names[name]: memoryview(data) for name, data in files.items()}
        # an output and its expected values, both as float64, and their difference
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
        """Time variants in pairs with the first one; see `Device.race`.

        Each pair is one request, so a device holds two variants at a time.
        """
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
        """Return the seconds of each instruction; see `Device.profile`."""
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
        """Create a request for a run and execute it.

        Args:
            programs: the programs to load; several for a race.
            threads: the number of threads of the run.
            work: the kind of run: a check, race, profile or roofline measurement.
            more: the blobs that `work` refers to, by digest.
            work_bytes: the memory that `work` needs in addition to the programs.
            target: the target of the generated code; None for the target of this device.

        Returns:
            the result, and the id of the worker that executed the run.
        """
        target = target or self._run_target
        plain: tuple[str, ...] = ()
        if target is not None and target.family.modules and not isinstance(work, SpeedsWork):
            try:
                plain, spelled = plain_programs(
                    [each.program for each in programs],
                    work.seed,
                    [each.given for each in programs],
                )
            except ValueError as error:
                raise DeviceError(f"{self._where}: {error}") from error
            more = {**more, **{name: memoryview(data) for name, data in spelled.items()}}
        request, blobs = make_request(
            self._job_id, threads, programs, work, more, work_bytes, self._limit_seconds
        )
        return self._answered(replace(request, plain=plain), blobs, target)

    def _packed(self, loadable: Loadable, seed: int = INPUT_SEED) -> PackedProgram:
        program = loadable.program
        library = loadable.link() if program.kernels else b""
        given = self._given.provided(program.inputs, seed)
        return pack_program(program, loadable.weights, library, given)

    def _incomplete(self) -> DeviceError:
        return DeviceError(f"{self._where} reported a run without its results")
