"""How a sandbox times the candidates of a batch: in which order, how often, and who leaves early.

Kernels are pretended, so that what the machine does meanwhile decides nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.tuner.measure.kernel_buffers import Buffers
from tilewright.tuner.measure.measurement import RecordKey
from tilewright.tuner.measure.race import BoundCase, CandidateRace, Races, Ready
from tilewright.tuner.measure.wire import Candidate, Case, MeasureRequest, RepeatSettings

SECONDS = 1e-3
"""What a kernel takes: longer than clocks are coarse."""


@dataclass
class Kernel:
    """Takes what it is told to, sample by sample, and notes what is done with it."""

    name: str
    ratios: Iterable[float]
    log: list[tuple[str, str]]
    _left: Iterator[float] = field(init=False)
    calibrations: int = 0

    def __post_init__(self) -> None:
        self._left = iter(self.ratios)

    def run(self) -> None:
        self.log.append((self.name, "untimed"))

    def evict(self, role: BufferRole) -> None:
        self.log.append((self.name, f"without {role.value}"))

    def inner_for(self, sample_seconds: float) -> int:
        self.calibrations += 1
        return 1

    def time(self, samples: int, inner: int = 1) -> np.ndarray:
        self.log.append((self.name, "timed"))
        return np.array([SECONDS * next(self._left)] * samples)


class Batch:
    """A request over pretended kernels, and what the session tells of it."""

    def __init__(self, samples: int, incumbent: str = "", seed: int = 0, **ratios: Any) -> None:
        self.log: list[tuple[str, str]] = []
        self.events: list[dict[str, Any]] = []
        candidates = tuple(Candidate(name, {}, name, {}) for name in ratios)
        repeat = RepeatSettings(samples, round_seconds=0.0, seed=seed)
        key = RecordKey("w", "t")
        case = Case((), "digest")
        self.request = MeasureRequest(
            "r",
            key,
            candidates,
            "library",
            (case,),
            1e-6,
            incumbent=incumbent,
            repeat=repeat,
        )
        self.kernels = {
            name: Kernel(name, itertools.repeat(r) if isinstance(r, float) else r, self.log)
            for name, r in ratios.items()
        }
        self._races = Races(self._emit)

    def _emit(self, **event: Any) -> None:
        self.events.append(event)

    def run(self, *, cold: bool = False) -> None:
        ready = [
            Ready(candidate, [BoundCase(self.kernels[candidate.trial_id])], cold)  # type: ignore[arg-type]
            for candidate in self.request.candidates
        ]
        self._races.run([CandidateRace(self.request, [Buffers()], ready)])

    @property
    def order(self) -> list[str]:
        """Whose sample was taken, one after the other."""
        return [event["trial"] for event in self.events if event["event"] == "sample"]

    def ratios(self, name: str) -> list[float]:
        pairs = [e for e in self.events if e["event"] == "pair" and e["trial"] == name]
        return [pair["ratio"] for pair in pairs]


def test_rounds_are_interleaved_in_fresh_orders() -> None:
    names = "abcdef"
    batch = Batch(8, **dict.fromkeys(names, 1.0))
    batch.run()
    rounds = [batch.order[at : at + len(names)] for at in range(0, len(batch.order), len(names))]
    assert len(rounds) == 8 and all(sorted(each) == list(names) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 4, "not the same neighbour in front every time"
    again, other = (Batch(8, seed=seed, **dict.fromkeys(names, 1.0)) for seed in (0, 1))
    for each in (again, other):
        each.run()
    assert again.order == batch.order != other.order


def test_every_sample_comes_after_an_untimed_run_and_cold_weights_are_dropped() -> None:
    warm, cold = Batch(2, a=1.0), Batch(2, a=1.0)
    warm.run()
    cold.run(cold=True)
    assert warm.log == [("a", "timed"), *[("a", "untimed"), ("a", "timed")] * 2]
    assert cold.log == [("a", "untimed"), ("a", "without weight"), ("a", "timed")] * 2


def test_who_takes_three_times_the_best_leaves_at_once() -> None:
    batch = Batch(8, fast=1.0, slow=3.1)
    batch.run()
    # in whichever order they came: one look, or one sample
    assert batch.order.count("fast") == 8 and batch.order.count("slow") == 1
    late = Batch(8, seed=1, fast=1.0, slow=2.9)
    late.run()
    assert late.order.count("slow") == 3, "below that it takes the three samples of a test"


def test_who_is_shown_to_be_slower_leaves_and_who_may_lead_stays() -> None:
    noise = itertools.cycle([1.0, 1.02, 1.01])
    batch = Batch(8, fast=1.0, near=noise, slower=1.3)
    batch.run()
    counts = {name: batch.order.count(name) for name in batch.kernels}
    assert counts == {"fast": 8, "near": 8, "slower": 3}


def test_finalists_run_in_pairs_with_the_incumbent_to_either_side() -> None:
    batch = Batch(4, incumbent="old", old=1.0, new=0.5)
    batch.run()
    # one sample of the incumbent says what is too slow; then A B B A
    assert batch.order == ["old", *["old", "new", "new", "old"] * 2]
    assert batch.ratios("new") == [0.5] * 4 and batch.ratios("old") == []


def test_a_drift_of_the_machine_is_no_gain_of_a_finalist() -> None:
    """It gets slower by the sample: what comes first would win every pair but for the turns."""
    clock = (1.01**n for n in itertools.count())
    batch = Batch(8, incumbent="old", old=clock, new=clock)
    batch.run()
    ratios = batch.ratios("new")
    assert len(ratios) == 8
    assert sum(ratio > 1 for ratio in ratios) == sum(ratio < 1 for ratio in ratios) == 4


@pytest.mark.parametrize("name", ["slow", "hopeless"])
def test_a_finalist_that_is_slower_gets_no_further_pairs(name: str) -> None:
    ratio = {"slow": 1.5, "hopeless": 4.0}[name]
    batch = Batch(16, incumbent="old", old=1.0, new=0.9, **{name: ratio})
    batch.run()
    assert len(batch.ratios("new")) == 16
    assert len(batch.ratios(name)) == {"slow": 4, "hopeless": 0}[name]
