"""Editing graphs: new names, nodes in order, and removal of nodes that no output needs."""

from __future__ import annotations

import numpy as np

from tests.graphs import Maker, assert_equivalent
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.edit import Edit, live
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.names import fresh
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.graph.verify import verify_graph


def doubled() -> Graph:
    g = Maker()
    x = g.input("x", 3)
    return g.graph(g("add", g("exp", x, name="e"), g.weight("w", 3), name="y"))


def test_a_new_name_is_that_of_no_value_and_of_no_node() -> None:
    graph = doubled()
    first, last = graph.nodes
    renamed = Node("step", first.op, first.inputs, first.outputs)
    edit = Edit(graph.replace(nodes=[renamed, last]))
    assert [edit.fresh(base) for base in ("w", "e", "step", "z")] == ["w.2", "e.2", "step.2", "z"]


def test_names_are_as_with_a_search_of_all_where_the_last_numbers_are_kept() -> None:
    taken, last = {"a", "a.3"}, dict[str, int]()
    for base in ("a", "a", "b", "a", "b", "a.2"):
        assert fresh(base, taken) == fresh(base, {"x"}, taken, last=last)
        taken.add(fresh(base, taken))
    assert taken == {"a", "a.2", "a.3", "a.4", "a.5", "a.2.2", "b", "b.2"}


def test_an_edit_has_the_source_s_values_and_what_is_added() -> None:
    graph = doubled()
    edit = Edit(graph)
    edit.put(graph.nodes[0])
    kind = TensorType(DType.FLOAT32, (3,))
    unused = edit.add(edit.fresh("e.neg"), "neg", ["e"], (), kind)
    halved = edit.add(edit.fresh("e"), "mul", ["e", "half"], (), kind)
    edit.types["half"], edit.constants["half"] = kind, np.full(3, 0.5, np.float32)
    edit.put(Node("y", "add", (halved, halved), ("y",)))
    assert edit.producer(unused, "neg") is not None and edit.producer(unused, "exp") is None
    after = edit.finish()
    verify_graph(after)
    assert [node.output for node in after.nodes] == ["e", "e.2", "y"]
    assert set(after.types) == {"x", "e", "e.2", "half", "y"} and set(after.constants) == {"half"}
    exp = Maker()
    assert_equivalent(exp.graph(exp("exp", exp.input("x", 3), name="y")), after)
    assert edit.finish([halved]).outputs == (halved,)


def test_what_says_that_an_input_is_text_lives() -> None:
    nodes = [
        Node("text", "labelled", ("x",), ("text",), (("labels", "{}"),)),
        Node("part", "labelled", ("x",), ("part",), (("list", "parts"),)),
        Node("made", "labelled", ("e",), ("made",), (("labels", "{}"),)),
        Node("y", "exp", ("x",), ("y",)),
    ]
    kept, values = live(nodes, ["x", "unread"], ["y"])
    assert kept == [nodes[0], nodes[3]] and values == {"x", "unread", "text", "y"}
