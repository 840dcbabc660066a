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


def test_the_plan_that_was_chosen_last(plans: GraphPlanStore, clock: Any) -> None:
    def chosen(codegen: str = "v1", **dims: int) -> Any:
        found = plans.chosen("m", "t", 1, "fast", dims=dims, codegen_version=codegen)
        return None if found is None else (found.plan, found.run_seconds, found.decision)

    def put(plan: int, seconds: float | None = None, why: str | None = None, **dims: int) -> None:
        decision = None if why is None else {"reason": why}
        plans.put(
            "m", "t", 1, "fast", {"n": plan}, seconds,
            dims=dims, codegen_version="v1", decision=decision,
        )  # fmt: skip
        clock.advance(1)

    put(1, 3.0)
    assert chosen() is None  # it was measured, and not chosen
    put(1, 2.0, "rule")
    put(2, 1.0)
    assert chosen() == ({"n": 1}, 2.0, {"reason": "rule"})
    put(2, 1.5, "faster")
    assert chosen() == ({"n": 2}, 1.0, {"reason": "faster"})
    put(1, why="again")
    put(1)
    assert chosen() == ({"n": 1}, 2.0, {"reason": "again"})
    # another version, or other sizes: nothing is known
    assert chosen("v2") is None
    assert chosen(batch=2) is None
    put(1, why="at two", batch=2)
    assert chosen(batch=2) == ({"n": 1}, None, {"reason": "at two"})
    assert chosen() == ({"n": 1}, 2.0, {"reason": "again"})
