"""Bodies of control flow: their captured values, and the pipeline's effect on them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker, assert_equivalent, operators
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.control import branch_slots
from tilewright.compiler.passes.bodies import optimise_bodies
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.timings import Timings


def body(op: str, other: str, *, returns_capture: bool = False) -> Graph:
    """A body with three captures, of which it reads `first` and `other`."""
    g = Maker()
    for name in ("first", "second", "third"):
        g.input(name, 4)
    one = g.constant("one", [1.0])
    result = g("mul", g(op, "first", other), one)
    return g.graph(result if not returns_capture else "second")


def branching(
    captured: str, *, then: str = "second", otherwise: str = "second", returns: bool = False
) -> Graph:
    """`max` or `min` of captures, the one named `captured` being a constant."""
    g = Maker()
    condition = g.input("condition", dtype=DType.BOOL)
    values = []
    for name in ("first", "second", "third"):
        values.append(g.weight(name, 4) if name == captured else g.input(name, 4))
    bodies = {
        "then": body("max", then, returns_capture=returns),
        "otherwise": body("min", otherwise),
    }
    block = g("branch", condition, *values, **bodies)
    (slot,) = branch_slots(tuple(bodies.items()))
    field = {"dtype": "float32", "offset": slot.offset, "shape": (4,)}
    return g.graph(g("field", block, **field))


def branch(graph: Graph) -> Node:
    (node,) = [node for node in graph.nodes if node.op == "branch"]
    return node


@pytest.mark.parametrize("captured", ["", "first", "second", "third"])
@pytest.mark.parametrize(
    ("then", "otherwise", "read"),
    [
        ("second", "second", {"first", "second"}),
        ("third", "second", {"first", "second", "third"}),
        ("first", "third", {"first", "third"}),
    ],
)
def test_a_branch_gets_what_a_body_reads_at_run_time(
    captured: str, then: str, otherwise: str, read: set[str]
) -> None:
    graph = branching(captured, then=then, otherwise=otherwise)
    after = optimise(graph)
    assert_equivalent(graph, after)
    node = branch(after)
    assert set(node.inputs[1:]) == read - {captured}
    for inner in node.bodies:
        assert set(inner.inputs) == read - {captured}
        assert len(operators(inner)) == 1, "the product with one goes"
        assert bool(inner.constants) == (captured in inner_reads(inner, then, otherwise))


def inner_reads(inner: Graph, then: str, otherwise: str) -> set[str]:
    return {"first", then if "max" in operators(inner) else otherwise}


def test_a_capture_that_a_body_returns_stays() -> None:
    for captured in ("", "second"):
        graph = branching(captured, returns=True)
        after = optimise(graph)
        assert_equivalent(graph, after)
        assert ("second" in branch(after).inputs) is (captured == "")


def test_a_constant_gets_a_name_of_its_own() -> None:
    inner = Maker()
    inner.input("c", 4)
    inner.weight("c.constant", 4)
    first = inner.graph(inner("mul", "c", "c.constant"))
    g = Maker()
    block = g("branch", g.input("condition", dtype=DType.BOOL), g.weight("c", 4),
              then=first, otherwise=first)  # fmt: skip
    graph = g.graph(g("field", block, dtype="float32", offset=0, shape=(4,)))
    after = optimise_bodies(graph, lambda body, repeated: body)
    assert_equivalent(graph, after)
    assert branch(after).inputs == ("condition",)
    assert len(branch(after).bodies[0].constants) == 2


def test_only_the_body_of_a_loop_is_repeated() -> None:
    inner = Maker()
    inner.input("step", dtype=DType.INT64)
    step = inner.graph(inner("exp", inner.input("s", 4)))
    g = Maker()
    start = (g.constant("n", np.array(3)), g.constant("go", np.array(True)), g.input("x", 4))
    loop = g.graph(g("loop", *start, body=step, states=1, rows=(), decides=False))
    for graph, expected in ((loop, [True]), (branching(""), [False, False])):
        seen = []

        def record(body: Graph, repeated: bool, seen: list[bool] = seen) -> Graph:
            seen.append(repeated)
            return body

        optimise_bodies(graph, record)
        assert seen == expected


def test_passes_left_out_are_left_out_of_bodies() -> None:
    graph, timings = branching(""), Timings()
    after = optimise(graph, timings=timings, without=("algebra", "fold_scale"))
    assert all("mul" in operators(inner) for inner in branch(after).bodies)
    stages = {stage.stage: stage.count for stage in timings.stages}
    assert "pass algebra" not in stages
    assert stages["pass no_ops"] == 1 + 1 + 1, "the graph and each body, none of which changes"
