"""Values that stay float32 between kernels, because each is a sum or goes into one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import Maker
from tilewright.compiler.driver import optimise
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.passes.float32_sums import float32_sums
from tilewright.compiler.plan.fusion import fuse


def squares(g: Maker, x: str) -> str:
    """A window's norm: squares, their sums, the roots of these."""
    total = g(
        "average_pool", g("mul", x, x), kernel=(2, 2), count_include_pad=1, strides=(1, 1),
        pads=(0,) * 4, dilations=(1, 1),
    )  # fmt: skip
    return g("sqrt", total)


def products(g: Maker, x: str) -> str:
    return g("reduce_mean", g("mul", x, g.input("other", 1, 4, 6, 6)), axes=(2, 3), keepdims=1)


def gate(g: Maker, x: str) -> str:
    return g("reduce_mean", g("mul", x, g("sigmoid", x)), axes=(2, 3), keepdims=1)


def power(g: Maker, x: str) -> str:
    cubes = g("pow", g("abs", x), g.constant("three", np.float32(3)))
    return g("transpose", cubes, perm=(0, 2, 3, 1))


def root(g: Maker, x: str) -> str:
    roots = g("pow", g("abs", x), g.constant("third", np.float32(1 / 3)))
    return g("transpose", roots, perm=(0, 2, 3, 1))


def quotient(g: Maker, x: str) -> str:
    total = g("reduce_sum", x, axes=(1,), keepdims=1)
    return g("transpose", g("div", x, total), perm=(0, 2, 3, 1))


def tame(op: str) -> Callable[[Maker, str], str]:
    return lambda g, x: g("transpose", g(op, g("mul", x, x)), perm=(0, 2, 3, 1))


CASES: dict[str, tuple[Callable[[Maker, str], str], set[str]]] = {
    "squares": (squares, {"mul", "average_pool"}),
    "products": (products, {"mul", "reduce_mean"}),
    "gate": (gate, {"reduce_mean"}),
    "power": (power, {"pow", "transpose"}),
    "root": (root, set()),
    "quotient": (quotient, {"reduce_sum"}),
    "exponential": (tame("exp"), {"mul", "exp", "transpose"}),
    **{
        op: (tame(op), {"mul"})
        for op in (
            *("sqrt", "log", "sigmoid", "tanh", "erf", "hard_sigmoid", "reciprocal", "softplus"),
            *("sin", "cos", "atan", "sign"),
        )
    },
}


@pytest.mark.parametrize(("make", "expected"), CASES.values(), ids=CASES)
def test_sums_and_what_goes_into_them(
    make: Callable[[Maker, str], str], expected: set[str]
) -> None:
    g = Maker()
    graph = g.graph(make(g, g.input("x", 1, 4, 6, 6)))
    groups = fuse(graph, {node.output for node in graph.nodes})  # each is in a separate kernel
    wide = float32_sums(graph, groups)
    assert {node.op for node in graph.nodes if node.output in wide} == expected


def normalised(kernel: int) -> Graph:
    """Products with a norm by L1 between them, and a mean that is a factor under another shape."""
    g = Maker()
    first = g("matmul", g.input("x", 8, 16), g.weight("w", 16, 16))
    total = g("reduce_sum", g("abs", first), axes=(1,), keepdims=1)
    second = g("matmul", g("div", first, total), g.weight("v", 16, 16))
    pooled = g("reduce_mean", g("reshape", second, shape=(8, 4, kernel)), axes=(2,), keepdims=1)
    last = g("matmul", g("reshape", pooled, shape=(8, 4)), g.weight("u", 4, 4))
    return g.graph(last)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_sums_are_stored_in_float32_unless_they_are_factors(dtype: DType) -> None:
    after = optimise(normalised(4), Mode(precision=dtype))
    producers = {node.output: node for node in after.nodes}
    narrowed = {
        producers[node.inputs[0]].op
        for node in after.nodes
        if node.op == "cast" and after.types[node.output].dtype is dtype
        if node.inputs[0] in producers
    }
    assert "reduce_sum" not in narrowed
    assert "reduce_mean" in narrowed
