"""Positions and masks from tables of fixed length, where sums of open sizes determine how much of
them is read: `past + tokens <= 16` is not a range of a dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from tilewright.compiler.errors import InvalidInputError, InvalidModelError
from tilewright.compiler.frontend.dimensions import cache_lengths
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.sizes import DynamicSizeError
from tilewright.compiler.sizes.ranges import default_ranges, within_defaults

PARTS = """
    shape = Shape (past)
    length = Slice (shape, one, two)
    given = Shape (new)
    count = Slice (given, one, two)
    total = Add (length, count)
"""
POSITIONS = """
    last = Squeeze (total)
    first = Squeeze (length)
    step = Constant <value_int = 1> ()
    places = Range (first, last, step)
"""
BODIES = {
    "gather": POSITIONS + "found = Gather <axis = 0> (table, places)",
    "slice": "found = Slice (table, length, total, zero)",
    "both": POSITIONS
    + """
    columns = Gather <axis = 1> (table, places)
    rows = Slice (columns, length, total, zero)
    found = MatMul (rows, rows)
    """,
}


def model(body: str) -> Any:
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    step (float[2, past] past, float[2, tokens] new) => (float[a, b] found, float[2, all] all)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}>
    {{ {PARTS} {body} all = Concat <axis = 1> (past, new) }}
    """
    parsed = onnx.parser.parse_model(text)
    table = np.arange(256, dtype=np.float32).reshape(16, 16)
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    return parsed


def imported(body: str, past: str = "0..15", tokens: str = "1..16") -> Graph:
    return import_model(model(body), {"past": past, "tokens": tokens})


def run(graph: Graph, past: int, tokens: int) -> np.ndarray:
    arrays = {"past": np.zeros((2, past), np.float32), "new": np.zeros((2, tokens), np.float32)}
    return run_graph(graph.at({"past": past, "tokens": tokens}), arrays)[0]


@pytest.mark.parametrize("body", BODIES)
def test_a_run_reads_no_more_of_a_table_than_there_is(body: str) -> None:
    graph = imported(BODIES[body])
    for past, tokens in ((0, 1), (0, 16), (15, 1), (7, 9)):
        fixed = import_model(model(BODIES[body]), {"past": past, "tokens": tokens})
        expected = run(fixed, past, tokens)
        np.testing.assert_array_equal(run(graph, past, tokens), expected)
    for past, tokens in ((1, 16), (15, 2), (15, 16)):
        with pytest.raises(InvalidInputError, match=r"past\+tokens is more than 16 elements of a"):
            run(graph, past, tokens)


def test_one_question_is_asked_once_and_before_all_else() -> None:
    nodes = imported(BODIES["both"]).nodes
    branches = [number for number, node in enumerate(nodes) if node.op == "branch"]
    first = next(n for n, node in enumerate(nodes) if {"past", "new"} & {*node.inputs})
    assert len(branches) == 1 and branches[0] < first


@pytest.mark.parametrize("body", ["gather", "slice"])
def test_what_every_size_of_the_ranges_keeps_is_not_asked(body: str) -> None:
    graph = imported(BODIES[body], past="0..8", tokens="1..8")
    assert all(node.op != "branch" for node in graph.nodes)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("ranges", [("0..16", "1..4"), ("0..4", "1..17")])
def test_a_range_that_reaches_beyond_by_itself_is_an_error(
    body: str, ranges: tuple[str, str]
) -> None:
    with pytest.raises(DynamicSizeError):
        imported(BODIES[body], *ranges)


@pytest.mark.parametrize(("past", "tokens"), [("16..20", "1..4"), ("8..9", "9..10"), (16, 1)])
def test_a_gather_beyond_its_table_for_every_size_is_an_invalid_model(
    past: str | int, tokens: str | int
) -> None:
    read = model(BODIES["gather"])
    read.graph.node[-2].name = "positions"
    with pytest.raises(InvalidModelError, match=r"Gather 'positions': .* out of range for 16"):
        import_model(read, {"past": past, "tokens": tokens})


@pytest.mark.parametrize("body", BODIES)
def test_default_ranges_are_those_of_the_table(body: str) -> None:
    read = model(BODIES[body])
    assert cache_lengths(read.graph) == {"past"}
    found = within_defaults(
        default_ranges(("past", "tokens")),
        lambda ranges: (ranges, import_model(read, ranges))[0],
        {"past"},
    )
    assert {d.range_text for d in found.values()} == {"0..15", "1..16"}


def test_a_part_of_an_input_may_end_beyond_it() -> None:
    """ONNX cuts it off there, and it may be meant."""
    body = "found = Slice (new, length, total, one)"
    with pytest.raises(DynamicSizeError):
        imported(body)
    fixed = import_model(model(body), {"past": 3, "tokens": 5})
    assert run(fixed, 3, 5).shape == (2, 2)


CACHES = """
    key = Gather <axis = 0> (past, zero)
    moved = Transpose <perm = [1, 2, 3, 0]> (key)
    longer = Concat <axis = 3> (moved, new)
    all = Identity (longer)
"""


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        (CACHES, {"p"}),
        (CACHES.replace("moved, new", "new, moved"), {"n"}),  # the others are the old ones
        (CACHES.replace("Identity (longer)", "Relu (longer)"), set()),  # another value
        ("all = Attention (new, new, new, one, past)", {"p"}),
        ("all = Attention (new, new, new, past)", set()),
    ],
)
def test_lengths_of_caches(nodes: str, found: set[str]) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["" : 24]>
    step (float[2, b, p, 4] past, float[b, 4, n, 1] new) => (float[c, d, e, f] all)
    <int64 zero = {{0}}, float[1] one = {{1}}>
    {{ {nodes} }}
    """
    assert cache_lengths(onnx.parser.parse_model(text).graph) == found
