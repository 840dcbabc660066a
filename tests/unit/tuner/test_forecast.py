"""Forecasts against random samples whose expectation is known, and their stated uncertainty."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import fmean

import pytest

from tilewright.tuner.forecast import (
    UNKNOWN_SCALE,
    Curve,
    Forecast,
    ForecastLog,
    History,
    expected_gain,
    forecast,
    gain_alone,
    seconds_of,
)


def _history(seconds: list[float]) -> History:
    history = History()
    for number, value in enumerate(seconds):
        history.add(value, str(number))
    return history


@pytest.mark.parametrize(("drawn", "more"), [(8, 8), (24, 8), (24, 100)])
def test_even_draws_gain_what_is_forecast(drawn: int, more: int) -> None:
    """Times even in 1..2: the fastest of n is 1 + 1 / (n + 1) in expectation."""
    rng = random.Random(1)
    expected, gained = [], []
    for _ in range(2000):
        times = [1.0 + rng.random() for _ in range(drawn + more)]
        history = _history(times[:drawn])
        scale, _ = history.own_scale()
        curve = Curve(1.0, drawn, min(times[:drawn]), scale)
        expected.append(curve.gain(drawn, more))
        gained.append(min(times[:drawn]) - min(times))
    exact = 1 / (drawn + 1) - 1 / (drawn + more + 1)
    # 2000 runs: the mean of the gains is known to some 3 %.
    assert fmean(gained) == pytest.approx(exact, rel=0.1)
    assert fmean(expected) == pytest.approx(exact, rel=0.2)


def test_nothing_is_gained_below_the_bound() -> None:
    curve = Curve(2.0, 4, 1e-3, 10.0, bound_seconds=0.9e-3)
    assert curve.gain(4, 1000) == pytest.approx(2 * 0.1e-3)
    assert Curve(2.0, 4, 1e-3, 10.0, bound_seconds=2e-3).gain(4, 1000) == 0


def test_of_a_space_that_is_used_up_nothing_is_expected() -> None:
    half, whole = Curve(1.0, 50, 1e-3, 0.5, space=100), Curve(1.0, 100, 1e-3, 0.5, space=100)
    assert half.gain(50, 8) == pytest.approx(Curve(1.0, 50, 1e-3, 0.5).gain(50, 8) / 2)
    assert whole.gain(100, 8) == 0


def test_a_best_far_from_the_others_is_no_distance_to_expect_again() -> None:
    default = _history([1.0, *(2.0 + 0.01 * i for i in range(8))])
    assert default.own_scale()[0] == pytest.approx(0.005 * 9, rel=0.01)  # a share of their time
    spread = _history([1.0, *(2.0 + i for i in range(8))])
    assert spread.own_scale()[0] == 1.0


def test_the_slow_end_promises_nothing() -> None:
    """Most candidates take twice as long and more: the distances between the slow ones do not
    count."""
    even = [1.0, 1.01, 1.02, 1.03]
    assert _history(even).own_scale()[0] == pytest.approx(0.04, rel=0.05)
    slow = [2.0, 2.5, 3.0, 4.0]
    # the same distances between the fastest, as shares of twice as many trials
    assert _history(even + slow).own_scale()[0] == pytest.approx(0.08, rel=0.05)


def test_before_times_tell_anything_tasks_alike_do() -> None:
    """A first trial promises as much as trials of other tasks gained; after eight trials of its
    own, that counts little."""
    first, many = _history([1.0]), _history([1.0 + 0.2 * i for i in range(8)])
    assert first.scale(UNKNOWN_SCALE) == pytest.approx(UNKNOWN_SCALE)
    assert many.scale(0.0) < many.scale(UNKNOWN_SCALE) < many.scale(0.0) + UNKNOWN_SCALE


def test_a_closed_task_counts_in_the_model_and_gains_nothing() -> None:
    moving, still = Curve(1.0, 8, 1e-3, 0.5), Curve(3.0, 8, 1e-3, 0.5, open=False)
    alone, together = expected_gain([moving], 64), expected_gain([moving, still], 64)
    assert together == pytest.approx(alone / 4)


def test_more_trials_gain_more_each_less_than_the_one_before() -> None:
    curves = [Curve(1.0, 8, 1e-3, 0.4), Curve(2.0, 30, 2e-3, 0.1)]
    gains = [expected_gain(curves, trials) for trials in (0, 8, 16, 32, 64)]
    assert gains[0] == 0
    steps = [b - a for a, b in pairwise(gains)]
    assert all(step > 0 for step in steps)
    assert steps[0] > steps[1] > steps[2] / 2


def test_trials_are_spent_where_they_gain_most() -> None:
    rich, poor = Curve(1.0, 8, 1e-3, 0.4), Curve(1.0, 8, 1e-3, 0.001)
    both = expected_gain([rich, poor], 64)
    assert both == pytest.approx(expected_gain([rich], 64) / 2, rel=0.05)


def test_what_did_not_come_true_is_believed_less() -> None:
    history = _history([1.3, 1.2, 1.1, 1.0])
    before = history.scale(UNKNOWN_SCALE)
    history.judge(expected=0.06, gained=0.0)
    assert history.scale(UNKNOWN_SCALE) == pytest.approx(before / 4)
    history.judge(expected=0.0, gained=0.5)
    assert before < history.scale(UNKNOWN_SCALE) <= 3 * before


def test_a_record_that_stands_for_long_promises_less() -> None:
    early, late = _history([1.0, *[1.2] * 15]), _history([*[1.2] * 15, 1.0])
    assert (early.freshness, late.freshness) == (pytest.approx((2 / 16) ** 0.5), 1.0)
    assert early.scale(UNKNOWN_SCALE) < late.scale(UNKNOWN_SCALE) / 2


def test_a_cluster_of_equal_times_is_not_the_end() -> None:
    """Six schedules that do the same, and others evenly behind them."""
    cluster = _history([1.0] * 6 + [1.0 + 0.02 * i for i in range(1, 35)])
    alone = _history([1.0] * 6)
    assert alone.own_scale()[0] == 0
    assert cluster.own_scale()[0] > 0.2


def test_failures_are_trials_that_say_nothing_of_times() -> None:
    history = History()
    history.add(None)
    history.add(1.0, "a")
    assert (history.trials, history.fastest) == (2, [1.0])


def test_a_forecast_is_a_sentence() -> None:
    found = forecast([Curve(1.0, 8, 1e-3, 0.4)], trials_per_second=10.0, seconds=30.0)
    assert (found.trials, found.model_seconds) == (300, 1e-3)
    assert found.gain_per_minute == 2 * found.gain
    said = str(Forecast(0.0083, 60.0, 600, 1e-3))
    assert said == "another 60 s is expected to gain 0.8 % end to end"


def test_the_error_of_forecasts_is_what_came_of_them() -> None:
    log = ForecastLog()
    assert log.error() is None
    log.note(1.0, 8, [Curve(1.0, 8, 1.0, 0.8)])
    assert log.error() is None
    log.note(11.0, 16, [Curve(1.0, 16, 0.9, 0.8)])
    log.note(21.0, 32, [Curve(1.0, 32, 0.9, 0.8)])
    found = log.error(window_seconds=10.0)
    assert found is not None and found.checks == 2
    # 0.8 / 8 - 0.8 / 16 and 0.8 / 16 - 0.8 / 32 were expected; a tenth and nothing came.
    assert found.expected == pytest.approx((0.05 + 0.025) / 2)
    assert found.gained == pytest.approx(0.05)
    assert found.absolute_error == pytest.approx((0.05 + 0.025) / 2)
    longer = log.error(window_seconds=60.0)
    assert longer is not None and longer.gained == pytest.approx(0.05)


def test_a_minute_of_one_task_gains_a_share_of_the_whole() -> None:
    alone, other = Curve(2.0, 4, 1e-3, 0.4), Curve(1.0, 4, 2e-3, 0.0)
    whole = Forecast(0.01, 30.0, 12, seconds_of([alone, other]))
    expected = 2.0 * 1e-3 * 0.4 * (1 / 4 - 1 / 16) / 4e-3 * 2  # of half a minute, twice
    assert gain_alone(alone, whole) == pytest.approx(expected)
    assert gain_alone(other, whole) == 0.0 and gain_alone(alone, None) is None
