"""Quantisation before data movement, and where it must stay behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker, assert_equivalent, operators
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.passes.quantise_first import quantise_first
from tilewright.compiler.passes.requantised import requantised

SHAPE = (1, 4, 6, 6)
POOL: dict[str, Any] = {"kernel": (3, 3), "strides": (2, 2), "pads": (1,) * 4, "dilations": (1, 1)}


def quantised(g: Maker, value: str, step: object = 0.25, zero: object = 7.0) -> str:
    scaled = g("mul", value, g.constant(f"{value}.step", 1 / np.asarray(step, np.float32)))
    moved = g("add", g("round", scaled), g.constant(f"{value}.zero", np.asarray(zero, np.float32)))
    return g("cast", moved, to="uint8")


def dequantised(g: Maker, x: str, step: float = 0.25, zero: int = 7) -> str:
    moved = g("sub", g("cast", x, to="int32"), g.constant(f"{x}.from", np.int32(zero)))
    return g("mul", g("cast", moved, to="float32"), g.constant(f"{x}.of", np.float32(step)))


MOVES: dict[str, Callable[[Maker, str], str]] = {
    "concat": lambda g, x: g("concat", x, g.input("y", 1, 3, 6, 6), axis=1),
    "reshape": lambda g, x: g("reshape", x, shape=(4, 36)),
    "transpose": lambda g, x: g("transpose", x, perm=(0, 2, 3, 1)),
    "slice": lambda g, x: g(
        "slice", x, starts=(0, 1, 0, 0), steps=(1, 2, 1, 1), sizes=(1, 1, 6, 6)
    ),
    "expand": lambda g, x: g("expand", x, shape=(5, 4, 6, 6)),
    "gather": lambda g, x: g("gather", x, g.constant("i", np.array([3, 0, 3])), axis=1),
    "max_pool": lambda g, x: g("max_pool", x, **POOL),
}


@pytest.mark.parametrize("op", MOVES)
def test_bytes_are_moved(op: str) -> None:
    g = Maker()
    moved = MOVES[op](g, g.input("x", *SHAPE))
    graph = g.graph(quantised(g, moved))
    after = quantise_first(graph)
    assert_equivalent(graph, after)
    assert after.nodes[-1].op == op
    assert after.types[after.nodes[-1].inputs[0]].dtype is DType.UINT8
    assert quantise_first(after).nodes == after.nodes


@pytest.mark.parametrize("op", MOVES)
def test_what_is_quantised_as_it_was_is_only_moved(op: str) -> None:
    """The floats between vanish, where one numbers' quantisation undoes the other's."""
    if op == "concat":
        return
    g = Maker()
    moved = MOVES[op](g, dequantised(g, g.input("x", *SHAPE, dtype=DType.UINT8)))
    graph = g.graph(quantised(g, moved))
    after = requantised(quantise_first(graph))
    assert_equivalent(graph, after)
    assert operators(after) == [op]


def test_other_numbers_are_not_those_of_before() -> None:
    g = Maker()
    moved = g("transpose", dequantised(g, g.input("x", 4, 8, dtype=DType.UINT8)), perm=(1, 0))
    graph = g.graph(quantised(g, moved, step=0.5))
    after = requantised(quantise_first(graph))
    assert_equivalent(graph, after)
    assert "round" in operators(after)


def after_pool(*chain: str, factor: float = 4.0) -> Graph:
    g = Maker()
    value = g("max_pool", g.input("x", *SHAPE), **POOL)
    for op in chain:
        if op in ("mul", "sub"):
            value = g(op, value, g.constant(f"{value}.by", factor))
        elif op == "sub from":
            value = g("sub", g.constant(f"{value}.by", factor), value)
        else:
            value = g(op, value)
    return g.graph(g("cast", g("round", value), to="int8"))


@pytest.mark.parametrize("chain", [("mul",), ("relu", "mul"), ("sub",)])
def test_a_maximum_goes_with_what_keeps_the_order(chain: tuple[str, ...]) -> None:
    graph = after_pool(*chain)
    after = quantise_first(graph)
    assert_equivalent(graph, after)
    assert after.nodes[-1].op == "max_pool"


@pytest.mark.parametrize(
    "graph",
    [
        after_pool("mul", factor=-4.0),
        after_pool("mul", factor=0.0),
        after_pool("sub from"),
        after_pool("neg"),
        after_pool("abs"),
    ],
)
def test_a_maximum_stays_before_what_turns_the_order(graph: Graph) -> None:
    assert quantise_first(graph).nodes == graph.nodes
    assert_equivalent(graph, optimise(graph))


@pytest.mark.parametrize("kind", ["int32", "int64", "bool"])
def test_a_maximum_stays_before_integers_that_wrap(kind: str) -> None:
    """300 is 44 as a byte, and the bool of -1 equals that of 1."""
    g = Maker()
    x = g("mul", g.input("x", *SHAPE), g.constant("spread", np.float32(300)))
    whole = g("cast", g("min", x, g.constant("zero", np.float32(0))), to=kind)
    value = g("max_pool", x if kind != "bool" else g("neg", g("abs", x)), **POOL)
    graph = g.graph(g("cast", g("cast", value, to=kind), to="uint8"), whole)
    assert quantise_first(graph).nodes == graph.nodes


def test_a_scale_for_each_channel_does_not_move() -> None:
    """It belongs to places of the result."""
    g = Maker()
    moved = g("transpose", g.input("x", 4, 8), perm=(1, 0))
    graph = g.graph(quantised(g, moved, step=[0.5, 1.0, 1.5, 2.0]))
    assert quantise_first(graph).nodes == graph.nodes


def test_what_others_read_too_is_not_moved_twice() -> None:
    g = Maker()
    moved = g("concat", g.input("x", 2, 4), g.input("y", 3, 4), axis=0)
    graph = g.graph(quantised(g, moved), moved)
    assert quantise_first(graph).nodes == graph.nodes
    g = Maker()
    moved = g("concat", g.input("x", 2, 4), g.input("y", 3, 4), axis=0)
    graph = g.graph(quantised(g, moved), g("exp", moved))
    assert quantise_first(graph).nodes == graph.nodes


def test_what_pads_with_a_number_stays() -> None:
    """A padded zero is quantised too."""
    g = Maker()
    graph = g.graph(quantised(g, g("pad", g.input("x", 2, 4), pads=(0, 1, 0, 1), value=0.0)))
    assert quantise_first(graph).nodes == graph.nodes


def test_only_to_bytes() -> None:
    g = Maker()
    moved = g("transpose", g.input("x", 4, 8), perm=(1, 0))
    graph = g.graph(g("cast", g("round", moved), to="int32"))
    assert quantise_first(graph).nodes == graph.nodes
