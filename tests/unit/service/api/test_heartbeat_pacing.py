"""Intervals of workers' heartbeats, with few workers and with many."""

from __future__ import annotations

import pytest

from tilewright.service.api.heartbeat_pacing import MOST_A_SECOND, HeartbeatPacing


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def heard(clock: Clock, workers: int, least: float = 5.0, most: float = 20.0) -> HeartbeatPacing:
    pacing = HeartbeatPacing(least, most, clock)
    for number in range(workers):
        pacing.record(f"w{number}")
    return pacing


@pytest.mark.parametrize(
    ("workers", "seconds"), [(0, 5.0), (1, 5.0), (1000, 5.0), (2000, 10.0), (9000, 20.0)]
)
def test_so_many_a_second_are_heard(clock: Clock, workers: int, seconds: float) -> None:
    assert MOST_A_SECOND == 200
    assert heard(clock, workers).seconds == seconds


def test_one_that_says_it_often_is_one(clock: Clock) -> None:
    pacing = heard(clock, 2000)
    for _ in range(3000):
        pacing.record("w7")
    assert pacing.seconds == 10.0


def test_who_has_gone_is_forgotten(clock: Clock) -> None:
    pacing = heard(clock, 2000)
    for clock.now in (15.0, 30.0, 45.0):
        for number in range(400, 800):
            pacing.record(f"w{number}")
    assert pacing.seconds == 5.0
    assert len(pacing._heard) == 400, "and takes no memory"


def test_what_an_operator_sets_is_never_undercut(clock: Clock) -> None:
    assert heard(clock, 9000, least=30.0, most=20.0).seconds == 30.0
