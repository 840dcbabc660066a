"""The interface of the machine on which a job measures kernels and runs programs.

A job never inspects the machine on which its own process runs. It uses a `Device`, which is either
that machine (`service.jobs.device.local_device`) or a group of remote workers
(`service.jobs.device.leased_device`).
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
        ran: True if the program started, and crashed or did not end. False if it did not start: the
            device is absent, or lacks memory or an instruction that the run needs.
    """

    def __init__(self, message: str, *, ran: bool = False) -> None:
        super().__init__(message)
        self.ran = ran


@dataclass(frozen=True, slots=True)
class Loadable:
    """A compiled program that a device can load and run.

    Attributes:
        program: the instructions, kernels and memory layout.
        weights: the packed constants, which the program refers to by offset; several programs may
            refer to the same block.
        load: loads the program into this process, for a number of threads, and returns it.
        link: returns the bytes of a shared library with the program's machine code.
        mixing: the symbols of kernels whose algorithm, such as Strassen's, adds different rows and
            columns of an operand. In such a kernel, the rounding error of a large element also
            reaches small elements of the result that mathematically do not depend on it.
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
    """A machine that measures kernels and runs programs. All calls must come from one thread."""

    @property
    def name(self) -> str:
        """The device's name for users: `this machine`, or the worker's name."""

    @property
    def facts(self) -> DeviceFacts | None:
        """The properties of the device that its worker reports; None until a worker has
        registered.
        """

    @property
    def runner(self) -> Runner:
        """The runner that measures kernels on this device."""

    @property
    def trusted(self) -> bool:
        """Whether the device belongs to the service, so that its measurements need no review."""

    @property
    def fetch_bytes(self) -> int:
        """The largest total size, in bytes, of the outputs that one call of `check` may fetch."""

    def second_opinion(self, first: ClaimReporter) -> Device:
        """Return a device on which to repeat a measurement that the worker `first` has made.

        The repetition runs on other workers than `first` if any are alive. Otherwise it runs on the
        same workers as this device.
        """

    def worth(self, first: ClaimReporter) -> Attestation:
        """Return how trustworthy a measurement by `first` becomes if a repetition confirms it.

        The result states how many workers, of how many owners, would then have measured. For
        example, a confirmation by a worker of another owner is worth more than one by the same
        worker. The repetition would run on the device that `second_opinion` returns.
        """

    def runs(self, target: Target) -> bool:
        """Whether the device can run code for this target."""

    def absence(self, target: Target) -> str:
        """Return why the device does not run code for a target, without a full stop.

        For example, `no worker runs target 'x86-64-v3'`.
        """

    def speeds(self, target: Target) -> Speeds:
        """Return the device's roofline, measured with code for this target in about a second.

        Raises:
            DeviceError: if the device cannot measure it.
        """

    def check(
        self,
        loadable: Loadable,
        threads: int,
        seed: int,
        expected: Mapping[str, np.ndarray],
        fetch: Sequence[str] = (),
    ) -> Checked:
        """Run a program once on random inputs, and compare its outputs on the device.

        Args:
            loadable: the program.
            threads: the number of threads of the run.
            seed: the seed of the random inputs (`tuner.measure.model_runs.draw_inputs`).
            expected: the expected outputs, by name.
            fetch: the names of the outputs to return; other outputs stay on the device.

        Returns:
            the errors of the compared outputs, and the fetched outputs.

        Raises:
            DeviceError: if the device cannot complete the run.
        """

    def race(
        self,
        variants: Iterable[Variant],
        threads: int,
    ) -> Race:
        """Time variants of a model against the first one, the incumbent.

        The variants are run in pairs with the incumbent, in interleaved order.

        Args:
            variants: the variants, each compiled at one or several sizes. A variant is taken from
                the iterable only when its race begins, so that few are in memory.
            threads: the number of threads of a run.

        Returns:
            the time ratio of each other variant to the incumbent.

        Raises:
            DeviceError: if the device cannot complete the runs.
        """

    def profile(self, loadable: Loadable, threads: int, samples: int) -> np.ndarray:
        """Run a program repeatedly, and return the fastest time of each instruction.

        Args:
            loadable: the program.
            threads: the number of threads of a run.
            samples: the number of runs.

        Returns:
            the seconds of each instruction, in the order of `program.walk()`; a float64 array.

        Raises:
            DeviceError: if the device cannot complete the runs.
        """
