"""Workloads: structural keys, text round trips, canonical names."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.plan.workload import Boundary, Workload, extract_workload, make_workload
from tilewright.compiler.sizes import Dimension, WorkloadDimension, dynamic_size

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}


def conv_relu(prefix: str = "", swapped: bool = False, seed: int = 0, channels: int = 8) -> Graph:
    g = Maker(seed)
    x = g.input(f"{prefix}x", 1, 4, 6, 6)
    rest = g.input(f"{prefix}rest", 1, channels, 6, 6)
    y = g("conv", x, g.weight(f"{prefix}w", channels, 4, 3, 3), name=f"{prefix}y", **CONV)
    operands = (rest, y) if swapped else (y, rest)
    y = g("add", *operands, name=f"{prefix}z")
    y = g("mul", y, g.constant(f"{prefix}k", 0.5), name=f"{prefix}scaled")
    return g.graph(g("relu", y, name=f"{prefix}out"))


def whole(graph: Graph) -> Workload:
    return make_workload(graph, [node.name for node in graph.nodes])


def test_the_key_ignores_names_weights_and_the_order_of_commutative_operands() -> None:
    first = whole(conv_relu())
    assert first.key == whole(conv_relu("other_", seed=3)).key
    assert first.key == whole(conv_relu(swapped=True)).key
    assert first.key != whole(conv_relu(channels=16)).key
    assert len(first.key) == 64


def test_text_round_trip() -> None:
    graph = conv_relu()
    place = blocked(4, 1, 8)
    shape = graph.types["out"]
    workload = make_workload(
        graph,
        [node.name for node in graph.nodes],
        {
            "out": Boundary(shape, place, ((0, 0), (0, 0), (1, 2), (1, 1))),
            "rest": Boundary(graph.types["rest"], place),
        },
    )
    again = Workload.parse(workload.text())
    assert again == workload and again.key == workload.key and hash(again) == hash(workload)
    assert again.output.halo == ((0, 0), (0, 0), (1, 2), (1, 1))
    assert again.output.layout == place
    assert [b.constant for b in again.inputs] == [b.constant for b in workload.inputs]
    assert workload != whole(graph)


def test_weights_are_inputs_and_scalars_stay_inside() -> None:
    cut = extract_workload(conv_relu(), ["y", "z", "scaled", "out"])
    assert cut.inputs == ("x", "w", "rest")
    assert [b.constant for b in cut.workload.inputs] == [False, True, False]
    assert [a.item() for a in cut.workload.graph.constants.values()] == [np.float32(0.5)]
    assert cut.output == "out"
    assert cut.workload.operators == ("conv", "add", "mul", "relu")


def test_a_part_of_a_graph() -> None:
    cut = extract_workload(conv_relu(), ["scaled", "out"])
    assert cut.inputs == ("z",) and cut.workload.operators == ("mul", "relu")


def test_no_halo_is_one_form() -> None:
    graph = conv_relu()
    zeros = ((0, 0),) * 4
    assert Boundary(graph.types["x"], halo=zeros) == Boundary(graph.types["x"])


@pytest.mark.parametrize("nodes", [["y", "out"], ["nothing"]])
def test_nodes_must_be_connected_to_one_output(nodes: list[str]) -> None:
    with pytest.raises(InvalidModelError):
        extract_workload(conv_relu(), nodes)


@pytest.mark.parametrize("text", ["", "workload", "workload\ninput %0\n", "graph g\n"])
def test_malformed_text(text: str) -> None:
    with pytest.raises(InvalidModelError):
        Workload.parse(text)


def rows(batch: Dimension, length: Dimension, prefix: str = "") -> Graph:
    g = Maker()
    x = g.input(f"{prefix}x", dynamic_size(batch), dynamic_size(length), 8)
    y = g("matmul", x, g.weight(f"{prefix}w", 8, 4), name=f"{prefix}y")
    return g.graph(g("relu", y, name=f"{prefix}out"))


def test_open_dimensions_have_names_of_their_own() -> None:
    batch, length = Dimension("batch", 1, 8), Dimension("a length", 1, 16, multiple=32)
    graph = rows(batch, length)
    cut = extract_workload(graph, [node.name for node in graph.nodes])
    assert [d.name for d in cut.workload.dimensions] == ["s0", "s1"]
    assert dict(cut.dimensions) == {"s0": batch, "s1": length}
    read = Workload.parse(cut.workload.text())
    assert read.graph.dimensions == cut.workload.dimensions == cut.workload.graph.dimensions
    assert all(type(d) is WorkloadDimension for d in read.dimensions)
    other = rows(Dimension("z", 1, 8), Dimension("a", 1, 16, multiple=32), "other_")
    assert whole(other) == cut.workload
    assert whole(other).key == cut.workload.key


def test_an_open_workload_at_sizes_is_the_workload_of_these_sizes() -> None:
    open_one = whole(rows(Dimension("batch", 1, 8), Dimension("length", 1, 512)))
    fixed = whole(rows(Dimension("batch", 3, 3), Dimension("length", 17, 17)))
    assert open_one.at({"s0": 3, "s1": 17}) == fixed
    assert fixed.dimensions == ()
