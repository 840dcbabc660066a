"""Which values of a model a program shows, also where passes change types or merge products."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.graphs import Maker
from tilewright.compiler import driver
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.names import in_type, stands_for
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.targets.host import resolve_target
from tilewright.service.jobs.evidence.correspondence import correspondence

TARGET = resolve_target("x86-64-v3")


def heads() -> tuple[Graph, dict[str, np.ndarray]]:
    """Three products of one value, which a pass merges, and their readers."""
    m = Maker()
    x = m.input("x", 16, 32)
    h = m("layer_norm", x, m.weight("g", 32), m.weight("b", 32), name="h", axis=-1, epsilon=1e-5)
    q, k, v = (m("matmul", h, m.weight(f"w{n}", 32, 16), name=n) for n in "qkv")
    s = m("softmax", m("matmul", q, m("transpose", k, perm=(1, 0)), name="s"), name="p", axis=-1)
    o = m("matmul", m("matmul", s, v, name="o"), m.weight("wo", 16, 32), name="z")
    m("add", x, o, name="y")
    return m.graph("y"), {"x": m.random.standard_normal((16, 32)).astype(np.float32)}


def computed(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All values of a graph, as they lie in memory."""
    names = [node.output for node in graph.nodes]
    found = run_graph(graph.replace(outputs=names), inputs)
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize(
    ("precision", "allowed"), [("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 6e-2)]
)
def test_a_value_that_is_shown_means_the_same_in_both_graphs(
    precision: str, allowed: float
) -> None:
    graph, inputs = heads()
    planned = driver.optimise(graph, Mode(TARGET, precision=precision))
    written = computed(planned, inputs)
    right = computed(graph, inputs)
    # as if kernels wrote all of it, and as if they wrote only the merged product
    merged = [node.output for node in planned.nodes if node.output not in "qkv"]
    for shown_by in (list(written), merged):
        found = correspondence(graph, planned, shown_by)
        assert {"h", "q", "k", "v", "y"} <= found.keys()
        for name, ways in found.items():
            for way in ways:
                own = way.numbers({origin: written[origin] for origin in way.origins})
                scale = np.abs(right[name]).max()
                assert np.abs(own - right[name]).max() <= allowed * scale, (name, way)


def test_what_is_computed_is_not_shown_by_what_it_is_computed_from() -> None:
    m = Maker()
    x = m.input("x", 4, 8)
    a = m("exp", x, name="a")
    b = m("slice", a, name="b", starts=(0, 0), sizes=(2, 8), steps=(1, 1))
    m("neg", b, name="y")
    graph = m.graph("y")
    found = correspondence(graph, graph, ["a"])
    assert found.keys() == {"a", "b"}
    assert found["b"][0].origins == ("a",) and found["b"][0].moves is not None
    assert not correspondence(graph, graph, [])


def test_a_value_in_a_form_that_can_be_undone_is_shown() -> None:
    """A zero point that moves from int8 to uint8, and padding with it."""
    m = Maker()
    x = m.input("x", 1, 2, 4, 4)
    q = m("cast", m("round", x, name="r"), name="q", to="int8")
    imported = m.graph(m("cast", q, name="y", to="float32"))
    moved = m("add", m("cast", q, name="c", to="uint8"), m.constant("z", np.uint8(128)), name="u")
    padded = m("pad", moved, name="p", pads=(0, 0, 1, 1, 0, 0, 0, 1), value=128.0)
    planned = m.graph("y", padded)
    inputs = {"x": m.random.integers(-128, 127, (1, 2, 4, 4)).astype(np.float32)}
    written = computed(planned, inputs)
    for kernel in ("u", "p"):
        (way,) = correspondence(imported, planned, [kernel])["q"]
        assert way.origins == (kernel,) and way.whole
        np.testing.assert_array_equal(way.numbers({kernel: written[kernel]}), written["q"])


@pytest.mark.parametrize(
    ("stored", "wide", "shown"),
    [
        ("uint8", "int16", True),
        ("int8", "int16", True),
        ("int16", "uint8", False),
        ("uint8", "float32", False),
    ],
)
def test_integers_in_a_type_with_all_of_their_values_are_shown(
    stored: str, wide: str, shown: bool
) -> None:
    """A kernel that ends with the conversion for the next product writes only the wide form."""
    m = Maker()
    q = m("cast", m("round", m.input("x", 4, 4), name="r"), name="q", to=stored)
    imported = m.graph(m("cast", q, name="y", to="float32"))
    m("cast", q, name="w", to=wide)
    planned = m.graph("y", "w")
    found = correspondence(imported, planned, ["w"])
    assert ("q" in found) == shown
    if shown:
        written = computed(planned, {"x": np.arange(16, dtype=np.float32).reshape(4, 4)})
        (way,) = found["q"]
        assert way.whole
        np.testing.assert_array_equal(way.numbers({"w": written["w"]}), written["q"])


def test_names_of_values_in_other_types() -> None:
    name = in_type(in_type("y", DType.FLOAT32, ()), DType.BFLOAT16, ())
    assert list(stands_for(name)) == ["y.float32.bfloat16", "y.float32", "y"]
    assert list(stands_for("y.matmul")) == ["y.matmul"]
    assert in_type("y", DType.FLOAT16, {"y.float16"}) == "y.float16.2", "and stands for nothing"
