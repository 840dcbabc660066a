from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.errors import NotFoundError, StateError
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.cost_models import CostModelState, CostModelStore, StoredCostModel


@pytest.fixture
def store(engine: sa.Engine, blobs: BlobStore, clock: Any) -> CostModelStore:
    return CostModelStore(engine, blobs, clock)


def _add(store: CostModelStore, target: str = "t", data: bytes = b"{}") -> StoredCostModel:
    return store.add(
        target,
        data,
        feature_version=2,
        objective="throughput",
        rows=100,
        tasks=7,
        trials=120,
        scores={"pairwise": 0.8},
        chance={"pairwise": 0.5},
    )


def test_versions_are_counted_by_target(store: CostModelStore, clock: Any) -> None:
    first = _add(store, data=b"one")
    clock.advance(1)
    second = _add(store, data=b"two")
    other = _add(store, "u")
    assert (first.version, second.version, other.version) == (1, 2, 1)
    assert first.state is CostModelState.CANDIDATE and first.promoted_at is None
    assert store.get("t", 1) == first
    assert (first.scores, first.chance) == ({"pairwise": 0.8}, {"pairwise": 0.5})
    assert [m.version for m in store.list("t")] == [2, 1]
    assert len(store.list()) == 3
    (newest,) = page = store.list("t", limit=1)
    assert newest == second and store.list("t", after=page.next) == [first]
    assert (store.data(first), store.data(second)) == (b"one", b"two")
    assert store.promoted("t") is None


def test_one_version_is_promoted_at_a_time(store: CostModelStore) -> None:
    for _ in range(3):
        _add(store)
    _add(store, "u")
    store.promote("u", 1)
    assert store.promote("t", 1).state is CostModelState.PROMOTED
    once = store.promote("t", 2)
    assert store.promote("t", 2) == once  # again: nothing changes
    assert [m.state.value for m in sorted(store.list("t"), key=lambda m: m.version)] == [
        "retired",
        "promoted",
        "candidate",
    ]
    assert store.promoted("t") == once
    assert store.promoted("u") is not None


def test_rolling_back_goes_from_one_to_the_one_before(store: CostModelStore) -> None:
    with pytest.raises(StateError, match="'t'"):
        store.roll_back("t")
    for version in (1, 2, 3):
        _add(store)
        store.promote("t", version)  # within one tick of the clock
    _add(store)  # a candidate is never rolled back to
    assert store.roll_back("t").version == 2
    assert store.roll_back("t").version == 1
    with pytest.raises(StateError, match="version 1"):
        store.roll_back("t")
    assert store.promoted("t").version == 1  # type: ignore[union-attr]
    store.promote("t", 4)
    assert store.roll_back("t").version == 3  # which was promoted last before it


def test_an_unknown_version_is_named(store: CostModelStore) -> None:
    _add(store)
    for call in (store.get, store.promote):
        with pytest.raises(NotFoundError, match="9"):
            call("t", 9)


def test_trainers_at_once_get_versions_of_their_own(store: CostModelStore) -> None:
    barrier = threading.Barrier(4)

    def add(number: int) -> int:
        barrier.wait()
        return _add(store, data=b"%d" % number).version

    with ThreadPoolExecutor(4) as pool:
        versions = sorted(pool.map(add, range(4)))
    assert versions == [1, 2, 3, 4]


def test_promotions_at_once_leave_one(store: CostModelStore) -> None:
    for _ in range(4):
        _add(store)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda version: store.promote("t", version), (1, 2, 3, 4)))
    assert [m.state.value for m in store.list("t")].count("promoted") == 1
