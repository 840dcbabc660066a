"""Memory plans: no two values that are alive together overlap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker
from tests.plans import check_memory
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.plan.memory import plan_memory
from tilewright.compiler.plan.partition import plan_graph


def chain(length: int) -> Graph:
    g = Maker()
    y = g.input("x", 4, 64)
    for layer in range(length):
        y = g("matmul", y, g.weight(f"w{layer}", 64, 64))
    return g.graph(g("softmax", y, axis=1))


def test_a_chain_needs_two_buffers() -> None:
    plan = plan_graph(chain(6), 8)
    memory = plan_memory(plan)
    check_memory(plan, memory)
    assert memory.arena_bytes == 2 * 4 * 64 * 4


def test_elementwise_steps_work_in_place() -> None:
    g = Maker()
    x = g.input("x", 4, 32)
    first = g("concat", x, x, axis=1, name="first")
    second = g("relu", first, name="second")
    graph = g.graph(g("matmul", second, g.weight("v", 64, 64), name="out"))
    plan = plan_graph(graph, 8)
    memory = plan_memory(plan)
    check_memory(plan, memory)
    assert memory.roots["second"] == "first"
    assert memory.arena_bytes == 4 * 64 * 4
    apart = plan_memory(plan, may_alias=lambda step, operand: False)
    check_memory(plan, apart)
    assert apart.roots["second"] == "second" and apart.arena_bytes == 2 * 4 * 64 * 4


def test_an_operand_that_others_read_later_is_kept() -> None:
    g = Maker()
    x = g.input("x", 4, 32)
    first = g("concat", x, x, axis=1, name="first")
    second = g("relu", first, name="second")
    later = g("softmax", first, axis=1, name="later")
    graph = g.graph(g("matmul", g("concat", second, later, axis=0), g.weight("v", 64, 64)))
    plan = plan_graph(graph, 8)
    memory = plan_memory(plan)
    check_memory(plan, memory)
    assert memory.roots["second"] == "second"


def test_rows_are_put_into_a_value_that_nothing_else_needs() -> None:
    """The second time something does: the function then copies it first."""
    g = Maker()
    x, places = g.input("x", 4, 64), g.input("places", 1, dtype=DType.INT64)
    row, weight = g.weight("row", 1, 64), g.weight("w", 64, 64)
    made = g("matmul", x, weight, name="made")
    once = g("scatter", made, places, row, name="once", depth=1)
    twice = g("scatter", once, places, g.weight("other", 1, 64), name="twice", depth=1)
    total = g("add", g("matmul", once, weight), g("matmul", twice, weight))
    plan = plan_graph(g.graph(total), 8)
    memory = plan_memory(plan)
    check_memory(plan, memory)
    assert memory.roots["once"] == "made" and memory.roots["twice"] == "twice"


def test_a_view_of_an_output_is_written_there() -> None:
    g = Maker()
    x = g.input("x", 4, 64)
    y = g("matmul", x, g.weight("w", 64, 64), name="y")
    plan = plan_graph(g.graph(g("reshape", y, shape=(2, 128), name="out")), 8)
    memory = plan_memory(plan)
    check_memory(plan, memory)
    assert memory.roots["y"] == "out" and memory.arena_bytes == 0


def test_shared_buffers_live_for_one_step() -> None:
    plan = plan_graph(chain(3), 8)
    memory = plan_memory(plan, lambda step: [1000, 64] if step is plan.steps[1] else [])
    assert set(memory.shared) == {1}
    large, small = memory.shared[1]
    assert large % 64 == 0 and small % 64 == 0
    live = [memory.offset(v) for v in (plan.steps[0].output, plan.steps[1].output)]
    sizes = [(large, 1000), (small, 64), *((o, 1024) for o in live if o is not None)]
    spans = sorted((start, start + size) for start, size in sizes)
    assert all(first[1] <= second[0] for first, second in pairwise(spans))


@settings(max_examples=examples(60))
@given(st.data())
def test_random_graphs(data: st.DataObject) -> None:
    g = Maker()
    values = [g.input("x", 4, 8), g.input("y", 4, 8)]
    for _ in range(data.draw(st.integers(1, 12))):
        pick = st.sampled_from(values)
        match data.draw(st.sampled_from(["add", "relu", "softmax", "view", "matmul"])):
            case "add":
                values.append(g("add", data.draw(pick), data.draw(pick)))
            case "relu":
                values.append(g("relu", data.draw(pick)))
            case "softmax":
                values.append(g("softmax", data.draw(pick), axis=1))
            case "view":
                flat = g("reshape", data.draw(pick), shape=(32,))
                values.append(g("reshape", g("relu", flat), shape=(4, 8)))
            case _:
                weight = g.weight(f"w{len(values)}", 8, 8)
                values.append(g("matmul", data.draw(pick), weight))
    outputs = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    plan = plan_graph(g.graph(*outputs), 8)
    check_memory(plan, plan_memory(plan))
