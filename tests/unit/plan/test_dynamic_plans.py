"""Plans of open sizes: at given sizes they are plans, and agree with ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.convolutional import mobilenet_v2, yolo_nano
from benchmarks.decoders import gpt2_decoder, llama_decoder
from benchmarks.dynamic_models import dynamic_bert, open_gpt2, open_llama, opened
from tests.integration import control_models
from tests.plan_reader import read_plan
from tilewright.compiler.driver import make_plan, optimise
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.memory import MemoryPlan, plan_memory, value_bytes
from tilewright.compiler.plan.placement import Placement, distance, same_storage
from tilewright.compiler.plan.plan import GraphPlan, KernelStep, LoopStep, ViewStep, bodies_of
from tilewright.compiler.plan.symbolic_memory import plan_symbolic_memory
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.sizes import Dimension, at, dynamic_size, typical_sizes
from tilewright.compiler.targets.host import resolve_target

TARGET = resolve_target("x86-64-v3")
SMALL = {"layers": 2, "hidden": 32, "heads": 4, "vocabulary": 50}


@dataclass(frozen=True)
class Case:
    """A model, the ranges of its dimensions, sizes to try, and kernels that an import at a fixed
    size does not need."""

    build: Callable[[], Any]
    dims: Mapping[str, str]
    sizes: tuple[Mapping[str, int], ...]
    more: int = 0


CASES = {
    "bert": Case(
        partial(dynamic_bert, intermediate=64, **SMALL),
        {"batch": "1..8", "sequence": "1..512"},
        ({"batch": 1, "sequence": 1}, {"batch": 3, "sequence": 17}, {"batch": 2, "sequence": 64}),
        more=1,  # the rows of a table of positions, which are a constant at a fixed size
    ),
    "gpt2": Case(
        partial(open_gpt2, **SMALL),
        {"sequence": "1..128", "past": "0..512"},
        ({"sequence": 1, "past": 37}, {"sequence": 5, "past": 0}, {"sequence": 16, "past": 3}),
        more=1,
    ),
    "llama": Case(
        partial(open_llama, cached=2, intermediate=48, **SMALL),
        {"sequence": "1..128", "past": "0..512"},
        ({"sequence": 5, "past": 0}, {"sequence": 1, "past": 37}, {"sequence": 16, "past": 3}),
        more=2,
    ),
    "llama, a token": Case(
        lambda: opened(open_llama(cached=2, intermediate=48, **SMALL), {"input_ids": [1, 1]}),
        {"past": "0..512"},
        ({"past": 0}, {"past": 511}, {"past": 37}),
        more=2,
    ),
    "gpt2 that generates": Case(
        partial(gpt2_decoder, length=64, cache="growing", **SMALL),
        {"tokens": "1..32", "past": "0..31"},
        ({"tokens": 5, "past": 0}, {"tokens": 1, "past": 31}, {"tokens": 4, "past": 9}),
        more=2,
    ),
    "llama that generates": Case(
        partial(llama_decoder, length=64, cache="growing", groups=2, intermediate=48, **SMALL),
        {"tokens": "1..32", "past": "0..31"},
        ({"tokens": 5, "past": 0}, {"tokens": 1, "past": 31}, {"tokens": 4, "past": 9}),
        more=3,
    ),
    "mobilenet": Case(
        lambda: opened(mobilenet_v2(size=32), {"x": ["batch", 3, 32, 32]}),
        {"batch": "1..32"},
        ({"batch": 1}, {"batch": 3}),
    ),
    "detector": Case(
        lambda: opened(yolo_nano(size=32), {"x": [1, 3, "height", "width"]}),
        {"height": "32..640:32", "width": "32..640:32"},
        ({"height": 32, "width": 64}, {"height": 96, "width": 32}),
    ),
    "a loop in a branch in a loop": Case(
        lambda: opened(control_models.nested(), {"x": ["rows", 6]}),
        {"rows": "1..30"},
        ({"rows": 1}, {"rows": 30}, {"rows": 7}),
    ),
    "a scan": Case(
        lambda: opened(
            control_models.scanning(9, (1, 0), (1, 0)),
            {"us": [2, "steps", 8], "vs": ["steps", 2, 8]},
        ),
        {"steps": "1..70"},
        ({"steps": 19}, {"steps": 70}, {"steps": 20}),  # fewer are unrolled at a fixed size
        more=1,  # the number of the last step
    ),
    "two branches": Case(
        lambda: opened(control_models.choosing(32), {"x": ["rows", 32]}),
        {"rows": "100..200"},  # fewer are not worth a branch at a fixed size
        ({"rows": 100}, {"rows": 200}, {"rows": 133}),
    ),
}


@cache
def model(name: str) -> Any:
    return CASES[name].build()


@cache
def planned(name: str) -> GraphPlan:
    return make_plan(
        optimise(import_model(model(name), CASES[name].dims), Mode(TARGET)), Mode(TARGET)
    )


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_plans_at_sizes_compute_what_the_model_does(name: str) -> None:
    plan = planned(name)
    stated = {d.name for d in plan.dimensions if d not in plan.rooms}
    assert stated == set(CASES[name].dims)
    session = onnxruntime.InferenceSession(model(name).SerializeToString())
    for values in CASES[name].sizes:
        closed = plan.at(values)
        graph = closed.graph
        random = np.random.default_rng(0)
        inputs = {}
        for value in graph.inputs:
            kind = graph.types[value]
            whole = kind.dtype.numpy.kind == "i"
            shape = closed.caller_shape(value)
            drawn = random.integers(0, 2, shape) if whole else random.normal(size=shape)
            inputs[value] = np.asarray(drawn, kind.dtype.numpy)
        if "attention_mask" in inputs:
            inputs["attention_mask"][:, 0] = 1
        expected = session.run(None, inputs)
        for value, array in inputs.items():  # where the plan has room, in a buffer
            buffer = np.zeros(graph.types[value].shape, array.dtype)
            buffer[tuple(map(slice, array.shape))] = array
            inputs[value] = buffer
        for ours, theirs in zip(run_graph(graph, inputs), expected, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)


def test_open_sizes_cost_no_kernels_but_those_that_constants_save(name: str) -> None:
    values = CASES[name].sizes[-1]
    fixed = make_plan(optimise(import_model(model(name), values), Mode(TARGET)), Mode(TARGET))
    assert len(planned(name).kernels) <= len(fixed.kernels) + CASES[name].more


def test_kernels_at_sizes_are_those_of_the_graph(name: str) -> None:
    """Types at the border of each kernel are those of the graph's values; texts read back."""
    plan = planned(name)
    for kernel in plan.kernels:
        assert Workload.parse(kernel.workload.text()) == kernel.workload
        names = [dimension.name for dimension in kernel.workload.dimensions]
        assert names == sorted(f"s{number}" for number in range(len(kernel.sizes)))
    fixed = plan.at(CASES[name].sizes[0])
    plans = [fixed]
    for each in plans:
        for step in each.steps:
            plans += bodies_of(step)
            if not isinstance(step, KernelStep):
                continue
            assert not step.sizes and not step.workload.dimensions
            for boundary, value in zip(step.workload.inputs, step.inputs, strict=True):
                assert boundary.type == each.graph.types[value]
            assert step.workload.output.type == each.graph.types[step.output]


def test_views_lie_where_they_would_at_each_size(name: str) -> None:
    for values in CASES[name].sizes:
        plan = planned(name).at(values)
        for step in plan.steps:
            node = plan.graph.producer(step.output)
            if not isinstance(step, ViewStep) or node is None or node.op != "slice":
                continue
            (whole,), starts = step.inputs, node.attr("starts")
            apart = distance(
                plan.graph.types[whole].shape,
                plan.placements[whole],
                plan.graph.types[step.output].shape,
                plan.placements[step.output],
                starts,  # type: ignore[arg-type]
            )
            assert apart is not None
            assert step.offsets == (-apart * plan.graph.types[whole].dtype.bytes,)


def test_plans_read_back(name: str) -> None:
    plan = planned(name)
    data = json.loads(json.dumps(plan.to_json()))
    assert read_plan(data, plan.constants()) == plan


def test_buffers_never_overlap_while_they_live(name: str) -> None:
    plan = planned(name)
    memory = plan_symbolic_memory(plan)
    for values in CASES[name].sizes:
        fixed = plan.at(values)
        arena = memory.at(values)
        assert arena.roots == plan_memory(fixed).roots
        lives: dict[str, tuple[int, int]] = {}
        for position, step in enumerate(fixed.steps):
            for value in (*step.inputs, step.output):
                if value in arena.offsets:
                    root = arena.roots[value]
                    first, last = lives.get(root, (position, position))
                    lives[root] = min(first, position), max(last, position)
        spans: dict[str, tuple[int, int]] = {}
        for value, offset in arena.offsets.items():
            assert offset % 64 == 0
            end = offset + value_bytes(fixed, value)
            assert end <= arena.arena_bytes
            low, high = spans.get(arena.roots[value], (offset, end))
            spans[arena.roots[value]] = min(low, offset), max(high, end)
        for one, other in combinations(lives, 2):
            if lives[one][0] <= lives[other][1] and lives[other][0] <= lives[one][1]:
                assert spans[one][1] <= spans[other][0] or spans[other][1] <= spans[one][0]


def test_bodies_lie_beside_what_lives_meanwhile(name: str) -> None:
    for values in CASES[name].sizes:
        fixed = planned(name).at(values)
        _check_bodies(fixed, plan_symbolic_memory(planned(name)).at(values))


def _spans(plan: GraphPlan, memory: MemoryPlan) -> list[tuple[int, int]]:
    """The spans of a plan's values in memory, including those of its bodies."""
    found = [(offset, offset + value_bytes(plan, v)) for v, offset in memory.offsets.items()]
    for position, bodies in memory.bodies.items():
        for body, inner in zip(bodies_of(plan.steps[position]), bodies, strict=True):
            found += _spans(body, inner)
    return found


def _check_bodies(plan: GraphPlan, memory: MemoryPlan) -> None:
    last = {v: i for i, step in enumerate(plan.steps) for v in (step.output, *step.inputs)}
    for position, bodies in memory.bodies.items():
        step = plan.steps[position]
        made = [each.output for each in plan.steps[:position]]
        alive = [step.output, *(v for v in made if last[v] >= position)]
        held = [
            (memory.offsets[v], memory.offsets[v] + value_bytes(plan, v))
            for v in alive
            if v in memory.offsets
        ]
        if isinstance(step, LoopStep):  # the body's result lives until it is the next state
            kinds = [step.body.graph.types[v] for v in step.body.graph.outputs]
            places = memory.shared[position][1:]
            held += [(at, at + kind.bytes) for at, kind in zip(places, kinds, strict=True)]
        for body, inner in zip(bodies_of(step), bodies, strict=True):
            for first, end in _spans(body, inner):
                assert all(end <= low or high <= first for low, high in held)
            _check_bodies(body, inner)


def test_where_sizes_are_typical_the_arena_is_as_planned(name: str) -> None:
    plan = planned(name)
    values = typical_sizes(*map(dynamic_size, plan.dimensions))
    assert (
        plan_symbolic_memory(plan).at(values).arena_bytes
        <= plan_memory(plan.at(values)).arena_bytes
    )


N, M = Dimension("n", 1, 9), Dimension("m", 0, 4)
PLACEMENTS = st.sampled_from(
    [
        Placement(),
        Placement(blocked(4, 1, 8)),
        Placement(ROW_MAJOR, ((0, 0), (0, 0), (1, 1), (1, 2))),
        Placement(blocked(4, 1, 8), ((0, 0), (0, 0), (1, 1), (1, 2))),
        Placement(Layout.parse("0 2 3 1")),
    ]
)
n_open, m_open = dynamic_size(N), dynamic_size(M)
EXTENTS = st.sampled_from([1, 2, 8, 16, n_open, n_open * 8, n_open + m_open])


@given(
    st.lists(st.tuples(EXTENTS, EXTENTS), min_size=4, max_size=4),
    PLACEMENTS,
    PLACEMENTS,
    st.integers(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_distances_hold_at_every_size(
    parts: list[tuple[int, int]], whole: Placement, part: Placement, cut: int
) -> None:
    """A box of a tensor, behind `start` elements of one dimension, lies at the place of its
    numbers."""
    shape = tuple(extent for extent, _ in parts)
    start = tuple(first if dim == cut else 0 for dim, (_, first) in enumerate(parts))
    full = tuple(a + b for a, b in zip(shape, start, strict=True))
    found = distance(full, whole, shape, part, start)
    same = same_storage(shape, whole, part)
    for n, m in [(1, 0), (1, 2), (2, 0), (3, 1), (9, 4)]:
        values = {"n": n, "m": m}

        def numbers(sizes: tuple[int, ...], values: Mapping[str, int] = values) -> tuple[int, ...]:
            return tuple(at(size, values) for size in sizes)

        expected = distance(numbers(full), whole, numbers(shape), part, numbers(start))
        if found is not None:
            assert at(found, values) == expected
        if same:
            assert same_storage(numbers(shape), whole, part)


def test_rows_behind_others_are_at_a_distance_of_open_sizes() -> None:
    n, m = n_open, m_open
    row = Placement()
    assert distance((n + m, 64), row, (n, 64), row, (m, 0)) == 64 * m
    assert distance((4, n, 64), row, (1, n, 64), row, (3, 0, 0)) == 192 * n
    assert distance((4, n + m, 64), row, (4, n, 64), row, (0, m, 0)) is None
    blocks = Placement(blocked(4, 1, 16))
    assert distance((1, 48, n, m), blocks, (1, 16, n, m), blocks, (0, 32, 0, 0)) == 32 * n * m
    assert same_storage((n, 32, 1, 1), blocks, row)
    assert not same_storage((n, 32, m, 1), blocks, row)


def test_equal_kernels_of_different_names_are_one() -> None:
    graphs = [
        import_model(opened(mobilenet_v2(size=32), {"x": [dim, 3, 32, 32]}), {dim: "1..32"})
        for dim in ("batch", "images")
    ]
    plans = [make_plan(optimise(graph, Mode(TARGET)), Mode(TARGET)) for graph in graphs]
    keys = [[step.workload.key for step in plan.kernels] for plan in plans]
    assert keys[0] == keys[1]
    assert {step.sizes for step in plans[1].steps if isinstance(step, KernelStep)} == {("images",)}


@pytest.mark.parametrize("build", [gpt2_decoder, partial(llama_decoder, groups=2, intermediate=48)])
def test_caches_of_fixed_length_take_any_number_of_rows(build: Callable[..., Any]) -> None:
    """A cache's contents behind its rows are undefined: the import at fixed sizes is compared."""
    proto = build(length=16, cache="fixed", **SMALL)
    graph = make_plan(
        optimise(import_model(proto, {"tokens": "1..16"}), Mode(TARGET)), Mode(TARGET)
    ).graph
    for tokens, past in [(1, 0), (1, 15), (5, 3), (16, 0)]:
        fixed = import_model(proto, {"tokens": tokens})
        random = np.random.default_rng(tokens)
        inputs = {
            value: np.asarray(random.normal(size=fixed.types[value].shape), np.float32)
            for value in fixed.inputs
        }
        inputs["input_ids"] = random.integers(0, 50, (1, tokens))
        inputs["past_length"] = np.array([past], np.int32)
        found = run_graph(graph.at({"tokens": tokens}), inputs)
        for ours, theirs in zip(found, run_graph(fixed, inputs), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
