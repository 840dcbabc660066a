"""Running graph plans by the reference interpreter, and checking their invariants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from tests.graphs import random_inputs
from tests.plan_reader import read_plan
from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.memory import MemoryPlan, value_bytes
from tilewright.compiler.plan.partition import plan_graph
from tilewright.compiler.plan.placement import Placement, same_storage
from tilewright.compiler.plan.plan import (
    BranchStep,
    GraphPlan,
    KernelStep,
    LoopStep,
    NativeStep,
    ViewStep,
    bodies_of,
)
from tilewright.compiler.runtime.native_functions import native_signature
from tilewright.compiler.runtime.packing import pack, unpack


def execute(plan: GraphPlan, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a plan step by step, each kernel by the interpreter of its workload's graph."""
    values: dict[str, np.ndarray] = {**plan.graph.constants, **inputs}
    blocks: dict[str, Mapping[int, np.ndarray]] = {}
    for step in plan.steps:
        match step:
            case LoopStep() | BranchStep():
                blocks[step.output] = run_bodies(plan, step, values)
            case ViewStep() if step.inputs[0] in blocks:
                values[step.output] = blocks[step.inputs[0]][-step.offsets[0]]
            case ViewStep() | NativeStep():
                node = plan.graph.producer(step.output)
                assert node is not None and node.inputs == step.inputs
                arrays = [values[v] for v in node.inputs]
                values[step.output] = ops.get(node.op).reference(arrays, node.attrs)
            case KernelStep():
                body = step.workload.graph
                given = dict(zip(body.inputs, (values[v] for v in step.inputs), strict=True))
                (values[step.output],) = run_graph(body, given)
    return [values[v] for v in plan.graph.outputs]


def run_bodies(
    plan: GraphPlan, step: LoopStep | BranchStep, values: Mapping[str, np.ndarray]
) -> Mapping[int, np.ndarray]:
    """The results of a step with bodies, by where they start; each body by its own plan."""
    node = plan.graph.producer(step.output)
    assert node is not None and node.inputs == step.inputs
    plans = dict(zip(map(id, node.bodies), sorted_bodies(step), strict=True))

    def run(body: Graph, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        inner = plans[id(body)]
        assert inner.graph.inputs == body.inputs
        return execute(inner, dict(zip(body.inputs, given, strict=True)))

    control = ops.get(node.op).control
    assert control is not None
    return control([values[v] for v in step.inputs], node.attrs, run)


def sorted_bodies(step: LoopStep | BranchStep) -> tuple[GraphPlan, ...]:
    """The plans of a step's bodies in the order of its node's attributes."""
    return (step.body,) if isinstance(step, LoopStep) else (step.otherwise, step.then)


def planned(graph: Graph, lanes: int = 8) -> GraphPlan:
    """A plan, after checking its invariants and its results."""
    plan = plan_graph(graph, lanes)
    inputs = random_inputs(graph)
    for a, b in zip(run_graph(graph, inputs), execute(plan, inputs), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)
    made: set[str] = set(plan.graph.inputs)
    for step in plan.steps:
        for value in step.inputs:
            assert value in made or value in plan.graph.constants
        made.add(step.output)
        if isinstance(step, ViewStep):
            check_view(plan, step)
            continue
        if isinstance(step, NativeStep):
            check_native(plan, step)
            continue
        if isinstance(step, LoopStep | BranchStep):
            for body in bodies_of(step):
                planned(body.graph, lanes)
                assert all(body.placements[v] == Placement() for v in body.graph.outputs)
            continue
        ends = [*zip(step.inputs, step.workload.inputs, strict=True)]
        for value, boundary in [*ends, (step.output, step.workload.output)]:
            assert boundary.type == plan.graph.types[value]
            assert boundary.constant == (value in plan.graph.constants)
            if not boundary.constant:
                place = Placement(boundary.layout, boundary.halo)
                assert same_storage(boundary.type.shape, place, plan.placements[value])
    for value in (*plan.graph.inputs, *plan.graph.outputs):
        assert plan.placements[value] == Placement()
    written = {s.output for s in plan.steps}
    assert all(v in written for v in plan.graph.outputs)
    arrays = plan.constants()
    text = json.dumps(plan.to_json())
    again = read_plan(json.loads(text), arrays)
    assert again.graph == plan.graph and again.steps == plan.steps
    assert dict(again.placements) == dict(plan.placements) and again == plan
    return plan


def check_view(plan: GraphPlan, step: ViewStep) -> None:
    """Write an operand's elements as they lie; the view must find its own at the same bytes."""
    node = plan.graph.producer(step.output)
    assert node is not None
    if node.op == "field":  # a part of a block, whose bytes have several types
        assert step.offsets == (-int(str(node.attr("offset"))),)
        return
    sizes = {v: value_bytes(plan, v) for v in (*step.inputs, step.output)}
    low = min(0, *step.offsets)
    inside = zip(step.inputs, step.offsets, strict=True)
    high = max(sizes[step.output], *(offset + sizes[v] for v, offset in inside))
    memory = np.zeros(high - low, np.uint8)
    arrays = []
    for number, (value, offset) in enumerate(zip(step.inputs, step.offsets, strict=True)):
        assert offset % 64 == 0
        kind, place = plan.graph.types[value], plan.placements[value]
        array = np.arange(kind.elements).reshape(kind.shape) % 97 + 100 * number
        arrays.append(array.astype(kind.dtype.numpy))
        packed = pack(arrays[-1], kind.shape, place.layout, place.halo, kind.dtype)
        memory[offset - low :][: sizes[value]] = packed.view(np.uint8).reshape(-1)
    kind, place = plan.graph.types[step.output], plan.placements[step.output]
    held = memory[-low:][: sizes[step.output]]
    found = unpack(held, kind.shape, place.layout, place.halo, kind.dtype)
    np.testing.assert_array_equal(found, ops.get(node.op).reference(arrays, node.attrs))


def check_native(plan: GraphPlan, step: NativeStep) -> None:
    """A native function finds dense rows of the sizes that it states."""
    signature = native_signature(step.function, step.parameters)
    types = plan.graph.types
    assert tuple(types[v].bytes for v in step.inputs) == signature.inputs
    assert types[step.output].bytes == signature.output
    for value in (*step.inputs, step.output):
        if value not in plan.graph.constants:
            dense = types[value].bytes
            assert value_bytes(plan, value) == dense
            assert same_storage(types[value].shape, plan.placements[value], Placement())


def check_memory(plan: GraphPlan, memory: MemoryPlan) -> None:
    """Simulate the steps: no kernel may write over bytes that a later step still reads."""
    external = {memory.roots[v] for v in (*plan.graph.inputs, *plan.graph.outputs)}
    assert all(offset % 64 == 0 for offset in memory.offsets.values())
    written = np.full(memory.arena_bytes, -1)  # which value's bytes these are
    expected: dict[str, np.ndarray] = {}

    def span(value: str) -> slice | None:
        if value not in memory.roots or memory.roots[value] in external:
            return None
        start = memory.offset(value)
        assert start is not None and start + value_bytes(plan, value) <= memory.arena_bytes
        return slice(start, start + value_bytes(plan, value))

    for body_plan, body_memory in (
        pair
        for position, step in enumerate(plan.steps)
        for pair in zip(bodies_of(step), memory.bodies.get(position, ()), strict=True)
    ):
        check_memory(body_plan, body_memory)
    for position, step in enumerate(plan.steps):
        for value in step.inputs:
            if (held := span(value)) is not None:
                assert (written[held] == expected[value]).all(), f"{value} is overwritten"
        output = step.output
        place = span(output)
        if isinstance(step, ViewStep):
            for value, offset in zip(step.inputs, step.offsets, strict=True):
                assert memory.roots[value] == memory.roots[output]
                if place is not None:
                    assert memory.offset(value) == place.start + offset
        elif place is not None:
            for value in step.inputs:
                held = span(value)
                if held is not None and held != place:
                    assert held.stop <= place.start or held.start >= place.stop
            written[place] = position
        if place is not None:
            expected[output] = written[place].copy()
            assert (expected[output] >= 0).all(), f"{output} is not whole"
    for value in plan.graph.outputs:
        assert memory.offset(value) is None
    assert len({memory.roots[v] for v in plan.graph.outputs}) == len(plan.graph.outputs)
    for value in plan.graph.inputs:
        assert memory.roots[value] == value and memory.offset(value) is None
