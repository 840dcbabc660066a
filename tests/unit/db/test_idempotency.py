"""Keys of requests, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.errors import KeyInFlightError, KeyMismatchError
from tilewright.db.stores.idempotency import HELD_SECONDS, Answered, HeldKey, IdempotencyStore


@pytest.fixture
def keys(engine: sa.Engine, clock: Any) -> IdempotencyStore:
    return IdempotencyStore(engine, clock)


def held(keys: IdempotencyStore, digest: str = "d") -> HeldKey:
    found = keys.begin("t", "k", digest)
    assert isinstance(found, HeldKey)
    return found


def test_the_first_answer_is_kept(keys: IdempotencyStore) -> None:
    first = held(keys)
    with pytest.raises(KeyInFlightError):
        keys.begin("t", "k", "d")
    keys.finish(first, 201, b"\x00answer")
    keys.finish(first, 500, b"later")
    keys.release(first)
    assert keys.begin("t", "k", "d") == Answered(201, b"\x00answer")
    with pytest.raises(KeyMismatchError, match="'k'"):
        keys.begin("t", "k", "other")
    assert isinstance(keys.begin("another token", "k", "other"), HeldKey)


def test_what_is_let_go_is_free(keys: IdempotencyStore) -> None:
    keys.release(held(keys))
    assert held(keys, "other")


def test_a_process_that_died_is_taken_over(keys: IdempotencyStore, clock: Any) -> None:
    dead = held(keys)
    clock.advance(HELD_SECONDS - 1)
    with pytest.raises(KeyMismatchError):
        keys.begin("t", "k", "other")
    keys.renew(dead)
    clock.advance(HELD_SECONDS - 1)
    with pytest.raises(KeyInFlightError):
        keys.begin("t", "k", "d")
    clock.advance(1)
    heir = held(keys)
    for late in (keys.renew, keys.release, lambda each: keys.finish(each, 200, b"late")):
        late(dead)
        with pytest.raises(KeyInFlightError):
            keys.begin("t", "k", "d")
    keys.finish(heir, 200, b"heir")
    assert keys.begin("t", "k", "d") == Answered(200, b"heir")


def test_one_of_many_at_once_holds_it(keys: IdempotencyStore) -> None:
    def begin(_: int) -> bool:
        try:
            return isinstance(keys.begin("t", "k", "d"), HeldKey)
        except KeyInFlightError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, range(8))) == 1


def test_old_ones_are_forgotten_and_those_in_flight_are_not(
    keys: IdempotencyStore, clock: Any
) -> None:
    keys.finish(held(keys), 200, b"")
    clock.advance(100)
    long = keys.begin("t", "long", "d")
    assert isinstance(long, HeldKey)
    assert keys.remove(101) == 0
    assert keys.remove(50) == 1
    assert held(keys)
    assert keys.remove(0) == 0, "both are in flight"
    clock.advance(1000)
    keys.renew(long)
    assert keys.remove(50) == 1
