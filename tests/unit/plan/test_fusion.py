"""Which operators become one kernel."""

from __future__ import annotations

from tests.graphs import Maker
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.plan.fusion import fuse

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}


def fused(graph: Graph) -> list[tuple[str, ...]]:
    return [tuple(node.op for node in group.nodes) for group in fuse(graph)]


def test_every_node_is_in_one_group() -> None:
    g = Maker()
    x = g.input("x", 1, 4, 6, 6)
    y = g("relu", g("conv", x, g.weight("w", 4, 4, 3, 3), **CONV))
    graph = g.graph(g("softmax", g("reshape", y, shape=(4, 36)), axis=1))
    names = [node.name for group in fuse(graph) for node in group.nodes]
    assert sorted(names) == sorted(node.name for node in graph.nodes)
    assert fused(graph) == [("conv", "relu"), ("reshape",), ("softmax",)]


def test_a_residual_joins_the_later_convolution() -> None:
    g = Maker()
    x = g.input("x", 1, 4, 6, 6)
    short = g("conv", x, g.weight("w0", 4, 4, 3, 3), **CONV)
    long = g("conv", x, g.weight("w1", 4, 4, 3, 3), **CONV)
    graph = g.graph(g("relu", g("add", short, long)))
    assert fused(graph) == [("conv",), ("conv", "add", "relu")]


def test_a_branch_that_joins_again_is_an_epilogue() -> None:
    g = Maker()
    x = g.input("x", 1, 4, 6, 6)
    y = g("conv", x, g.weight("w", 4, 4, 3, 3), **CONV)
    graph = g.graph(g("mul", y, g("sigmoid", y)))
    assert fused(graph) == [("conv", "sigmoid", "mul")]


def test_a_value_that_others_need_ends_the_group() -> None:
    g = Maker()
    x = g.input("x", 1, 4, 6, 6)
    y = g("conv", x, g.weight("w", 4, 4, 3, 3), **CONV)
    z = g("relu", y)
    assert fused(g.graph(y, z)) == [("conv",), ("relu",)]
    assert fused(g.graph(z, g("exp", z))) == [("conv", "relu"), ("exp",)]


def test_an_epilogue_keeps_the_shape() -> None:
    g = Maker()
    x, wide = g.input("x", 2, 4), g.input("wide", 3, 2, 4)
    y = g("matmul", x, g.weight("w", 4, 4))
    assert fused(g.graph(g("add", y, wide))) == [("matmul",), ("add",)]


def test_transposes_around_a_matmul() -> None:
    g = Maker()
    q, k = g.input("q", 2, 5, 3, 4), g.input("k", 2, 5, 3, 4)
    left = g("transpose", q, perm=(0, 2, 1, 3))
    right = g("transpose", k, perm=(0, 2, 3, 1))
    scores = g("mul", g("matmul", left, right), g.constant("s", 0.5))
    graph = g.graph(g("transpose", scores, perm=(0, 2, 1, 3)))
    assert fused(graph) == [("transpose", "transpose", "matmul", "mul", "transpose")]


def test_a_transpose_between_two_matmuls_goes_to_the_second() -> None:
    g = Maker()
    x, y = g.input("x", 3, 4), g.input("y", 5, 6)
    first = g("transpose", g("matmul", x, g.weight("w", 4, 5)), perm=(1, 0))
    graph = g.graph(g("matmul", g("transpose", y, perm=(1, 0)), first))
    assert fused(graph) == [("matmul",), ("transpose", "transpose", "matmul")]


def test_rows_take_cheap_producers_only() -> None:
    g = Maker()
    x = g.input("x", 2, 8)
    graph = g.graph(
        g("softmax", g("add", x, g.weight("mask", 8)), axis=1),
        g("softmax", g("tanh", g("exp", x)), axis=1),
        g("reduce_sum", g("exp", g("neg", x)), axes=(1,), keepdims=0),
    )
    assert sorted(fused(graph)) == sorted(
        [("add", "softmax"), ("exp", "tanh"), ("softmax",), ("neg", "exp", "reduce_sum")]
    )


def test_elementwise_groups_hold_movement() -> None:
    g = Maker()
    x = g.input("x", 2, 8)
    left = g("slice", x, starts=(0, 0), steps=(1, 1), sizes=(2, 4))
    right = g("slice", x, starts=(0, 4), steps=(1, 1), sizes=(2, 4))
    graph = g.graph(g("mul", left, g("sigmoid", right)))
    assert len(fused(graph)) == 1


def test_an_expensive_operator_is_not_evaluated_again_by_broadcasting() -> None:
    g = Maker()
    x, y = g.input("x", 1, 8), g.input("y", 64, 8)
    assert fused(g.graph(g("add", y, g("exp", x)))) == [("exp",), ("add",)]


def test_concatenation_stays_alone() -> None:
    g = Maker()
    x = g.input("x", 2, 8)
    graph = g.graph(g("relu", g("concat", g("exp", x), x, axis=1)))
    assert fused(graph) == [("exp",), ("concat",), ("relu",)]
