"""Memory plans: no two values that are alive together overlap."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.graph.ir import Graph
from compiler.memory_plan import MemoryPlan, plan_memory, value_bytes
from compiler.partition import plan_graph
from compiler.plan import GraphPlan, KernelStep, ViewStep
from tests.graphs import Maker


def check(plan: GraphPlan, memory: MemoryPlan) -> None:
    """Simulate the steps: no kernel may write over bytes that a later step still reads."""
    external = {memory.roots[v] for v in (*plan.graph.inputs, *plan.graph.outputs)}
    assert all(offset % 64 == 0 for offset in memory.offsets.values())
    written = np.full(memory.arena_bytes, -1)  # which value's bytes these are
    numbers: dict[str, int] = {}
    places: dict[str, tuple[str, int | None]] = {}
    for position, step in enumerate(plan.steps):
        reads = step.inputs if isinstance(step, KernelStep) else (step.input,)
        for value in reads:
            if value in numbers and memory.roots[value] not in external:
                start = memory.offset(value)
                assert start is not None
                held = written[start : start + value_bytes(plan, value)]
                assert (held == numbers[value]).all(), f"{value} is overwritten"
        output = step.output
        places[output] = memory.roots[output], memory.offset(output)
        if isinstance(step, ViewStep):
            assert memory.roots[step.input] == memory.roots[output]
            numbers[output] = numbers.get(step.input, -1)
            continue
        numbers[output] = position
        if memory.roots[output] not in external:
            start = memory.offset(output)
            assert start is not None
            end = start + value_bytes(plan, output)
            assert end <= memory.arena_bytes
            if not any(memory.roots[v] == memory.roots[output] for v in reads if v in numbers):
                for value in reads:
                    if value in numbers and memory.roots[value] not in external:
                        first = memory.offset(value)
                        assert first is not None
                        assert first + value_bytes(plan, value) <= start or first >= end
            written[start:end] = position
    for value in plan.graph.outputs:
        assert memory.offset(value) is None
    assert len({memory.roots[v] for v in plan.graph.outputs}) == len(plan.graph.outputs)
    for value in plan.graph.inputs:
        assert memory.roots[value] == value and memory.offset(value) is None


def chain(length: int) -> Graph:
    g = Maker()
    y = g.input("x", 4, 64)
    for layer in range(length):
        y = g("matmul", y, g.weight(f"w{layer}", 64, 64))
    return g.graph(g("softmax", y, axis=1))


def test_a_chain_needs_two_buffers() -> None:
    plan = plan_graph(chain(6), 8)
    memory = plan_memory(plan)
    check(plan, memory)
    assert memory.arena_bytes == 2 * 4 * 64 * 4


def test_elementwise_steps_work_in_place() -> None:
    g = Maker()
    x = g.input("x", 4, 32)
    first = g("concat", x, x, axis=1, name="first")
    second = g("relu", first, name="second")
    graph = g.graph(g("matmul", second, g.weight("v", 64, 64), name="out"))
    plan = plan_graph(graph, 8)
    memory = plan_memory(plan)
    check(plan, memory)
    assert memory.roots["second"] == "first"
    assert memory.arena_bytes == 4 * 64 * 4
    apart = plan_memory(plan, may_alias=lambda step, operand: False)
    check(plan, apart)
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
    check(plan, memory)
    assert memory.roots["second"] == "second"


def test_a_view_of_an_output_is_written_there() -> None:
    g = Maker()
    x = g.input("x", 4, 64)
    y = g("matmul", x, g.weight("w", 64, 64), name="y")
    plan = plan_graph(g.graph(g("reshape", y, shape=(2, 128), name="out")), 8)
    memory = plan_memory(plan)
    check(plan, memory)
    assert memory.roots["y"] == "out" and memory.arena_bytes == 0


def test_shared_buffers_live_for_one_step() -> None:
    plan = plan_graph(chain(3), 8)
    memory = plan_memory(plan, {1: [1000, 64]})
    assert set(memory.shared) == {1}
    first, second = sorted(memory.shared[1])
    assert first % 64 == 0 and second % 64 == 0
    live = [memory.offset(v) for v in (plan.steps[0].output, plan.steps[1].output)]
    sizes = [(first, 1000), (second, 64), *((o, 1024) for o in live if o is not None)]
    spans = sorted((start, start + size) for start, size in sizes)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False)) or len(sizes) < 2


@settings(max_examples=60, deadline=None)
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
    check(plan, plan_memory(plan))
