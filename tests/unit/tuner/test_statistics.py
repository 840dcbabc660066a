"""How sure times and comparisons are: coverage against seeded simulation, and the outcomes."""

from __future__ import annotations

import math
import random

import pytest

from tilewright.tuner.measure.statistics import (
    CONFIDENCE,
    MOST_SAMPLES,
    Comparison,
    Outcome,
    may_be_faster,
    median_interval,
    racing,
    undisturbed,
)
from tilewright.tuner.measure.verdict import winner_of
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey, Status, Trial

ROUNDS = 2000
# Of 2000 rounds the share that is covered has a deviation of sqrt(0.95 * 0.05 / 2000) = 0.005.
SLACK = 0.02


@pytest.mark.parametrize("count", [2, 5, 15])
def test_the_undisturbed_time_lies_in_its_interval_as_often_as_it_says(count: int) -> None:
    chance = random.Random(count)
    held = 0
    for _ in range(ROUNDS):
        samples = [1.0 + chance.expovariate(20.0) for _ in range(count)]
        interval = undisturbed(samples)
        assert interval is not None and interval.high == min(samples)
        held += interval.low <= 1.0
    assert held / ROUNDS == pytest.approx(CONFIDENCE, abs=SLACK)


def test_one_sample_is_sure_of_nothing() -> None:
    assert undisturbed([1.0]) is None
    assert Measurement(Status.OK, samples_seconds=(1.0,)).interval is None
    assert Measurement(Status.CRASH, samples_seconds=(1.0, 2.0)).interval is None


@pytest.mark.parametrize("count", [6, 9, 16])
def test_the_median_lies_in_its_interval_at_least_as_often_as_it_says(count: int) -> None:
    chance = random.Random(count)
    held = 0
    for _ in range(ROUNDS):
        interval = median_interval([chance.lognormvariate(0.0, 0.5) for _ in range(count)])
        held += interval.low <= 1.0 <= interval.high
    assert interval.coverage >= CONFIDENCE
    assert held / ROUNDS == pytest.approx(interval.coverage, abs=SLACK)


def test_few_values_say_how_little_they_are_worth() -> None:
    assert median_interval([3.0]).coverage == 0.0
    assert median_interval([1.0, 2.0]).coverage == 0.5
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]).coverage == 1.0 - 2.0**-4
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


@pytest.mark.parametrize("count", [1_030, 1_031, 2_000, MOST_SAMPLES])
def test_the_median_of_many_values_has_an_interval(count: int) -> None:
    """Binomial coefficients of more than about 1,030 values are no floats."""
    interval = median_interval(range(count))
    assert CONFIDENCE <= interval.coverage < CONFIDENCE + 4 / math.sqrt(count)
    # The normal approximation: 1.96 standard deviations of the count of values below the median.
    expected = 1.96 * math.sqrt(count) / 2
    assert (interval.high - interval.low) / 2 == pytest.approx(expected, abs=1.5)
    assert interval.low + interval.high == count - 1


@pytest.mark.parametrize(
    ("ratios", "outcome"),
    [
        ((0.9,) * 8, Outcome.FASTER),
        ((0.9,) * 5, Outcome.TIE),  # not sure enough to change anything
        ((0.997,) * 16, Outcome.TIE),  # faster, by too little
        ((1.2,) * 4, Outcome.SLOWER),
        ((0.8, 0.9, 1.1, 1.2) * 4, Outcome.TIE),
        ((0.9,) * 14 + (5.0, 9.0), Outcome.FASTER),  # two disturbed pairs
    ],
)
def test_outcomes(ratios: tuple[float, ...], outcome: Outcome) -> None:
    comparison = Comparison("default", ratios)
    assert comparison.outcome is outcome
    assert Comparison.from_json(comparison.to_json()) == comparison


@pytest.mark.parametrize("gain", [-0.02, 0.0, 0.01, 0.03])
def test_a_comparison_that_ends_early_says_no_more_and_no_less_of_who_is_faster(
    gain: float,
) -> None:
    """Against the whole of it, and against any that time ended before: 1,000 races of 16 pairs."""
    rng = random.Random(3)
    early = 0
    for _ in range(1000):
        ratios = [rng.gauss(1.0 - gain, 0.02) for _ in range(16)]
        stopped = [n for n in range(2, 16, 2) if not may_be_faster(ratios[:n], 16)]
        early += bool(stopped)
        for count in (*stopped, 16):
            found = Comparison("x", tuple(ratios[:count])).outcome
            if stopped:
                assert found is not Outcome.FASTER
    assert early > 900 if gain <= 0 else early < 900


def test_equal_kernels_are_hardly_ever_told_apart() -> None:
    chance = random.Random(3)
    outcomes = [
        Comparison("a", tuple(chance.lognormvariate(0.0, 0.03) for _ in range(16))).outcome
        for _ in range(ROUNDS)
    ]
    assert outcomes.count(Outcome.TIE) / ROUNDS > CONFIDENCE


def test_who_is_clearly_behind_leaves_and_who_may_lead_stays() -> None:
    assert racing([[1.0] * 3, [1.05] * 3, [1.5] * 3], margin=0.02) == [True, False, False]
    # five noisy samples decide where three cannot
    near = [[1.0, 1.03, 1.0, 1.04, 1.02], [1.04, 1.07, 1.05, 1.08, 1.04]]
    assert racing([each[:3] for each in near], margin=0.02) == [True, True]
    assert racing(near, margin=0.02) == [True, False]
    # where samples scatter, more is allowed
    wild = [[1.0, 1.5, 1.3, 1.9, 1.2], [1.06, 1.6, 1.2, 1.4, 1.7]]
    assert racing(wild, margin=0.02) == [True, True]
    assert racing([[1.5] * 3], margin=0.02, leader_seconds=1.0) == [False]


def test_a_burst_that_lengthens_the_first_samples_drops_nobody() -> None:
    assert racing([[1.0, 1.0], [1.4, 1.3]], margin=0.02) == [True, True]
    assert racing([[1.0, 1.0, 1.0], [1.4, 1.3, 1.2]], margin=0.02) == [True, False]


def test_the_fastest_is_hardly_ever_dropped() -> None:
    chance = random.Random(9)
    dropped = 0
    for _ in range(ROUNDS):
        samples = [[t * (1 + chance.expovariate(25)) for _ in range(3)] for t in (1.0, 1.01, 1.2)]
        dropped += not racing(samples, margin=0.02)[0]
    assert dropped / ROUNDS < 1.0 - CONFIDENCE


def _trial(name: str, seconds: float, ratio: float | None = None, checks: int = 3) -> Trial:
    from tilewright.compiler.schedule.schedule import Schedule

    comparison = None if ratio is None else Comparison("first", (ratio,) * 8)
    measured = Measurement(
        Status.OK, samples_seconds=(seconds,), checks=checks, comparison=comparison
    )
    return Trial(name, RecordKey("w", "t"), Schedule.of(name), measured, Phase.FINAL)


def test_a_tie_keeps_the_incumbent() -> None:
    incumbent = _trial("incumbent", 1.0)
    tie, slower = _trial("tie", 0.99, 0.999), _trial("slower", 0.98, 1.1)
    assert winner_of([incumbent, tie, slower]) is incumbent
    faster, fastest = _trial("faster", 0.9, 0.9), _trial("fastest", 0.8, 0.8)
    assert winner_of([incumbent, faster, fastest, tie]) is fastest


def test_nothing_wins_without_a_certificate() -> None:
    incumbent = _trial("incumbent", 1.0)
    assert winner_of([incumbent, _trial("unchecked", 0.5, 0.5, checks=2)]) is incumbent
    assert winner_of([_trial("unchecked", 0.5, checks=1)]) is None
