"""Caches of keys and values in one array: which they are, and that the graph means the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.graph.verify import verify_graph
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.passes.growing_caches import growing_caches
from tilewright.compiler.passes.packed_caches import packed_caches
from tilewright.compiler.sizes import Dimension, dynamic_size

PAST = dynamic_size(Dimension("past", 0, 64))
NEW = dynamic_size(Dimension("new", 1, 8))
CACHE, ROWS = (2, 1, 3, PAST, 4), (1, 3, NEW, 4)


def kind(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


class Writer:
    """A graph, a node at a time; values are named as they are made."""

    def __init__(self) -> None:
        self.types = {"past": kind(*CACHE), "key": kind(*ROWS), "value": kind(*ROWS)}
        self.nodes: list[Node] = []

    def add(self, name: str, op: str, *inputs: str, **attrs: AttrValue) -> str:
        self.nodes.append(Node(name, op, inputs, (name,), tuple(sorted(attrs.items()))))
        operands = [self.types[value] for value in inputs]
        self.types[name] = ops.get(op).infer(operands, self.nodes[-1].attrs)
        return name

    def part(self, number: int, new: str, axis: int = 2) -> str:
        """(1, 3, past + new, 4): a part of the cache, with new rows behind."""
        starts, sizes = (number, 0, 0, 0, 0), (1, *CACHE[1:])
        old = self.add(f"old{number}", "slice", "past", starts=starts, steps=(1,) * 5, sizes=sizes)
        rows = self.add(f"rows{number}", "reshape", old, shape=CACHE[1:])
        return self.add(f"grown{number}", "concat", rows, new, axis=axis)

    def finish(self, *grown: str) -> Graph:
        """Outputs: all parts in one array, and the sum of each."""
        parts = []
        for k, value in enumerate(grown):
            parts.append(self.add(f"p{k}", "reshape", value, shape=(1, *self.types[value].shape)))
            self.add(f"sum{k}", "reduce_sum", value, axes=(3,), keepdims=1)
        self.add("present", "concat", *parts, axis=0)
        outputs = ("present", *(f"sum{k}" for k in range(len(grown))))
        graph = Graph("step", ("past", "key", "value"), outputs, tuple(self.nodes), self.types)
        verify_graph(graph)
        return graph


def step() -> Graph:
    writer = Writer()
    return writer.finish(writer.part(0, "key"), writer.part(1, "value"))


@pytest.mark.parametrize(("past", "new"), [(0, 1), (5, 1), (3, 8)])
def test_new_rows_are_joined_before_they_go_behind_the_old(past: int, new: int) -> None:
    graph = step()
    after = packed_caches(graph)
    verify_graph(after)
    made = after.producer("present")
    assert made is not None and made.inputs[0] == "past"
    assert sum(node.op == "concat" for node in after.nodes) == 2
    _, (growth,) = growing_caches(graph)
    assert (growth.input, growth.output, growth.axis) == ("past", "present", 3)
    values, random = {"past": past, "new": new}, np.random.default_rng(past)
    arrays = {
        name: random.standard_normal(graph.at(values).types[name].shape).astype(np.float32)
        for name in graph.inputs
    }
    expected = run_graph(graph.at(values), arrays)
    for found, other in zip(run_graph(after.at(values), arrays), expected, strict=True):
        np.testing.assert_array_equal(found, other)


def test_values_may_follow_from_the_cached_keys_only_if_the_new_keys_do_not() -> None:
    """The new values are the sums of all keys: they wait for the old rows, which the joined rows
    would wait for."""
    writer = Writer()
    keys = writer.part(0, "key")
    total = writer.add("total", "reduce_sum", keys, axes=(2, 3), keepdims=1)
    new = writer.add("new", "add", "value", total)
    graph = writer.finish(keys, writer.part(1, new))
    assert packed_caches(graph) == graph


def swapped() -> Graph:
    writer = Writer()
    return writer.finish(writer.part(1, "value"), writer.part(0, "key"))


def along_heads() -> Graph:
    writer = Writer()
    writer.types |= dict.fromkeys(("key", "value"), kind(1, 3, PAST, 4))
    return writer.finish(*(writer.part(k, new, 1) for k, new in enumerate(("key", "value"))))


def one_part_twice() -> Graph:
    writer = Writer()
    part = writer.part(0, "key")
    return writer.finish(part, part)


@pytest.mark.parametrize(
    "graph",
    [
        swapped(),  # the parts change places
        along_heads(),  # heads are added, whose number is known
        one_part_twice(),
        step().at({"past": 5, "new": 1}),  # every size is known
        replace(step(), outputs=("sum0", "sum1")),  # no output contains the whole
    ],
)
def test_what_is_no_packed_cache_stays(graph: Graph) -> None:
    assert packed_caches(graph) == graph
