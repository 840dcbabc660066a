"""Functions of one tensor of bytes that become tables, and near misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker, assert_equivalent, operators
from tilewright.compiler.driver import optimise
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.passes.lookup_tables import lookup_tables
from tilewright.compiler.passes.no_ops import no_ops
from tilewright.compiler.passes.pipeline import PASSES
from tilewright.compiler.passes.transposes import transposes
from tilewright.compiler.targets.host import resolve_target

Choices = dict[str, Any]
SHAPE = (16, 16)


def every(kind: DType) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(kind.numpy).reshape(SHAPE)


def dequantised(g: Maker, x: str, zero: int = 3, scale: object = 0.05) -> str:
    wide = g("cast", g("cast", x, to="int32"), to="float32")
    moved = g("sub", wide, g.constant(f"{x}.zero", float(zero)))
    return g("mul", moved, g.constant(f"{x}.scale", np.asarray(scale, np.float32)))


def quantised(g: Maker, value: str, to: DType = DType.UINT8, zero: int = 7) -> str:
    scaled = g("div", value, g.constant(f"{value}.step", 0.02))
    moved = g("add", g("round", scaled), g.constant(f"{value}.zero", float(zero)))
    return g("cast", moved, to=to.value)


def chain(**c: Any) -> Graph:
    """Bytes to bytes; `function` lies between them, `source` and `to` are their types."""
    g = Maker()
    x = g.input("x", *SHAPE, dtype=c.get("source", DType.UINT8))
    value = dequantised(g, x, scale=c.get("scale", 0.05))
    for op in c.get("function", ("sigmoid",)):
        value = g(op, value, value) if op in ("mul", "add") else g(op, value)
    if "other" in c:
        value = g("mul", value, c["other"](g))
    return g.graph(quantised(g, value, c.get("to", DType.UINT8)))


def tabled(before: Graph, enough: int | None = None) -> Graph:
    """The graph after the pass, which gives the same for every byte."""
    after = lookup_tables(before, enough)
    feeds = {v: every(before.types[v].dtype) for v in before.inputs}
    for a, b in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    return after


@pytest.mark.parametrize("source", [DType.UINT8, DType.INT8])
@pytest.mark.parametrize("to", [DType.UINT8, DType.INT8])
@pytest.mark.parametrize("function", [("sigmoid",), ("erf",), ("tanh", "mul"), ("exp", "sqrt")])
def test_a_costly_function_is_a_table(source: DType, to: DType, function: tuple[str, ...]) -> None:
    after = tabled(chain(source=source, to=to, function=function))
    assert operators(after) == ["lookup"]


def test_many_cheap_operations_are_a_table() -> None:
    few, many = chain(function=("relu",)), chain(function=("relu", "add", "relu", "add"))
    assert operators(tabled(few, len(few.nodes))) == operators(few)
    assert operators(tabled(few, len(few.nodes) - 1)) == ["lookup"]
    assert operators(tabled(many)) == operators(many)  # no number of them is enough


def test_tables_of_tables_are_one() -> None:
    """SiLU as quantisers write it: its gate is quantised separately, and both are of one byte."""
    g = Maker()
    value = dequantised(g, g.input("x", *SHAPE, dtype=DType.INT8))
    gate = quantised(g, g("sigmoid", value))
    product = g("mul", value, dequantised(g, gate, scale=1 / 255))
    after = tabled(g.graph(quantised(g, product)))
    assert operators(after) == ["lookup"]
    again = tabled(after)
    assert again.nodes == after.nodes


def test_a_table_that_others_read_too_stays() -> None:
    g = Maker()
    first = quantised(g, g("sigmoid", dequantised(g, g.input("x", *SHAPE, dtype=DType.UINT8))))
    graph = g.graph(first, quantised(g, dequantised(g, first)))
    after = tabled(graph)
    assert operators(after) == ["lookup", "lookup"]
    assert all(node.inputs[0] == "x" for node in after.nodes)


@pytest.mark.parametrize(
    "other",
    [
        lambda g: g.input("y", *SHAPE),  # a second value
        lambda g: g.constant("row", np.linspace(1, 2, 16, dtype=np.float32)),  # differs by column
        lambda g: dequantised(g, g.input("z", *SHAPE, dtype=DType.UINT8)),
    ],
)
def test_other_functions_are_computed(other: Any) -> None:
    graph = chain(other=other)
    assert lookup_tables(graph).nodes == graph.nodes


def test_a_scale_for_each_row_and_a_wider_source_are_no_table() -> None:
    for graph in (
        chain(scale=np.linspace(1, 2, 16, dtype=np.float32)),
        chain(source=DType.INT16),
        chain(to=DType.INT16),
    ):
        assert lookup_tables(graph).nodes == graph.nodes


def test_a_source_of_another_shape_is_no_table() -> None:
    g = Maker()
    row = dequantised(g, g.input("x", 16, dtype=DType.UINT8))
    wide = g("sigmoid", g("expand", row, shape=SHAPE))
    graph = g.graph(quantised(g, wide))
    assert lookup_tables(graph).nodes == graph.nodes


@pytest.mark.parametrize(
    ("name", "costly", "cheap"),
    [
        ("icelake-server", True, True),  # an instruction looks up vectors
        ("cascadelake", False, False),  # vectors too long for separate loads
        ("x86-64-v3", True, False),
        ("neoverse-v1", True, False),
    ],
)
def test_only_targets_with_fast_lookups_have_tables(name: str, costly: bool, cheap: bool) -> None:
    assert lookup_tables in PASSES
    for function, found in ((("sigmoid",), costly), (("relu", "add", "relu", "add"), cheap)):
        made = operators(optimise(chain(function=function), Mode(resolve_target(name))))
        assert ("lookup" in made) is found


def test_a_table_is_not_moved_with_what_is_looked_up() -> None:
    """It is read whole: neither transposed nor broadcast."""
    g = Maker()
    table = g.constant("table", np.random.default_rng(0).permutation(256).astype(np.uint8))
    turned = g("transpose", g.input("x", 3, 256, dtype=DType.UINT8), perm=(1, 0))
    graph = g.graph(g("lookup", turned, table))
    after = transposes(graph)
    assert_equivalent(graph, after)
    assert operators(after) == ["lookup", "transpose"]
    g = Maker()
    table = g.constant("table", np.arange(256, dtype=np.uint8))
    wide = g("expand", g.input("x", 1, 3, dtype=DType.UINT8), shape=(5, 3))
    graph = g.graph(g("lookup", wide, table))
    assert_equivalent(graph, no_ops(graph))


@pytest.mark.parametrize(
    ("source", "table", "entries"),
    [
        (DType.INT32, np.uint8, 256),
        (DType.UINT8, np.float32, 256),
        (DType.UINT8, np.uint8, 255),
    ],
)
def test_what_is_no_table_of_a_byte_is_refused(source: DType, table: Any, entries: int) -> None:
    g = Maker()
    x = g.input("x", 4, dtype=source)
    with pytest.raises(InvalidModelError, match="looked up in"):
        g("lookup", x, g.constant("t", np.zeros(entries, table)))


def test_a_function_of_constant_bytes_is_computed() -> None:
    """An embedding that is quantised."""
    g = Maker()
    weights = g.constant("w", every(DType.UINT8))
    rows = quantised(g, dequantised(g, weights, zero=3, scale=0.02))
    graph = g.graph(g("gather", rows, g.input("i", 2, dtype=DType.INT64), axis=0))
    after = lookup_tables(graph)
    assert_equivalent(graph, after)
    assert operators(after) == ["gather"]
    assert after.nodes[0].inputs[0] != "w"
