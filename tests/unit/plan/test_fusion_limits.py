"""The ends of a fused group: each condition of fusion, broken alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs import Maker
from tests.plans import planned
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.plan.fusion import EPILOGUE_LIMIT, fuse


def fused(graph: Graph, *kept: str) -> list[tuple[str, ...]]:
    """The operators of each group, sorted; the plan proves itself."""
    planned(graph)
    return sorted(tuple(node.op for node in group.nodes) for group in fuse(graph, kept))


def applied(g: Maker, op: str, x: str) -> str:
    """The operator on (2, 8)."""
    y = g.input("y", 2, 8)
    match op:
        case "where":
            return g("where", g.input("b", 2, 8, dtype=DType.BOOL), x, y)
        case "equal" | "less" | "less_or_equal" | "greater" | "greater_or_equal":
            return g("cast", g(op, x, y), to="float32")
        case "logical_and" | "logical_or" | "logical_xor" | "logical_not":
            values = (x,) if op == "logical_not" else (x, y)
            return g("cast", g(op, *[g("cast", v, to="bool") for v in values]), to="float32")
        case "slice":
            return g("slice", x, starts=(1, 7), steps=(-1, -1), sizes=(2, 8))
        case "transpose":
            return g("transpose", g.input("turned", 8, 2), perm=(1, 0))
        case "expand":
            return g("expand", g.input("row", 1, 8), shape=(2, 8))
        case "clip":
            return g("clip", x, min=-1.0, max=1.0)
        case "leaky_relu":
            return g("leaky_relu", x, alpha=0.1)
        case "cast":
            return g("cast", g.input("n", 2, 8, dtype=DType.INT32), to="float32")
        case "add" | "sub" | "mul" | "max" | "min" | "div" | "pow":
            return g(op, x, y)
    return g(op, x)


CHEAP = [
    *("add", "sub", "mul", "neg", "abs", "relu", "leaky_relu", "max", "min", "clip", "cast"),
    *("identity", "where", "equal", "less", "less_or_equal", "greater", "greater_or_equal"),
    *("logical_and", "logical_or", "logical_xor", "logical_not", "transpose", "slice", "expand"),
]


@pytest.mark.parametrize("op", CHEAP)
def test_rows_compute_again_what_costs_little(op: str) -> None:
    g = Maker()
    graph = g.graph(g("softmax", applied(g, op, g.input("x", 2, 8)), axis=1))
    (group,) = fused(graph)
    assert op in group and group[-1] == "softmax"


@pytest.mark.parametrize("op", ["exp", "sigmoid", "tanh", "erf", "sqrt", "div", "pow", "sin"])
def test_rows_do_not_compute_again_what_costs_much(op: str) -> None:
    g = Maker()
    x = applied(g, op, g.input("x", 2, 8))
    assert fused(g.graph(g("softmax", x, axis=1))) == sorted([(op,), ("softmax",)])
    # a reduction reads each element once
    g = Maker()
    x = applied(g, op, g.input("x", 2, 8))
    assert fused(g.graph(g("reduce_sum", x, axes=(1,), keepdims=0))) == [(op, "reduce_sum")]


@pytest.mark.parametrize("kind", ["", "returned", "read", "kept", "long"])
def test_a_producer_joins_if_nothing_else_needs_it(kind: str) -> None:
    g = Maker()
    x = g.input("x", 2, 8)
    y = g("neg", x)
    chain = y
    for _ in range(EPILOGUE_LIMIT if kind == "long" else 0):
        chain = g("abs", chain)
    outputs = [g("softmax", chain, axis=1)]
    outputs += (
        [y] if kind == "returned" else [g("reshape", y, shape=(16,))] if kind == "read" else []
    )
    groups = fused(g.graph(*outputs), *([y] if kind == "kept" else []))
    assert (("neg",) in groups or ("neg", "abs") in groups) is (kind != "")


@pytest.mark.parametrize(
    ("op", "small", "together"),
    [
        ("exp", (1, 8), False),
        ("exp", (64, 8), True),
        ("neg", (1, 8), True),
        ("exp", (64, 1), False),
    ],
)
def test_broadcasting_evaluates_again_what_is_cheap(op: str, small: Any, together: bool) -> None:
    """Where an operand is broadcast, its producer would be evaluated once a place."""
    g = Maker()
    y = g(op, g.input("x", *small))
    groups = fused(g.graph(g("add", g.input("y", 64, 8), y)))
    assert groups == ([(op, "add")] if together else [("add",), (op,)])


def epilogue(g: Maker, *, length: int = 1, op: str = "relu") -> tuple[str, str]:
    y = g("matmul", g.input("x", 4, 8), g.weight("w", 8, 8))
    z = y
    for _ in range(length):
        z = g(op, z)
    return y, z


def test_an_epilogue_ends_at_its_limit() -> None:
    g = Maker()
    _, z = epilogue(g, length=EPILOGUE_LIMIT + 3, op="abs")
    assert sorted(map(len, fused(g.graph(z)))) == [4, EPILOGUE_LIMIT]


@pytest.mark.parametrize("kept", [False, True])
def test_an_epilogue_ends_before_what_is_kept(kept: bool) -> None:
    g = Maker()
    y, z = epilogue(g)
    groups = fused(g.graph(z), *([y] if kept else []))
    assert groups == ([("matmul",), ("relu",)] if kept else [("matmul", "relu")])


def test_an_epilogue_is_of_one_shape_and_of_elementwise_operators() -> None:
    for make in (
        lambda g, y: g("add", y, g.input("wide", 3, 4, 8)),
        lambda g, y: g("slice", y, starts=(1, 0), steps=(1, 1), sizes=(3, 8)),
        lambda g, y: g("softmax", y, axis=1),
        lambda g, y: g("concat", y, y, axis=0),
    ):
        g = Maker()
        y, _ = epilogue(g, length=0)
        groups = fused(g.graph(make(g, y)))
        assert ("matmul",) in groups and len(groups) == 2


def test_a_branch_whose_ends_do_not_meet_is_no_epilogue() -> None:
    g = Maker()
    y, _ = epilogue(g, length=0)
    left, right = g("relu", y), g("exp", y)
    assert ("matmul",) in fused(g.graph(left, right))
    g = Maker()
    y, _ = epilogue(g, length=0)
    joined = g("add", g("mul", g("relu", y), g("exp", y)), g("neg", y))
    assert fused(g.graph(joined)) == [("matmul", "relu", "exp", "mul", "neg", "add")]


@pytest.mark.parametrize("kind", ["", "returned", "two readers", "kept", "before a matmul"])
def test_a_transpose_after_a_matmul(kind: str) -> None:
    g = Maker()
    y, _ = epilogue(g, length=0)
    z = g("transpose", y, perm=(1, 0))
    match kind:
        case "two readers":
            y = g("reshape", y, shape=(32,))
        case "before a matmul":
            z = g("matmul", z, g.weight("v", 4, 4))
    outputs = [z, y] if kind in ("returned", "two readers") else [z]
    groups = fused(g.graph(*outputs), *([y] if kind == "kept" else []))
    assert (("matmul", "transpose") in groups) is (kind == "")


@pytest.mark.parametrize("kind", ["", "returned", "two readers", "kept", "third", "twice"])
def test_a_transpose_before_a_matmul(kind: str) -> None:
    g = Maker()
    x = g("transpose", g.input("x", 6, 6), perm=(1, 0))
    y = g.input("y", 6, 6)
    inputs = {"third": (y, y, x), "twice": (x, x)}.get(kind, (x, y))
    z = g("matmul", *inputs)
    outputs = [z, x] if kind == "returned" else [z]
    if kind == "two readers":
        outputs.append(g("reshape", x, shape=(36,)))
    groups = fused(g.graph(*outputs), *([x] if kind == "kept" else []))
    assert (("transpose", "matmul") in groups) is (kind in ("", "twice"))


@pytest.mark.parametrize("kind", ["", "returned", "two readers", "inner reader", "cut"])
def test_what_moves_the_operands_of_an_attention(kind: str) -> None:
    g = Maker()
    x = g.input("x", 1, 5, 2, 8)
    inner = g("slice", x, starts=(0, 0, 0, 4), steps=(1,) * 4, sizes=(1, 5, 2, 4))
    q = g("transpose", inner, perm=(0, 2, 1, 3))
    if kind == "cut":
        q = g("reshape", g("transpose", inner, perm=(0, 3, 1, 2)), shape=(1, 2, 5, 4))
    k, v = g.input("k", 1, 2, 7, 4), g.input("v", 1, 2, 7, 3)
    z = g("attention", q, k, v, scale=0.5)
    outputs = [z, q] if kind == "returned" else [z]
    match kind:
        case "two readers":
            outputs.append(g("reduce_sum", q, axes=(3,), keepdims=0))
        case "inner reader":
            outputs.append(g("reshape", inner, shape=(40,)))
    (group,) = (group for group in fused(g.graph(*outputs)) if "attention" in group)
    expected = {"": ("slice", "transpose", "attention"), "inner reader": ("transpose", "attention")}
    assert group == expected.get(kind, ("attention",))


def test_a_result_without_elements_is_in_no_group() -> None:
    g = Maker()
    empty = g("slice", g.input("x", 2, 8), starts=(0, 0), steps=(1, 1), sizes=(0, 8))
    y = g("relu", g.input("y", 3))
    graph = g.graph(y, g("exp", empty))
    assert [tuple(n.op for n in group.nodes) for group in fuse(graph)] == [("relu",)]
