"""The machine that a job tunes for: its facts, and the runs that it can do.

A job never inspects the machine that it runs on. It uses a `Device`, which is either the machine of
this process (`service.jobs.device.local_device`), or a group of workers
(`service.jobs.device.leased_device`). Only the local device compares a target with its host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.packing import Bytes
from tilewright.compiler.runtime.program import Program
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.target import Target
from tilewright.db.review_state import Attestation, ClaimReporter
from tilewright.tuner.measure.roofline import Speeds
from tilewright.tuner.measure.runner import Runner
from tilewright.tuner.protocol.run_results import Race


class DeviceError(CompilerError):
    """A device could not complete a request; the message is one sentence that names the device.

    Attributes:
        ran: whether the program was run and crashed or did not end. If not, the device is absent,
            or lacks what the run needs.
    """

    def __init__(self, message: str, *, ran: bool = False) -> None:
        super().__init__(message)
        self.ran = ran


@dataclass(frozen=True, slots=True)
class Loadable:
    """A compiled program that a device can be given.

    Attributes:
        program: its instructions, kernels and memory.
        weights: the packed constants that it refers to by offset; other programs may refer to the
            same block.
        load: the program in this process, for a number of threads.
        link: its code as one shared library for its target.
        mixing: the symbols of kernels whose algorithm adds up different rows and columns: a
            rounding of a large element shows in small ones that do not depend on it.
    """

    program: Program
    weights: Bytes
    load: Callable[[int], Executable]
    link: Callable[[], bytes]
    mixing: frozenset[str] = frozenset()


Variant = Sequence[Loadable]
"""One variant of a model: its programs, one per size, which run one after the other."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a run on random inputs.

    Attributes:
        errors: for each compared output, the largest difference from the expected values, relative
            to the largest expected value (`tuner.measure.model_runs.largest_error`).
        fetched: the requested outputs, by name.
    """

    errors: Mapping[str, float] = field(default_factory=dict)
    fetched: Mapping[str, np.ndarray] = field(default_factory=dict)


class Device(Protocol):
    """A machine that measures. Methods are called from one thread."""

    @property
    def name(self) -> str:
        """The device's name for users: `this machine`, or the worker's name."""

    @property
    def facts(self) -> DeviceFacts | None:
        """The device facts that the worker reports; None until a worker has registered."""

    @property
    def runner(self) -> Runner:
        """Measures kernels."""

    @property
    def trusted(self) -> bool:
        """Whether the device is ours, so that its measurements need no second opinion."""

    @property
    def fetch_bytes(self) -> int:
        """Outputs that one `check` may bring back, in bytes."""

    def second_opinion(self, first: ClaimReporter) -> Device:
        """A device for a second opinion: a machine other than this reporter's, if one exists."""

    def worth(self, first: ClaimReporter) -> Attestation:
        """The attestation that a confirmation by `second_opinion` would have at this moment."""

    def runs(self, target: Target) -> bool:
        """Whether the device runs code for this target."""

    def absence(self, target: Target) -> str:
        """The reason why the device does not run code for this target, as a sentence without full
        stop."""

    def speeds(self, target: Target) -> Speeds:
        """Its roofline, measured with code for this target. It takes about a second.

        Raises:
            DeviceError: if the device cannot.
        """

    def check(
        self,
        loadable: Loadable,
        threads: int,
        seed: int,
        expected: Mapping[str, np.ndarray],
        fetch: Sequence[str] = (),
    ) -> Checked:
        """Run a program once and compare its outputs there.

        Args:
            loadable: the program.
            threads: threads that the run uses.
            seed: the seed of the random inputs (`tuner.measure.model_runs.draw_inputs`).
            expected: the references' outputs, by name.
            fetch: names of the outputs to return; the others stay on the device.

        Raises:
            DeviceError: if the device cannot.
        """

    def race(
        self,
        variants: Iterable[Variant],
        threads: int,
    ) -> Race:
        """Run variants interleaved in pairs with the first one, the incumbent.

        Each variant is requested only when its turn comes.

        Raises:
            DeviceError: if the device cannot.
        """

    def profile(self, loadable: Loadable, threads: int, samples: int) -> np.ndarray:
        """Seconds of each instruction of `program.walk()`, each in its place: the fastest sample.

        Returns:
            (instructions,), float64.

        Raises:
            DeviceError: if the device cannot.
        """
