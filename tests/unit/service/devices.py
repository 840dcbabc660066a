"""Devices for tests: the local one with invented races, and failing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.compiler.targets.device import find_device
from tilewright.compiler.targets.target import Target
from tilewright.db.review_state import Attestation, ClaimReporter
from tilewright.service.jobs.device.device import Checked, Device, DeviceError, Loadable, Variant
from tilewright.tuner.measure.roofline import Level, Speeds
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.run_results import Race

SPEEDS = Speeds(1e11, (Level("L1", 1 << 15, 1e11), Level("memory", 0, 1e10)))


@dataclass
class FakeDevice:
    """A device whose races have given results.

    Attributes:
        ratios: the challengers' times relative to the incumbent, one per race; more races fail.
        worker: the id of the worker behind it.
        runnable: whether it runs any target.
        error: the error of every run.
        runner: measures kernels.
        second: measures records again; the runner does if it is None.
        other: the device of a second opinion; this device if it is None.
        trusted: whether its records need no second measurement.
        raced: how many programs ran against the incumbent, race by race.
    """

    ratios: list[float] = field(default_factory=list)
    runnable: bool = True
    error: DeviceError | None = None
    runner: Any = None
    second: Any = None
    trusted: bool = False
    raced: list[int] = field(default_factory=list)
    name: str = "the fake"
    worker: str = "fake"
    owner: str = ""
    fetch_bytes: int = 1 << 20
    other: FakeDevice | None = None

    @property
    def facts(self) -> Any:
        return find_device()

    def second_opinion(self, first: ClaimReporter) -> FakeDevice:
        return self.other or replace(self, runner=self.second or self.runner)

    def worth(self, first: ClaimReporter) -> Attestation:
        if self.trusted:
            return Attestation.OWN
        other = self.other or self
        return first.second(ClaimReporter(other.worker, other.owner))

    def runs(self, target: Target) -> bool:
        return self.runnable

    def absence(self, target: Target) -> str:
        return f"{self.name} does not run target '{target.name}'"

    def speeds(self, target: Target) -> Speeds:
        self._fail()
        return SPEEDS

    def check(
        self,
        loadable: Loadable,
        threads: int,
        seed: int,
        expected: Mapping[str, np.ndarray],
        fetch: Sequence[str] = (),
    ) -> Checked:
        self._fail()
        if fetch:
            raise DeviceError("it shows no values")
        return Checked(dict.fromkeys(expected, 0.0))

    def race(
        self,
        variants: Iterable[Variant],
        threads: int,
    ) -> Race:
        self._fail()
        challengers = list(variants)[1:]
        self.raced.append(len(challengers))
        ratio = self.ratios.pop(0)
        found = tuple(Comparison("untuned", (ratio,) * 8) for _ in challengers)
        return Race(1.0, found, "" if self.trusted else self.worker)

    def profile(self, loadable: Loadable, threads: int, samples: int) -> np.ndarray:
        self._fail()
        return np.ones(len(tuple(loadable.program.walk())))

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


def _is_a_device(fake: FakeDevice) -> Device:
    return fake
