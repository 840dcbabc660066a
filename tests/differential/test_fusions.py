"""Fusions of every operator of the graph IR with every other have a schedule, and it is right.

A bounded number of graphs, the same each time; every pair of operators with
`pytest tests/differential/test_fusions.py --graphs 90`.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.differential.fusions import APART, Array, Grower, Rejected, drawn
from tests.examples import graphs
from tests.graphs import Maker, random_inputs
from tilewright.compiler.driver import compile_plan
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.ops.registry import operators
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.plan.partition import plan_graph
from tilewright.compiler.plan.plan import GraphPlan, KernelStep
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

HOST = resolve_target("host")
LANES = HOST.lanes(DType.FLOAT32)
EXAMPLES = 1
"""Graphs that begin with an operator."""
MORE = 3
"""Nodes after the two operators that a graph is about."""
# As in test_graphs: up to seven nodes, each of which may multiply a relative error by a few.
TOLERANCE = 2e-3


def seeded(*parts: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(" ".join(map(str, parts)).encode()))


def grown(first: str, number: int) -> Grower:
    """A graph with one operator and, where that applies, another one after it."""
    names = drawn()
    second = names[(names.index(first) + number) % len(names)]
    random = seeded(first, number)
    g = Grower(random, LANES)
    for op in (first, second, *(names[int(random.integers(len(names)))] for _ in range(MORE))):
        try:
            g.grow(op)
        except Rejected:
            continue
    return g


def check(graph: Graph, inputs: dict[str, Array], target: Target = HOST) -> GraphPlan:
    """Every kernel has a schedule that lowers, and the graph's results equal the references'."""
    plan = plan_graph(graph, target.lanes(DType.FLOAT32))
    for step in plan.steps:
        if isinstance(step, KernelStep):
            space = schedule_space(step.workload, Mode(target))
            lower_workload(step.workload, space.default(), Mode(target))
    found = compile_plan(plan, None, Mode(target)).run(inputs)
    for name, got, expected in zip(graph.outputs, found, run_graph(graph, inputs), strict=True):
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=name)
            continue
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE * scale, err_msg=name)
    return plan


def test_every_operator_is_drawn() -> None:
    apart = {n for n, o in operators().items() if n in APART or o.kind in APART}
    assert {*drawn()} | apart == {*operators()}
    for name in drawn():
        grown_nodes = (node for number in range(4) for node in grown(name, number).make.nodes)
        assert any(node.op == name for node in grown_nodes), name


@pytest.mark.graphs
@pytest.mark.parametrize("operator", drawn())
def test_fusions(operator: str, request: pytest.FixtureRequest) -> None:
    for number in range(graphs(request.config, EXAMPLES)):
        g = grown(operator, number)
        graph = g.graph()
        graph = optimise(graph) if number % 2 else graph
        check(graph, {name: g.inputs[name] for name in graph.inputs})


def sliced(channels: int, start: int, step: int = 1) -> Graph:
    """|x + iy| of two slices of a convolution's channels, as models with complex numbers have."""
    g = Maker()
    weights = g.weight("w", channels, 3, 3, 3)
    x = g("conv", g.input("x", 1, 3, 20, 20), weights,
          strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)  # fmt: skip
    at = {"steps": (1, step, 1, 1), "sizes": (1, 16, 20, 20)}
    first = g("slice", x, starts=(0, start, 0, 0), **at)
    second = g("slice", x, starts=(0, 15 if step < 0 else 0, 0, 0), **at)
    return g.graph(g("sqrt", g("add", g("mul", first, first), g("mul", second, second))))


@pytest.mark.parametrize(
    ("channels", "start", "step"), [(32, 0, 1), (32, 8, 1), (32, 5, 1), (24, 1, 1), (32, 31, -1)]
)
def test_slices_that_straddle_blocks(channels: int, start: int, step: int) -> None:
    graph = sliced(channels, start, step)
    check(graph, random_inputs(graph))


def test_a_slice_that_reads_backwards_is_no_view() -> None:
    g = Maker()
    backwards = g("slice", g.input("x", 28, 7), starts=(26, 0), steps=(-1, 1), sizes=(24, 7))
    graph = g.graph(backwards, g("relu", backwards))
    check(graph, random_inputs(graph))


def test_a_power_of_integers_whose_exponent_is_one() -> None:
    """Each is 64 squares that read the one before twice, and reads its exponent in all of them."""
    g = Maker()
    x = g.input("x", 3, 5, dtype=DType.INT64)
    graph = g.graph(g("pow", x, g("neg", g("pow", x, x))))
    check(graph, {"x": np.random.default_rng(0).integers(1, 4, (3, 5))})
