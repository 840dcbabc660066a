"""The whole pipeline and the plan on generated graphs: they preserve the graph's results."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker, assert_equivalent
from tests.plans import check_memory, planned
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.plan.memory import plan_memory

CONV = {"strides": (1, 1), "dilations": (1, 1)}
KINDS = (
    *("unary", "scalar", "channel", "same", "transpose", "reshape", "conv", "matmul"),
    *("norm", "softmax", "slice", "reduce", "concat", "clip", "pool"),
)
UNARY = ("relu", "neg", "abs", "sigmoid", "tanh", "exp", "identity")


def step(g: Maker, data: st.DataObject, values: list[str]) -> str:
    """One more operator on values that are there; shapes stay small."""
    pick = st.sampled_from(values)
    x = data.draw(pick)
    shape = g.types[x].shape
    number = f"c{len(g.constants)}"
    kind = data.draw(st.sampled_from(KINDS))
    match kind:
        case "scalar":
            op = data.draw(st.sampled_from(["add", "mul", "sub", "div", "max", "min"]))
            value = data.draw(st.sampled_from([0.0, 1.0, 2.0, -0.5]))
            value = value or 1.0 if op == "div" else value
            return g(op, x, g.constant(number, value))
        case "channel" if len(shape) == 4:
            op = data.draw(st.sampled_from(["add", "mul"]))
            return g(op, x, g.positive(number, shape[1], 1, 1))
        case "same":
            peers = [v for v in values if g.types[v].shape == shape]
            op = data.draw(st.sampled_from(["add", "sub", "max"]))
            return g(op, x, data.draw(st.sampled_from(peers)))
        case "transpose" if len(shape) > 1:
            return g("transpose", x, perm=tuple(data.draw(st.permutations(range(len(shape))))))
        case "reshape":
            total = int(np.prod(shape))
            forms = [(total,), (1, total), (2, total // 2) if total % 2 == 0 else (total, 1)]
            return g("reshape", x, shape=data.draw(st.sampled_from(forms)))
        case "conv" if len(shape) == 4 and shape[1] <= 16:
            size = data.draw(st.sampled_from([1, 3]))
            pads = ((size - 1) // 2,) * 4
            w = g.constant(number, 0.2 * g.random.standard_normal((8, shape[1], size, size)))
            return g("conv", x, w, group=1, pads=pads, **CONV)
        case "matmul" if len(shape) > 1 and shape[-1] <= 64:
            w = g.constant(number, 0.2 * g.random.standard_normal((shape[-1], 8)))
            return g("matmul", x, w)
        case "norm" if len(shape) == 4:
            names = [f"{number}{part}" for part in "stmv"]
            return g("batch_norm", x, *(g.positive(n, shape[1]) for n in names), epsilon=1e-5)
        case "softmax":
            return g("softmax", x, axis=len(shape) - 1)
        case "slice":
            sizes = tuple(max(extent - 1, 1) for extent in shape)
            ones = (1,) * len(shape)
            return g("slice", x, starts=(0,) * len(shape), steps=ones, sizes=sizes)
        case "reduce":
            axis = data.draw(st.integers(0, len(shape) - 1))
            return g("reduce_mean", x, axes=(axis,), keepdims=1)
        case "concat" if np.prod(shape) <= 512:
            return g("concat", x, x, axis=data.draw(st.integers(0, len(shape) - 1)))
        case "clip":
            return g("clip", x, min=-1.0, max=2.0)
        case "pool" if len(shape) == 4 and min(shape[2:]) > 1:
            window = {"kernel": (2, 2), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
            return g("max_pool", x, **window)
    return g(data.draw(st.sampled_from(UNARY)), x)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    g = Maker()
    data = draw(st.data())
    values = [g.input("x", 1, 8, 4, 3), g.input("y", 2, 6)]
    for _ in range(draw(st.integers(1, 10))):
        values.append(step(g, data, values))
        largest = np.prod(g.types[values[-1]].shape)
        if largest > 4096:
            values.pop()
            break
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
    return g.graph(*outputs)


@settings(max_examples=examples(150))
@given(graphs())
def test_optimised_graphs_compute_the_same(graph: Graph) -> None:
    assert_equivalent(graph, optimise(graph), tolerance=1e-4)


@settings(max_examples=examples(100))
@given(graphs(), st.sampled_from([4, 8, 16]))
def test_plans_compute_the_same(graph: Graph, lanes: int) -> None:
    plan = planned(optimise(graph), lanes)
    check_memory(plan, plan_memory(plan))
