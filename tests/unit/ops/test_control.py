"""Control flow in graphs: types, the interpreter, plans and programs of graphs made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker, assert_equivalent
from tests.plans import check_memory, planned
from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidInputError, InvalidModelError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.check import verify
from tilewright.compiler.ops.control import ENDLESS_STEPS, MANY_STEPS, loop_form
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.plan.memory import plan_memory
from tilewright.compiler.plan.plan import LoopStep

VECTOR, COUNT, TRUTH = (
    TensorType(DType.FLOAT32, (4,)),
    TensorType(DType.INT64, ()),
    TensorType(DType.BOOL, ()),
)


def step(*, rows: bool = False) -> Graph:
    """s' = s * w + 1 while s'[0] is small; the row is s'[0]."""
    g = Maker()
    g.input("step", dtype=DType.INT64)
    s, w = g.input("s", 4), g.input("w", 4)
    next_ = g("add", g("mul", s, w), g.constant("one", [1.0]))
    first = g("slice", next_, starts=(0,), steps=(1,), sizes=(1,))
    scalar = g("reshape", first, shape=())
    going = g("less", scalar, g.constant("limit", np.float32(20)))
    return g.graph(going, next_, *([scalar] if rows else []))


def attrs(**given: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(given.items()))


def form(**given: Any) -> tuple[tuple[str, Any], ...]:
    """The attributes of a loop over `step`."""
    return attrs(**{"body": step(), "decides": True, "rows": (), "states": 1, **given})


def loop(body: Graph, most: int | None = None, trips: int = 5) -> Graph:
    g = Maker()
    x, w = g.input("x", 4), g.input("w", 4)
    go, n = g.input("go", dtype=DType.BOOL), g.constant("n", np.array(trips))
    attrs: dict[str, Any] = {} if most is None else {"most": most}
    rows = (2,) if most is not None else ()
    attrs |= {"body": body, "decides": True, "rows": rows, "states": 1}
    block = g("loop", n, go, g("relu", x), w, **attrs)
    steps = g("field", block, dtype="int64", offset=0, shape=())
    state = g("field", block, dtype="float32", offset=128, shape=(4,))
    outputs = [steps, g("relu", state)]
    if most is not None:
        outputs.append(g("field", block, dtype="float32", offset=192, shape=(most,)))
    return g.graph(*outputs)


def inputs(go: bool = True) -> dict[str, np.ndarray]:
    return {
        "x": np.float32([1, 2, -3, 0]),
        "w": np.float32([2, 0.5, 1, -1]),
        "go": np.array(go),
    }


def test_the_interpreter_runs_until_the_body_says() -> None:
    graph = loop(step(rows=True), 7)
    verify(graph)
    steps, state, rows = run_graph(graph, inputs())
    assert steps == 4  # 1, 3, 7, 15, 31
    assert rows.tolist() == [3, 7, 15, 31, 0, 0, 0]
    assert state.dtype == np.float32 and state[0] == 31
    steps, state, rows = run_graph(graph, inputs(go=False), float64=True)
    assert steps == 0 and state.tolist() == [1, 2, 0, 0] and not rows.any()
    assert state.dtype == np.float64
    steps, *_ = run_graph(loop(step(rows=True), 2), inputs())
    assert steps == 2


def test_the_interpreter_gives_up_on_a_loop_without_an_end() -> None:
    g = Maker()
    g.input("step", dtype=DType.INT64)
    s = g.input("s", 4)
    w = g.input("w", 4)
    body = g.graph(g("identity", g.constant("on", np.array(True))), g("mul", s, w))
    with pytest.raises(InvalidInputError, match="has not ended after 100000 steps"):
        run_graph(loop(body, trips=ENDLESS_STEPS + 1), inputs())
    steps, _ = run_graph(loop(body, trips=30), inputs())
    assert steps == 30


@pytest.mark.parametrize("most", [None, 7])
def test_a_plan_of_a_loop_holds_and_computes_the_same(most: int | None) -> None:
    graph = loop(step(rows=most is not None), most)
    plan = planned(graph)
    check_memory(plan, plan_memory(plan))
    (found,) = (s for s in plan.steps if isinstance(s, LoopStep))
    assert (found.most, found.expected) == (most, most or 16)
    assert found.body.kernels and set(found.body.kernels) < set(plan.kernels)
    counts = dict(plan.tasks())
    assert all(counts[k.workload] == found.expected for k in found.body.kernels)


def test_expected_steps_have_a_limit() -> None:
    assert loop_form(form(most=1 << 50)).expected_steps == MANY_STEPS


def chosen() -> Graph:
    """max(x, w) of the run, or their product with a matrix."""
    bodies = []
    for op in ("max", "min"):
        g = Maker()
        x, w = g.input("x", 4), g.input("w", 4)
        g.input("unread", 4)
        bodies.append(g.graph(g(op, x, w), g("add", x, w)))
    g = Maker()
    x, w, go = g.input("x", 4), g.input("w", 4), g.input("go", dtype=DType.BOOL)
    c = g.constant("c", np.float32([1, 2, 3, 4]))
    dropped = g("exp", x)
    block = g("branch", go, c, w, dropped, then=bodies[0], otherwise=bodies[1])
    one = g("field", block, dtype="float32", offset=0, shape=(4,))
    other = g("field", block, dtype="float32", offset=64, shape=(4,))
    return g.graph(one, other)


def test_a_branch_is_one_of_its_bodies() -> None:
    graph = chosen()
    verify(graph)
    w = inputs()["w"]
    for go in (True, False):
        one, other = run_graph(graph, inputs(go))
        pick = np.maximum if go else np.minimum
        np.testing.assert_array_equal(one, pick(np.float32([1, 2, 3, 4]), w))
        np.testing.assert_array_equal(other, np.float32([1, 2, 3, 4]) + w)
    plan = planned(graph)
    check_memory(plan, plan_memory(plan))


def test_bodies_take_constants_and_leave_what_they_do_not_read() -> None:
    graph = chosen()
    after = optimise(graph)
    assert_equivalent(graph, after)
    verify(after)
    (node,) = (n for n in after.nodes if n.op == "branch")
    assert node.inputs == ("go", "w")
    assert all(body.inputs == ("w",) and len(body.constants) == 1 for body in node.bodies)
    assert not after.constants and "exp" not in {n.op for n in after.nodes}
    assert optimise(after) == after


def test_what_constants_decide_is_not_computed_at_compile_time() -> None:
    g = Maker()
    g.input("x", 4)
    trips, go = g.constant("n", np.array(1 << 40)), g.constant("go", np.array(True))
    s, w = g.constant("s", np.ones(4)), g.constant("w", np.ones(4))
    block = g("loop", trips, go, s, w, **dict(form()))
    graph = g.graph(g("field", block, dtype="float32", offset=128, shape=(4,)))
    assert [n.op for n in optimise(graph).nodes] == ["loop", "field"]


OPERANDS = [COUNT, TRUTH, VECTOR, VECTOR]


@pytest.mark.parametrize(
    ("op", "types", "given", "message"),
    [
        ("loop", OPERANDS, {}, "'decides' is not an integer"),
        ("loop", OPERANDS, form(body=3), "'body' is not a graph"),
        ("loop", OPERANDS, form(states=1.0), "'states' is not an integer"),
        ("loop", OPERANDS, form(states=-1), "not the number of steps"),
        ("loop", OPERANDS, form(states=3), "not the number of steps"),
        ("loop", OPERANDS, form(states=2), "its states are others"),
        ("loop", OPERANDS, form(decides=False), "its states are others"),
        ("loop", OPERANDS[::-1], form(), "not the number of steps"),
        ("loop", OPERANDS[:-1], form(), "takes .*, it is given"),
        ("loop", OPERANDS, form(rows=(1,)), "nothing bounds their"),
        ("loop", OPERANDS, form(rows=(2,), most=3), "not outputs of a body with 2"),
        ("loop", OPERANDS, form(rows=(0,), most=3), "not outputs of a body with 2"),
        ("loop", OPERANDS, form(most=-2), "at most -2 steps"),
        ("branch", [COUNT], {"then": step(), "otherwise": step()}, "is not a boolean"),
        ("branch", [TRUTH], {"then": step(), "otherwise": step()}, "it is given"),
        (
            "branch",
            [TRUTH, COUNT, VECTOR, VECTOR],
            {"then": step(), "otherwise": step(rows=True)},
            "its branches give",
        ),
        ("field", [VECTOR], {"dtype": "int8", "offset": 0, "shape": (1,)}, "not a block of bytes"),
        (
            "field",
            [TensorType(DType.UINT8, (64,))],
            {"dtype": "int8", "offset": 8, "shape": (1,)},
            "at byte 8 is not a field",
        ),
        (
            "field",
            [TensorType(DType.UINT8, (64,))],
            {"dtype": "int64", "offset": 0, "shape": (9,)},
            "does not lie in",
        ),
    ],
)
def test_contradictions_are_named(
    op: str, types: list[TensorType], given: Any, message: str
) -> None:
    with pytest.raises(InvalidModelError, match=message):
        ops.get(op).infer(types, attrs(**dict(given)))


def with_body(graph: Graph, body: Graph) -> Graph:
    """The graph with another body in its loop."""
    given = form(body=body)
    nodes = [replace(n, attrs=given) if n.op == "loop" else n for n in graph.nodes]
    return graph.replace(nodes=nodes)


def test_bodies_are_verified() -> None:
    body = step()
    graph = with_body(loop(body), body)
    verify(graph)
    missing = body.replace(nodes=[n for n in body.nodes if n.op != "mul"])
    with pytest.raises(InvalidModelError, match="'mul_0' is not defined before it"):
        verify(with_body(graph, missing))
    types = {**body.types, "mul_0": TensorType(DType.FLOAT64, (4,))}
    with pytest.raises(InvalidModelError, match="mul 'mul_0': inferred float32"):
        verify(with_body(graph, body.replace(types=types)))


def test_a_field_of_bytes_is_their_value() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    block = np.zeros(192, np.uint8)
    block[64:88] = values.view(np.uint8).reshape(-1)
    given = attrs(dtype="float32", offset=64, shape=(2, 3))
    np.testing.assert_array_equal(ops.get("field").reference([block], given), values)


@pytest.mark.parametrize("op", ["loop", "branch"])
def test_what_runs_bodies_has_neither_reference_nor_expression(op: str) -> None:
    with pytest.raises(ValueError, match="run by the interpreter"):
        ops.get(op).reference([], ())
    with pytest.raises(ValueError, match="has an expression"):
        ops.get(op).expression([], [], (), (), lambda *_: pytest.fail("an axis"))
