"""Layout assignment: the least total cost, against trying everything, and its meaning."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker, random_inputs
from tilewright.compiler.driver import compile_plan
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.choices import GraphChoice
from tilewright.compiler.plan.fusion import Group, fuse
from tilewright.compiler.plan.layouts.assignment import Assignment
from tilewright.compiler.plan.layouts.options import LayoutChoice, channels_last, fits_block
from tilewright.compiler.plan.partition import plan_graph
from tilewright.compiler.targets.host import resolve_target

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
POINT = CONV | {"pads": (0, 0, 0, 0)}
POOL = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
NCHW16, NCHW8, NHWC = blocked(4, 1, 16), blocked(4, 1, 8), channels_last(4)


def assignment(graph: Graph) -> Assignment:
    return Assignment(graph, fuse(graph), 16)


def offered(graph: Graph) -> list[set[Layout]]:
    """The layouts that each group may write."""
    return [{o.choice.output for o in options} for options in assignment(graph).options]


def conv(g: Maker, x: str, filters: int, size: int = 3, name: str = "", group: int = 1) -> str:
    weight = g.weight(f"w{len(g.constants)}", filters, g.types[x].shape[1] // group, size, size)
    attrs = (CONV if size == 3 else POINT) | {"group": group}
    return g("conv", x, weight, name=name, **attrs)


def placed(graph: Graph) -> dict[str, Layout]:
    return {value: place.layout for value, place in plan_graph(graph, 16).placements.items()}


def test_blocks_of_a_vector_or_of_half_of_one() -> None:
    for channels, layouts in (
        (64, {NCHW16}), (24, {NCHW16, NCHW8, NHWC}), (8, {NCHW8, NHWC}), (20, {NCHW8, NHWC}),
        (28, {NCHW16, NCHW8, NHWC}), (3, set()),
    ):  # fmt: skip
        g = Maker()
        graph = g.graph(conv(g, g.input("x", 1, 16, 6, 6), channels))
        assert offered(graph) == [{ROW_MAJOR, *layouts}]


def test_groups_divide_by_the_block() -> None:
    g = Maker()
    depthwise = conv(g, g.input("x", 1, 32, 6, 6), 32, group=32)
    eighths = conv(g, depthwise, 32, group=8)
    graph = g.graph(conv(g, eighths, 32, group=2))
    assert offered(graph) == [{ROW_MAJOR, NCHW16}, {ROW_MAJOR}, {ROW_MAJOR, NCHW16}]
    assert fits_block(24, 24, 16) and not fits_block(48, 2, 16) and fits_block(64, 2, 16)


def test_weights_that_only_the_run_knows_lie_in_rows() -> None:
    g = Maker()
    x = conv(g, g.input("x", 1, 64, 28, 28), 64)
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    graph = g.graph(g("conv", x, g.input("w", 64, 64, 3, 3), **attrs))
    assert offered(graph) == [{ROW_MAJOR, NCHW16}, {ROW_MAJOR}]


def test_one_pointwise_convolution_stays_as_the_caller_has_it() -> None:
    g = Maker()
    y = conv(g, g.input("x", 1, 64, 14, 14), 128, 1)
    plan = plan_graph(g.graph(g("relu", y)), 16)
    assert [step.workload.operators for step in plan.kernels] == [("conv", "relu")]


def test_a_large_convolution_is_worth_two_copies() -> None:
    g = Maker()
    y = conv(g, g.input("x", 1, 64, 28, 28), 64)
    plan = plan_graph(g.graph(y), 16)
    assert [step.workload.operators for step in plan.kernels] == [
        ("identity",), ("conv",), ("identity",)
    ]  # fmt: skip


def test_normalisation_across_channels_reads_rows() -> None:
    g = Maker()
    y = conv(g, g.input("x", 1, 64, 28, 28), 64, name="y")
    z = g("lrn", y, size=5, alpha=1e-4, beta=0.75, bias=1.0, name="z")
    layouts = placed(g.graph(conv(g, conv(g, z, 64, 1, "point"), 64)))
    # a pointwise convolution takes rows in and gives blocks out
    assert layouts["z"] == ROW_MAJOR and layouts["point"] == NCHW16


def test_a_pool_with_strides_is_blocked() -> None:
    g = Maker()
    y = g("max_pool", conv(g, g.input("x", 1, 3, 40, 40), 32, name="y"), name="p", **POOL)
    layouts = placed(g.graph(g("softmax", g("reshape", y, shape=(32, 400)), axis=1)))
    assert layouts["y"] == layouts["p"] == NCHW16


def test_a_copy_is_shared() -> None:
    """Three readers of rows do not outweigh one that wants blocks: they share a copy."""
    g = Maker()
    y = conv(g, g.input("x", 1, 64, 16, 16), 64, name="y")
    rows = [conv(g, y, 64, group=8) for _ in range(3)]
    total = g("add", g("add", rows[0], rows[1]), rows[2])
    graph = g.graph(total, conv(g, y, 64))
    assert placed(graph)["y"] == NCHW16
    copies = [s for s in plan_graph(graph, 16).kernels if s.inputs == ("y",)]
    assert sum(s.workload.operators == ("identity",) for s in copies) == 1


def step(g: Maker, draw: st.DrawFn, values: list[str]) -> str:
    x = draw(st.sampled_from(values[-3:]))
    shape = g.types[x].shape
    match draw(st.sampled_from(["conv", "point", "depthwise", "pool", "add", "lrn", "concat"])):
        case "conv":
            return conv(g, x, draw(st.sampled_from([8, 12, 32])))
        case "point":
            return conv(g, x, draw(st.sampled_from([16, 24, 32])), 1)
        case "depthwise":
            return conv(g, x, shape[1], group=shape[1])
        case "pool" if min(shape[2:]) > 2:
            return g("max_pool", x, **POOL)
        case "add":
            peers = [v for v in values if g.types[v].shape == shape]
            return g("relu", g("add", x, draw(st.sampled_from(peers))))
        case "lrn":
            return g("lrn", x, size=3, alpha=1e-4, beta=0.75, bias=1.0)
    peers = [v for v in values if g.types[v].shape[2:] == shape[2:]]
    return g("concat", x, draw(st.sampled_from(peers)), axis=1)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    g = Maker()
    values = [g.input("x", 1, 16, 12, 12)]
    for _ in range(draw(st.integers(1, 6))):
        values.append(step(g, draw, values))
    return g.graph(values[-1])


@settings(max_examples=examples(8))
@given(graphs(), st.integers(0, 1000))
def test_every_assignment_computes_the_same(graph: Graph, seed: int) -> None:
    """Any option of each group, compiled: kernels read and write the layouts that their neighbours
    expect."""
    random = np.random.default_rng(seed)

    def assign(
        graph: Graph, groups: tuple[Group, ...], lanes: int, choice: GraphChoice
    ) -> tuple[LayoutChoice, ...]:
        made = Assignment(graph, groups, lanes, choice)
        return made.choices([int(random.integers(len(options))) for options in made.options])

    target = resolve_target("host")
    plan = plan_graph(graph, target.lanes(DType.FLOAT32), assign)
    inputs = random_inputs(graph)
    found, expected = compile_plan(plan, None, Mode(target)).run(inputs), run_graph(graph, inputs)
    for a, b in zip(found, expected, strict=True):
        # sums of some thousand products of numbers near 1, a few layers deep
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-4 * max(1.0, float(np.abs(b).max())))


def cheapest(made: Assignment) -> float:
    return min(made.total(each) for each in product(*(range(len(o)) for o in made.options)))


@settings(max_examples=examples(40))
@given(graphs())
def test_no_other_assignment_costs_less(graph: Graph) -> None:
    made = assignment(graph)
    if np.prod([len(options) for options in made.options]) > 3000:
        return
    found = made.solve()
    assert made.total(found) == pytest.approx(cheapest(made))
    assert found == assignment(graph).solve()


@settings(max_examples=examples(40))
@given(graphs())
def test_it_is_no_worse_than_rows_or_blocks_alone(graph: Graph) -> None:
    made = assignment(graph)
    found = made.total(made.solve())
    for layout in (ROW_MAJOR, NCHW16):
        same = [
            next((n for n, o in enumerate(each) if alike(o.choice, layout)), 0)
            for each in made.options
        ]
        assert found <= made.total(same) * (1 + 1e-12)


def alike(choice: LayoutChoice, layout: Layout) -> bool:
    """Whether a choice writes a layout and reads its operands in the same one, or in rows."""
    allowed = (layout, ROW_MAJOR)
    return choice.output == layout and all(d.layout in allowed for d in choice.demands.values())
