"""Every decision about a whole graph, inverted: the plan changes, its results do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker, random_inputs
from tests.unit.plan import test_layouts, test_views
from tilewright.compiler.driver import compile_plan, make_plan, optimise, unsuited_passes
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.passes.quantised_products import quantised_products
from tilewright.compiler.plan.choices import RULE, GraphChoice, GroupLayouts
from tilewright.compiler.plan.layouts.assignment import Assignment, assign_layouts
from tilewright.compiler.plan.partition import fused
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

HOST = resolve_target("host")
LANES = HOST.lanes(DType.FLOAT32)
CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
POINT = CONV | {"pads": (0, 0, 0, 0)}
POOL = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def planned(graph: Graph, choice: GraphChoice) -> GraphPlan:
    """The plan of a graph under a choice, proven to compute the graph's results."""
    optimised = optimise(graph, Mode(HOST), choice=choice)
    plan = make_plan(optimised, Mode(HOST), choice=choice)
    inputs = random_inputs(graph)
    found, expected = compile_plan(plan, None, Mode(HOST)).run(inputs), run_graph(graph, inputs)
    for a, b in zip(found, expected, strict=True):
        # sums of some thousand products of numbers near 1, a few layers deep
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-4 * max(1.0, float(np.abs(b).max())))
    return plan


def kernels(plan: GraphPlan) -> list[tuple[str, ...]]:
    return [s.workload.operators for s in plan.kernels if s.workload.operators != ("identity",)]


def residual() -> Graph:
    g = Maker()
    x = g.input("x", 1, 16, 6, 6)
    early = g("conv", x, g.weight("w0", 16, 16, 1, 1), name="early", **POINT)
    late = g("conv", x, g.weight("w1", 16, 16, 3, 3), name="late", **CONV)
    return g.graph(g("relu", g("add", early, late)))


def test_a_residual_goes_to_either_producer_or_to_none() -> None:
    assert kernels(planned(residual(), RULE)) == [("conv",), ("conv", "add", "relu")]
    kept = planned(residual(), GraphChoice(kept=frozenset({"late"})))
    assert sorted(kernels(kept)) == [("conv",), ("conv", "add", "relu")]
    (last,) = [s for s in kept.kernels if "add" in s.workload.operators]
    assert "late" in last.inputs
    none = planned(residual(), GraphChoice(kept=frozenset({"early", "late"})))
    assert sorted(kernels(none)) == [("add", "relu"), ("conv",), ("conv",)]


def test_an_epilogue_is_apart() -> None:
    g = Maker()
    y = g("matmul", g.input("x", 8, 32), g.weight("w", 32, 32), name="y")
    graph = g.graph(g("sigmoid", y))
    assert kernels(planned(graph, RULE)) == [("matmul", "sigmoid")]
    kept = GraphChoice(kept=frozenset({"y"}))
    assert kernels(planned(graph, kept)) == [("matmul",), ("sigmoid",)]


def test_a_prologue_is_apart() -> None:
    g = Maker()
    y = g("mul", g.input("x", 8, 32), g.weight("w", 32), name="y")
    graph = g.graph(g("softmax", y, axis=1))
    assert kernels(planned(graph, RULE)) == [("mul", "softmax")]
    kept = GraphChoice(kept=frozenset({"y"}))
    assert kernels(planned(graph, kept)) == [("mul",), ("softmax",)]


def test_a_concatenation_is_a_kernel() -> None:
    g = Maker()
    x = g.input("x", 1, 16, 6, 6)
    parts = [g("conv", x, g.weight(f"w{i}", 16, 16, 1, 1), **POINT) for i in range(2)]
    both = g("concat", *parts, axis=1, name="both")
    graph = g.graph(g("conv", both, g.weight("v", 16, 32, 3, 3), **CONV))
    assert ("concat",) not in kernels(planned(graph, RULE))
    assert ("concat",) in kernels(planned(graph, GraphChoice(copied=frozenset({"both"}))))


def test_pool_first_is_left_out() -> None:
    g = Maker()
    y = g("conv", g.input("x", 1, 32, 8, 8), g.weight("w", 16, 32, 1, 1), **POINT)
    graph = g.graph(g("average_pool", y, count_include_pad=0, **POOL))
    assert kernels(planned(graph, RULE)) == [("average_pool",), ("conv",)]
    without = GraphChoice(without=frozenset({"pool_first"}))
    assert kernels(planned(graph, without)) == [("conv",), ("average_pool",)]


def heads() -> Graph:
    """Two heads of self-attention, as models write it: a softmax between two products."""
    g = Maker()
    x = g.input("x", 1, 6, 32)
    q, k, v = (g("matmul", x, g.weight(name, 32, 32)) for name in "qkv")
    q, k, v = (g("reshape", value, shape=(1, 6, 2, 16)) for value in (q, k, v))
    q, k, v = (g("transpose", value, perm=(0, 2, 1, 3)) for value in (q, k, v))
    scores = g("matmul", q, g("transpose", k, perm=(0, 1, 3, 2)))
    weights = g("softmax", g("mul", scores, g.constant("scale", 0.25)), axis=3)
    mixed = g("transpose", g("matmul", weights, v), perm=(0, 2, 1, 3))
    return g.graph(g("reshape", mixed, shape=(1, 6, 32)))


def test_attention_is_fused_or_not_and_its_products_merged_or_not() -> None:
    def products(choice: GraphChoice) -> tuple[int, bool]:
        found = kernels(planned(heads(), choice))
        return sum("matmul" in names for names in found), any("attention" in n for n in found)

    assert products(RULE) == (1, True)
    assert products(GraphChoice(without=frozenset({"merge_matmuls"}))) == (3, True)
    assert products(GraphChoice(without=frozenset({"attention"}))) == (5, False)


def scaled_bytes() -> Graph:
    g = Maker()
    x = g.input("x", 6, 8, dtype=DType.UINT8)
    w = g.constant("w", g.random.integers(-9, 9, (8, 4)).astype(np.int8))
    a, b = (g("cast", g("cast", v, to="int32"), to="float32") for v in (x, w))
    sums = g("matmul", g("mul", a, g.constant("s", 0.5)), g("mul", b, g.constant("t", 0.25)))
    return g.graph(sums)


def test_products_of_bytes_are_included_where_the_rule_leaves_them_out() -> None:
    bare, able = resolve_target("x86-64-v4"), resolve_target("cascadelake")
    name = quantised_products.__name__
    assert name in unsuited_passes(bare)
    assert name not in unsuited_passes(able)
    assert "lookup_tables" in unsuited_passes(able)  # vectors too long for separate loads

    def has_int8_dot(target: Target, choice: GraphChoice) -> bool:
        graph = optimise(scaled_bytes(), Mode(target), choice=choice)
        (product,) = [node for node in graph.nodes if node.op == "matmul"]
        return product.attr("accumulator") == "int32"

    including = GraphChoice(including=frozenset({name}))
    neither = replace(including, without=frozenset({name}))
    assert [has_int8_dot(bare, c) for c in (RULE, including, neither)] == [False, True, False]
    assert [has_int8_dot(able, c) for c in (RULE, including, neither)] == [True, True, False]
    planned(scaled_bytes(), including)


@settings(max_examples=examples(8))
@given(st.one_of(test_layouts.graphs(), test_views.graphs()), st.data())
def test_any_values_may_be_kept_or_copied(graph: Graph, data: st.DataObject) -> None:
    values = [node.output for node in graph.nodes]
    some = st.frozensets(st.sampled_from(values))
    planned(graph, GraphChoice(kept=data.draw(some), copied=data.draw(some)))


def chain() -> Graph:
    g = Maker()
    x = g.input("x", 1, 32, 6, 6)
    y = g("conv", x, g.weight("w0", 32, 32, 1, 1), name="y", **POINT)
    return g.graph(g("conv", g("relu", y, name="z"), g.weight("w1", 32, 32, 1, 1), **POINT))


def test_chosen_layouts_make_the_plan_again() -> None:
    graph, groups = fused(chain())
    made = Assignment(graph, groups, LANES)
    best = made.solve()
    others = [(number + 1) % len(o) for number, o in zip(best, made.options, strict=True)]
    chosen = made.choices(others)
    assert chosen != made.choices(best)
    names = {g.output: c.named() for g, c in zip(groups, chosen, strict=True)}
    choice = GraphChoice(layouts=tuple(sorted(names.items())))
    assert assign_layouts(graph, groups, LANES, choice) == chosen
    planned(chain(), choice)


def test_layouts_are_chosen_by_the_names_of_values() -> None:
    graph, groups = fused(chain())
    made = Assignment(graph, groups, LANES)
    for option in made.options[1]:
        chosen = option.choice.named()
        assert [name for name, _ in chosen.inputs] == sorted(groups[1].inputs)
        assert dict(chosen.inputs)["z"] == str(option.choice.demands["z"].layout)
        assert chosen.output == str(option.choice.output)


def test_layouts_that_are_no_option_are_refused() -> None:
    layouts = GroupLayouts("2 3 0 1", (("w0", "row"), ("x", "any")))
    choice = GraphChoice(layouts=(("z", layouts),))
    refusal = "'z' cannot be written as 2 3 0 1 and read 'w0' as row, 'x' as any"
    with pytest.raises(InvalidArgumentError, match=refusal):
        make_plan(optimise(chain(), Mode(HOST)), Mode(HOST), choice=choice)
