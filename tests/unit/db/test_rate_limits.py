"""Token buckets that several replicas share."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.clock import instant
from tilewright.db.engine import open_engine, reading
from tilewright.db.stores.rate_limits import Rate, RateLimitStore

RATE = Rate(burst=3, per_second=0.5)


@pytest.fixture
def limits(engine: sa.Engine, clock: Any) -> RateLimitStore:
    return RateLimitStore(engine, clock)


def test_a_burst_and_then_the_rate(limits: RateLimitStore, clock: Any) -> None:
    assert [limits.take("a", RATE) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert limits.take("a", RATE) == pytest.approx(2.0)
    clock.advance(1.5)
    assert limits.take("a", RATE) == pytest.approx(0.5), "what was refused took nothing"
    clock.advance(0.5)
    assert limits.take("a", RATE) == 0.0
    assert limits.take("a", RATE) == pytest.approx(2.0)
    assert limits.take("b", RATE) == 0.0, "each bucket for itself"


def test_a_bucket_holds_no_more_than_its_burst(limits: RateLimitStore, clock: Any) -> None:
    limits.take("a", RATE)
    clock.advance(1e6)
    assert [limits.take("a", RATE) for _ in range(4)][:3] == [0.0, 0.0, 0.0]
    assert limits.take("a", RATE) > 0.0


def test_a_clock_that_goes_back_fills_and_empties_nothing(
    limits: RateLimitStore, clock: Any
) -> None:
    limits.take("a", RATE)
    limits.take("a", RATE)
    clock.advance(-1e6)
    assert limits.take("a", RATE) == 0.0
    assert limits.take("a", RATE) > 0.0


def test_a_limit_that_was_lowered_holds_at_once(limits: RateLimitStore) -> None:
    limits.take("a", Rate(burst=100, per_second=100))
    assert [limits.take("a", RATE) == 0.0 for _ in range(4)] == [True, True, True, False]


def test_two_replicas_share_a_bucket(url: str) -> None:
    """Eight at once from each of two, with a burst of ten: ten get through."""
    engines = [open_engine(url) for _ in range(2)]
    rate = Rate(burst=10, per_second=1e-6)
    stores = [RateLimitStore(engine, lambda: 1000.0) for engine in engines] * 8
    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(lambda store: store.take("a", rate), stores))
    assert sum(wait == 0.0 for wait in waits) == 10
    for engine in engines:
        engine.dispose()


def test_the_databases_clock_is_that_of_the_world(engine: sa.Engine) -> None:
    with reading(engine) as connection:
        now = connection.execute(sa.select(instant(None)())).scalar()
    assert now == pytest.approx(time.time(), abs=60.0)
    assert RateLimitStore(engine).take("a", RATE) == 0.0


def test_full_buckets_go(limits: RateLimitStore, clock: Any) -> None:
    limits.take("old", RATE)
    clock.advance(100)
    limits.take("young", RATE)
    assert limits.remove_full(60) == 1
    assert limits.remove_full(60) == 0
