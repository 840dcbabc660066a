"""The machine of this process as the device of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType

import numpy as np

from tilewright.compiler.errors import OutOfMemoryError
from tilewright.compiler.runtime.native import pinned_random_keys
from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.host import runs_here
from tilewright.compiler.targets.target import Target
from tilewright.db.review_state import Attestation, ClaimReporter
from tilewright.service.jobs.device.device import Checked, DeviceError, Loadable, Variant
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
from tilewright.tuner.measure import model_runs
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.measure.model_runs import Race, Run, output_errors, run_all
from tilewright.tuner.measure.roofline import Speeds, measure_speeds
from tilewright.tuner.measure.runner import Runner


class LocalDevice:
    """Runs programs in this process, and measures kernels in a child of it.

    A context, which ends that child. Its methods run on the caller's thread.

    Args:
        given: real inputs of the model whose programs are run.
    """

    def __init__(self, given: GivenInputs = NONE_GIVEN) -> None:
        self._given = given
        self._facts = this_device()
        self._runner: LocalRunner | None = None
        self._speeds: dict[str, Speeds] = {}

    def __enter__(self) -> LocalDevice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            self._runner.close()

    @property
    def name(self) -> str:
        return "this machine"

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    @property
    def runner(self) -> Runner:
        """The runner, started when it is first asked for."""
        return self.local_runner

    @property
    def trusted(self) -> bool:
        return True

    @property
    def fetch_bytes(self) -> int:
        """They stay in memory: as many as a certificate has beside its reference."""
        return 64 << 20

    def beside(self, first: ClaimReporter) -> LocalDevice:
        return self

    def worth(self, first: ClaimReporter) -> Attestation:
        return Attestation.OWN

    @property
    def local_runner(self) -> LocalRunner:
        if self._runner is None:
            self._runner = LocalRunner("local", self._facts.brief().to_json())
        return self._runner

    def runs(self, target: Target) -> bool:
        return runs_here(target)

    def absence(self, target: Target) -> str:
        return f"{self.name} does not run target '{target.name}'"

    def speeds(self, target: Target) -> Speeds:
        if target.key not in self._speeds:
            self._speeds[target.key] = measure_speeds(target, self._facts)
        return self._speeds[target.key]

    def check(
        self,
        loadable: Loadable,
        threads: int,
        seed: int,
        expected: Mapping[str, np.ndarray],
        fetch: Sequence[str] = (),
    ) -> Checked:
        with _in_memory(), pinned_random_keys():
            executable = loadable.load(threads)
            given = self._given.draw(executable.program.inputs, seed)
            outputs = executable.run(given, labels=False)
        names = (port.name for port in executable.program.outputs)
        named = dict(zip(names, outputs, strict=True))
        errors = output_errors(executable, outputs, expected)
        return Checked(errors, {name: named[name] for name in fetch})

    def race(
        self,
        variants: Iterable[Variant],
        threads: int,
    ) -> Race:
        def loaded(variant: Variant) -> Run:
            executables = [one.load(threads) for one in variant]
            return run_all([(each, self._given.draw(each.program.inputs)) for each in executables])

        turns = iter(variants)
        with _in_memory():
            incumbent = loaded(next(turns))
            challengers = (partial(loaded, variant) for variant in turns)
            return model_runs.race(incumbent, challengers, threads)

    def profile(self, loadable: Loadable, threads: int, samples: int) -> np.ndarray:
        with _in_memory():
            executable = loadable.load(threads)
            inputs = self._given.draw(executable.program.inputs)
            fastest: np.ndarray = executable.profile(inputs, samples).min(axis=0)
        return fastest


@contextmanager
def _in_memory() -> Iterator[None]:
    """A run that this machine has no memory for is one that the device cannot do."""
    try:
        yield
    except OutOfMemoryError as error:
        raise DeviceError(f"this machine: {error}") from error
