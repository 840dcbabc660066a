"""Graphs as values, and the findings of their verifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.graph.verify import verify_graph
from tilewright.compiler.ops.check import verify

KIND = TensorType(DType.FLOAT32, (2, 3))


def graph(**changes: Any) -> Graph:
    """relu(x + w), with some parts changed."""
    parts: dict[str, Any] = {
        "name": "g",
        "inputs": ("x",),
        "outputs": ("z",),
        "nodes": (
            Node("first", "add", ("x", "w"), ("y",)),
            Node("second", "relu", ("y",), ("z",)),
        ),
        "types": dict.fromkeys("xwyz", KIND),
        "constants": {"w": np.ones((2, 3), np.float32)},
    }
    return Graph(**(parts | changes))


def test_producers_and_consumers() -> None:
    g = graph()
    first, second = g.nodes
    assert g.producer("y") == first
    assert g.producer("x") is None
    assert g.consumers("y") == (second,)
    assert g.consumers("z") == ()
    doubled = g.replace(nodes=(first, Node("second", "add", ("y", "y"), ("z",))))
    assert len(doubled.consumers("y")) == 1


def test_equality_is_by_value() -> None:
    assert graph() == graph()
    assert hash(graph()) == hash(graph())
    assert graph() != graph(constants={"w": np.zeros((2, 3), np.float32)})
    nan = {"w": np.full((2, 3), np.nan, np.float32)}
    assert graph(constants=nan) == graph(constants=dict(nan))
    assert graph().replace(name="h") != graph()


def test_types() -> None:
    assert (KIND.elements, KIND.bytes, str(KIND)) == (6, 24, "float32[2,3]")
    assert str(TensorType(DType.INT8, ())) == "int8[]"
    assert graph().nodes[0].attr("axis", 3) == 3


def test_a_sound_graph_passes() -> None:
    verify(graph())


FIRST, SECOND = graph().nodes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": ("x", "y")}, "'y' is defined by an input and by node 'first'"),
        ({"nodes": (FIRST, FIRST)}, "'y' is defined by node 'first' and by node 'first'"),
        (
            {"nodes": (FIRST, Node("first", "relu", ("y",), ("z",)))},
            "two nodes are called 'first'",
        ),
        ({"nodes": (SECOND, FIRST)}, "node 'second': operand 'y' is not defined before it"),
        ({"outputs": ("q",)}, "output 'q' is not defined"),
        ({"types": dict.fromkeys("xwy", KIND)}, "value 'z' has no type"),
        ({"types": dict.fromkeys("xwyzq", KIND)}, "'q' has a type and no definition"),
        ({"constants": {"w": np.ones(2, np.float32)}}, "constant 'w': array of float32.2., stated"),
        (
            {"nodes": (Node("first", "add", ("x", "w"), ("y",), (("b", 1), ("a", 1))), SECOND)},
            "not sorted",
        ),
        (
            {"nodes": (FIRST, Node("second", "relu", ("y",), ("z", "q")))},
            "node 'second' has 2 outputs",
        ),
    ],
)
def test_structural_checks_name_the_offender(changes: dict[str, Any], message: str) -> None:
    if "q" in str(changes.get("nodes", "")):
        changes = {**changes, "types": dict.fromkeys("xwyzq", KIND)}
    with pytest.raises(InvalidModelError, match=message):
        verify_graph(graph(**changes))


def test_types_are_checked_against_the_operators() -> None:
    wrong = {**dict.fromkeys("xwy", KIND), "z": TensorType(DType.FLOAT32, (6,))}
    with pytest.raises(InvalidModelError, match=r"relu 'second': inferred float32\[2,3\], stated"):
        verify(graph(types=wrong))
    unknown = graph(nodes=(FIRST, Node("second", "frobnicate", ("y",), ("z",))))
    with pytest.raises(InvalidModelError, match="'second': no operator is called 'frobnicate'"):
        verify(unknown)
