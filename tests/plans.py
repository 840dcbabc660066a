"""Running graph plans by the reference interpreter, and checking their invariants."""

from __future__ import annotations

import json

import numpy as np

from compiler.graph.ir import Graph
from compiler.graph.text import digest
from compiler.memory_plan import MemoryPlan, value_bytes
from compiler.ops.interpret import run_graph
from compiler.partition import plan_graph
from compiler.plan import GraphPlan, KernelStep, Placement, ViewStep, same_bytes
from tests.graphs import random_inputs


def execute(plan: GraphPlan, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a plan step by step, each kernel by the interpreter of its workload's graph."""
    values: dict[str, np.ndarray] = {**plan.graph.constants, **inputs}
    for step in plan.steps:
        match step:
            case ViewStep():
                shape = plan.graph.types[step.output].shape
                values[step.output] = values[step.input].reshape(shape)
            case KernelStep():
                body = step.workload.graph
                given = dict(zip(body.inputs, (values[v] for v in step.inputs), strict=True))
                (values[step.output],) = run_graph(body, given)
    return [values[v] for v in plan.graph.outputs]


def planned(graph: Graph, lanes: int = 8) -> GraphPlan:
    """A plan, after checking its invariants and what it computes."""
    plan = plan_graph(graph, lanes)
    inputs = random_inputs(graph)
    for a, b in zip(run_graph(graph, inputs), execute(plan, inputs), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)
    made: set[str] = set(plan.graph.inputs)
    for step in plan.steps:
        reads = step.inputs if isinstance(step, KernelStep) else (step.input,)
        for value in reads:
            assert value in made or value in plan.graph.constants
        made.add(step.output)
        if isinstance(step, ViewStep):
            shape = plan.graph.types[step.input].shape
            assert same_bytes(shape, plan.placements[step.input], Placement())
            assert plan.placements[step.output] == Placement()
            continue
        ends = [*zip(step.inputs, step.workload.inputs, strict=True)]
        for value, boundary in [*ends, (step.output, step.workload.output)]:
            assert boundary.type == plan.graph.types[value]
            assert boundary.constant == (value in plan.graph.constants)
            if not boundary.constant:
                place = Placement(boundary.layout, boundary.halo)
                assert same_bytes(boundary.type.shape, place, plan.placements[value])
    for value in (*plan.graph.inputs, *plan.graph.outputs):
        assert plan.placements[value] == Placement()
    written = {s.output for s in plan.steps}
    assert all(v in written for v in plan.graph.outputs)
    arrays = {digest(a): a for a in plan.graph.constants.values()}
    text = json.dumps(plan.to_json())
    again = GraphPlan.from_json(json.loads(text), arrays)
    assert again.graph == plan.graph and again.steps == plan.steps
    assert dict(again.placements) == dict(plan.placements) and again == plan
    return plan


def check_memory(plan: GraphPlan, memory: MemoryPlan) -> None:
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
