"""The order of turns, and how long a turn was free."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.stores.sweeps import TERM_SECONDS, SweepStore, Turn


@pytest.fixture
def sweeps(engine: sa.Engine, clock: Any) -> SweepStore:
    return SweepStore(engine, clock)


def test_one_holder_at_a_time(sweeps: SweepStore, clock: Any) -> None:
    assert sweeps.age("leases") is None
    assert sweeps.take("leases", "a") == Turn(0.0)
    for _ in range(20):
        assert sweeps.take("leases", "a") == Turn(0.0)
        assert sweeps.take("leases", "b") is None
        clock.advance(0.5)
    assert sweeps.take("blobs", "b") == Turn(0.0)


def test_a_holder_that_died_is_replaced_after_its_term(sweeps: SweepStore, clock: Any) -> None:
    sweeps.take("leases", "a")
    clock.advance(TERM_SECONDS - 0.1)
    assert sweeps.take("leases", "b") is None
    assert sweeps.age("leases") == pytest.approx(TERM_SECONDS - 0.1)
    clock.advance(0.2)
    turn = sweeps.take("leases", "b")
    assert turn is not None and turn.away_seconds == pytest.approx(TERM_SECONDS + 0.1)
    assert sweeps.take("leases", "a") is None
    assert sweeps.age("leases") == 0.0


def test_a_holder_that_leaves_is_not_missed(sweeps: SweepStore) -> None:
    assert sweeps.take("claims", "a") is not None
    sweeps.leave("claims", "b")
    assert sweeps.age("claims") == 0.0, "it is not b's turn"
    sweeps.leave("claims", "a")
    assert sweeps.age("claims") is None
    assert sweeps.take("claims", "b") is not None


def test_the_time_in_which_nobody_was_there_is_told_once(sweeps: SweepStore, clock: Any) -> None:
    sweeps.take("leases", "a")
    clock.advance(1000)
    assert sweeps.take("leases", "b") == Turn(1000.0)
    assert sweeps.take("leases", "b") == Turn(0.0)
    clock.advance(1000)
    assert sweeps.take("leases", "b") == Turn(1000.0), "the holder itself was held up"


def test_of_many_that_start_together_one_has_the_turn(engine: sa.Engine) -> None:
    stores = [SweepStore(engine) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        turns = list(pool.map(lambda n: stores[n].take("leases", str(n)), range(4)))
    assert sum(turn is not None for turn in turns) == 1


def test_the_wrong_clock_of_a_replica_takes_no_turn_away(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    SweepStore(engine).take("leases", "a")
    late = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: late)
    assert SweepStore(engine).take("leases", "b") is None
    age = SweepStore(engine).age("leases")
    assert age is not None and age < 30
