from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from db.stores.plans import GraphPlanStore


@pytest.fixture
def plans(engine: sa.Engine, clock: Any) -> GraphPlanStore:
    return GraphPlanStore(engine, clock)


def test_a_plan_is_named_by_its_content(plans: GraphPlanStore) -> None:
    digest = plans.put("m", "t", 1, "fast", {"steps": [1, 2], "name": "a"})
    assert plans.put("m", "t", 1, "fast", {"name": "a", "steps": [1, 2]}) == digest
    assert plans.put("m", "t", 1, "fast", {"name": "b", "steps": [1, 2]}) != digest
    assert len(plans.list("m")) == 2
    assert plans.list("other") == []


def test_the_fastest_measured_plan_is_best(plans: GraphPlanStore, clock: Any) -> None:
    assert plans.best("m", "t", 1, "fast") is None
    plans.put("m", "t", 1, "fast", {"n": 1})
    clock.advance(1)
    newest = plans.put("m", "t", 1, "fast", {"n": 2})
    found = plans.best("m", "t", 1, "fast")
    assert found is not None
    assert (found.digest, found.plan, found.run_seconds) == (newest, {"n": 2}, None)
    slow = plans.put("m", "t", 1, "fast", {"n": 3}, 2.0)
    fast = plans.put("m", "t", 1, "fast", {"n": 4}, 1.0)
    assert plans.best("m", "t", 1, "fast").digest == fast  # type: ignore[union-attr]
    plans.put("m", "t", 1, "fast", {"n": 3}, 0.5)
    plans.put("m", "t", 1, "fast", {"n": 3}, 0.7)  # slower this time: the better one stays
    plans.put("m", "t", 1, "fast", {"n": 3})
    best = plans.best("m", "t", 1, "fast")
    assert best is not None
    assert (best.digest, best.run_seconds) == (slow, 0.5)
    assert plans.best("m", "t", 2, "fast") is None
    assert plans.best("m", "t", 1, "strict") is None
