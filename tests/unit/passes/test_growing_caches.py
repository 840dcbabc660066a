"""Growing caches in place: their detection, and that the buffers hold the model's results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.passes.growing_caches import growing_caches
from tilewright.compiler.sizes import Dimension, dynamic_size

PAST = dynamic_size(Dimension("past", 0, 64))
ADDED = dynamic_size(Dimension("added", 1, 8))


def cache(axis: int = 1, added: int = ADDED, outputs: tuple[str, ...] = ("all", "sum")) -> Graph:
    """`all` = past, then new; `sum` = all + all."""

    def kind(rows: int) -> TensorType:
        shape = [2, 3, 4]
        shape[axis] = rows
        return TensorType(DType.FLOAT32, tuple(shape))

    whole = kind(PAST + added)
    return Graph(
        "cache",
        ("past", "new"),
        outputs,
        (
            Node("all", "concat", ("past", "new"), ("all",), (("axis", axis),)),
            Node("sum", "add", ("all", "all"), ("sum",)),
        ),
        {"past": kind(PAST), "new": kind(added), "all": whole, "sum": whole},
    )


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize(("past", "added", "room"), [(0, 1, 0), (5, 1, 3), (2, 8, 0), (7, 3, 20)])
def test_rows_are_put_behind_those_that_are_there(
    axis: int, past: int, added: int, room: int
) -> None:
    graph = cache(axis)
    after, (growth,) = growing_caches(graph)
    assert (growth.input, growth.output, growth.axis) == ("past", "all", axis)
    assert (growth.before, growth.after) == (PAST, PAST + ADDED)
    values = {"past": past, "added": added, growth.room.name: room}
    random = np.random.default_rng(past)
    old, new = (
        random.normal(size=graph.at(values).types[name].shape).astype(np.float32)
        for name in ("past", "new")
    )
    buffer = np.full(after.at(values).types["past"].shape, np.nan, np.float32)
    rows = tuple(slice(None) for _ in range(axis))
    assert buffer.shape[axis] == past + added + room
    buffer[(*rows, slice(past))] = old
    expected, total = run_graph(graph.at(values), {"past": old, "new": new})
    found, sums = run_graph(after.at(values), {"past": buffer, "new": new})
    np.testing.assert_array_equal(found[(*rows, slice(past + added))], expected)
    assert np.isnan(found[(*rows, slice(past + added, None))]).all()
    np.testing.assert_array_equal(sums, total)


def test_caches_of_one_length_have_one_room() -> None:
    graph = cache()
    second = {name: f"{name}.2" for name in ("past", "new", "all", "sum")}
    types = {**graph.types, **{second[name]: kind for name, kind in graph.types.items()}}
    more = [
        replace(
            node,
            name=second[node.name],
            inputs=tuple(second[v] for v in node.inputs),
            outputs=(second[node.output],),
        )
        for node in graph.nodes
    ]
    both = replace(
        graph,
        inputs=(*graph.inputs, "past.2", "new.2"),
        outputs=("all", "all.2", "sum", "sum.2"),
        nodes=(*graph.nodes, *more),
        types=types,
    )
    after, grown = growing_caches(both)
    assert len(grown) == 2 and len({growth.room for growth in grown}) == 1
    assert sum(node.op == "iota" for node in after.nodes) == 2  # the places are found once


@pytest.mark.parametrize(
    "graph",
    [
        cache(outputs=("sum",)),  # no output contains the whole
        cache(outputs=("all", "all", "sum")),  # two outputs cannot be one buffer
        cache(outputs=("all", "past", "sum")),  # the input is an output itself
        cache().at({"past": 5, "added": 1}),  # every size is known
        cache(added=0),  # nothing is added
    ],
)
def test_what_is_no_growing_cache_stays(graph: Graph) -> None:
    assert growing_caches(graph) == (graph, ())


def test_an_input_begins_one_output() -> None:
    graph = cache()
    other = Node("other", "concat", ("past", "new"), ("other",), (("axis", 1),))
    twice = replace(
        graph,
        outputs=("all", "other"),
        nodes=(*graph.nodes, other),
        types={**graph.types, "other": graph.types["all"]},
    )
    after, (growth,) = growing_caches(twice)
    assert growth.output == "all"
    values = {"past": 2, "added": 1, growth.room.name: 1}
    old, new = np.ones((2, 2, 4), np.float32), np.full((2, 1, 4), 2, np.float32)
    buffer = np.concatenate([old, np.zeros((2, 2, 4), np.float32)], 1)
    _, found = run_graph(after.at(values), {"past": buffer, "new": new})
    np.testing.assert_array_equal(found, np.concatenate([old, new], 1))
