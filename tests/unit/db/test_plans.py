from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.stores.plans import GraphPlanStore


@pytest.fixture
def plans(engine: sa.Engine, clock: Any) -> GraphPlanStore:
    return GraphPlanStore(engine, clock)


def test_a_plan_is_named_by_its_content(plans: GraphPlanStore) -> None:
    digest = plans.put("m", "t", 1, "fast", {"steps": [1, 2], "name": "a"})
    assert plans.put("m", "t", 1, "fast", {"name": "a", "steps": [1, 2]}) == digest
    assert plans.put("m", "t", 1, "fast", {"name": "b", "steps": [1, 2]}) != digest
    assert len(plans.list("m")) == 2
    assert plans.list("other") == []


def test_a_plan_is_found_by_its_digest_with_the_time_and_why_it_was_chosen_last(
    plans: GraphPlanStore,
) -> None:
    of = ("m", "t", 1, "fast")
    digest = plans.put(*of, {"n": 1}, 3.0, codegen_version="v1")
    plans.put(*of, {"n": 1}, 2.0, codegen_version="v1", decision={"reason": "rule"})
    plans.put(*of, {"n": 1}, codegen_version="v1")
    found = plans.find(*of, digest)
    assert found is not None
    assert (found.plan, found.run_seconds, found.decision) == ({"n": 1}, 2.0, {"reason": "rule"})
    # another version, or other sizes: another plan
    assert plans.put(*of, {"n": 1}, codegen_version="v2") != digest
    assert plans.put(*of, {"n": 1}, codegen_version="v1", dims={"batch": 2}) != digest
    assert plans.find("m", "t", 2, "fast", digest) is None
