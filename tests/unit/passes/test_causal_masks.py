"""Causal masks that are counted at run time become `causal`, and whatever is not one stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.compiler.driver import optimise
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.targets.host import resolve_target

TARGET = resolve_target("x86-64-v3")
HEAD = 8
LOW = np.float32(-3.4e38)
MaskNodes = list[tuple[str, list[str], dict[str, Any]]]


def attention_model(mask: MaskNodes, tokens: int | str = "n") -> ModelProto:
    """Attention of n new tokens over `past` and new ones; the mask's last node adds to the scores.

    Constants: zero, one, two (int64 scalars), d0, d1 (axes), each and second (tables of positions),
    low and nothing (float32), and the values n, past and all.
    """
    shared: MaskNodes = [
        ("Concat", ["old", "new"], {"name": "k", "axis": 2}),
        ("Shape", ["q"], {"name": "qs"}),
        ("Shape", ["k"], {"name": "ks"}),
        ("Gather", ["qs", "two"], {"name": "n"}),
        ("Gather", ["ks", "two"], {"name": "all"}),
        ("Sub", ["all", "n"], {"name": "past"}),
        ("Transpose", ["k"], {"name": "turned", "perm": [0, 1, 3, 2]}),
        ("MatMul", ["q", "turned"], {"name": "scores"}),
    ]
    final = mask[-1][2]["name"]
    ends: MaskNodes = [
        ("Add", ["scores", final], {"name": "masked"}),
        ("Softmax", ["masked"], {"name": "weights", "axis": -1}),
        ("MatMul", ["weights", "k"], {"name": "y"}),
    ]
    nodes = []
    for op, inputs, attrs in (*shared, *mask, *ends):
        rest = {key: value for key, value in attrs.items() if key != "name"}
        nodes.append(helper.make_node(op, inputs, [attrs["name"]], **rest))
    constants = {
        "zero": np.int64(0),
        "one": np.int64(1),
        "two": np.int64(2),
        "d0": np.int64([0]),
        "d1": np.int64([1]),
        "low": LOW,
        "nothing": np.float32(0),
        "half": np.float32(-0.5),
        "each": np.arange(512),
        "second": np.arange(0, 1024, 2),
    }
    graph = helper.make_graph(
        nodes,
        "mask",
        [
            helper.make_tensor_value_info("q", TensorProto.FLOAT, [1, 2, tokens, HEAD]),
            helper.make_tensor_value_info("old", TensorProto.FLOAT, [1, 2, "past", HEAD]),
            helper.make_tensor_value_info("new", TensorProto.FLOAT, [1, 2, tokens, HEAD]),
        ],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def imported(proto: ModelProto, tokens: int | str = "n") -> Graph:
    dims = {"past": "0..200"} | ({"n": "1..64"} if isinstance(tokens, str) else {})
    return import_model(proto, dims)


KEYS: MaskNodes = [
    ("Range", ["zero", "all", "one"], {"name": "keys"}),
    ("Unsqueeze", ["keys", "d0"], {"name": "row"}),
]
QUERIES: MaskNodes = [
    ("Range", ["past", "all", "one"], {"name": "queries"}),
    ("Unsqueeze", ["queries", "d1"], {"name": "column"}),
]


def where(op: str, first: str, second: str, *choice: str) -> MaskNodes:
    return [(op, [first, second], {"name": "is"}), ("Where", ["is", *choice], {"name": "mask"})]


AHEAD = ("low", "nothing")
SEEN = ("nothing", "low")
CAUSAL: dict[str, MaskNodes] = {
    "keys greater": [*KEYS, *QUERIES, *where("Greater", "row", "column", *AHEAD)],
    "queries less": [*KEYS, *QUERIES, *where("Less", "column", "row", *AHEAD)],
    "keys less or equal": [*KEYS, *QUERIES, *where("LessOrEqual", "row", "column", *SEEN)],
    "queries greater or equal": [*KEYS, *QUERIES, *where("GreaterOrEqual", "column", "row", *SEEN)],
    "not ahead": [
        *KEYS,
        *QUERIES,
        ("Greater", ["row", "column"], {"name": "ahead"}),
        ("Not", ["ahead"], {"name": "seen"}),
        ("Where", ["seen", *SEEN], {"name": "mask"}),
    ],
    "one more, and less": [
        *KEYS,
        *QUERIES,
        ("Add", ["column", "one"], {"name": "next"}),
        *where("Less", "row", "next", *SEEN),
    ],
    "positions in another type": [
        *KEYS,
        *QUERIES,
        ("Cast", ["row"], {"name": "row32", "to": TensorProto.INT32}),
        ("Cast", ["column"], {"name": "column32", "to": TensorProto.INT32}),
        *where("Greater", "row32", "column32", *AHEAD),
    ],
    "positions from a table": [
        ("Unsqueeze", ["all", "d0"], {"name": "end"}),
        ("Slice", ["each", "d0", "end"], {"name": "keys"}),
        ("Unsqueeze", ["keys", "d0"], {"name": "row"}),
        *QUERIES,
        *where("Greater", "row", "column", *AHEAD),
    ],
    "the past added to positions": [
        *KEYS,
        ("Range", ["zero", "n", "one"], {"name": "places"}),
        ("Add", ["places", "past"], {"name": "queries"}),
        ("Unsqueeze", ["queries", "d1"], {"name": "column"}),
        *where("Greater", "row", "column", *AHEAD),
    ],
    "leading dimensions": [
        *KEYS,
        *QUERIES,
        *where("Greater", "row", "column", *AHEAD)[:1],
        ("Where", ["is", *AHEAD], {"name": "flat"}),
        ("Unsqueeze", ["flat", "d0"], {"name": "three"}),
        ("Unsqueeze", ["three", "d0"], {"name": "mask"}),
    ],
}

OTHER: dict[str, MaskNodes] = {
    "the next key is seen too": [
        *KEYS,
        *QUERIES,
        ("Add", ["column", "one"], {"name": "next"}),
        *where("Greater", "row", "next", *AHEAD),
    ],
    "a key of its own is not seen": [
        *KEYS,
        *QUERIES,
        ("Add", ["column", "one"], {"name": "next"}),
        *where("GreaterOrEqual", "next", "row", *SEEN),
    ],
    "the past is hidden": [*KEYS, *QUERIES, *where("Less", "row", "column", *AHEAD)],
    "hidden by a little": [*KEYS, *QUERIES, *where("Greater", "row", "column", "half", "nothing")],
    "what is seen is lower": [*KEYS, *QUERIES, *where("Greater", "row", "column", "low", "half")],
    "positions that wrap around": [
        *KEYS,
        *QUERIES,
        ("Cast", ["row"], {"name": "row8", "to": TensorProto.INT8}),
        ("Cast", ["column"], {"name": "column8", "to": TensorProto.INT8}),
        *where("Greater", "row8", "column8", *AHEAD),
    ],
    "every second position": [
        ("Unsqueeze", ["all", "d0"], {"name": "end"}),
        ("Slice", ["second", "d0", "end"], {"name": "keys"}),
        ("Unsqueeze", ["keys", "d0"], {"name": "row"}),
        *QUERIES,
        *where("Greater", "row", "column", *AHEAD),
    ],
    "positions from nought": [
        *KEYS,
        ("Range", ["zero", "n", "one"], {"name": "queries"}),
        ("Unsqueeze", ["queries", "d1"], {"name": "column"}),
        *where("Greater", "row", "column", *AHEAD),
    ],
}


def attention_of(graph: Graph) -> Node:
    (node,) = (node for node in graph.nodes if node.op == "attention")
    return node


def agrees(proto: ModelProto, graph: Graph, n: int, past: int) -> None:
    values = {"n": n, "past": past}
    random = np.random.default_rng(n)
    inputs = {
        "q": random.normal(size=(1, 2, n, HEAD)).astype(np.float32),
        "old": random.normal(size=(1, 2, past, HEAD)).astype(np.float32),
        "new": random.normal(size=(1, 2, n, HEAD)).astype(np.float32),
    }
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)
    (found,) = run_graph(graph.at(values), inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_mask_that_counts_is_causal(name: str) -> None:
    proto = attention_model(CAUSAL[name])
    graph = optimise(imported(proto), Mode(TARGET))
    node = attention_of(graph)
    assert len(node.inputs) == 3
    assert node.attr("causal") == 1
    assert str(node.attr("past")) == "past"
    assert not any(n.op in ("iota", "where") for n in graph.nodes)
    for n, past in [(1, 0), (1, 9), (7, 0), (5, 12)]:
        agrees(proto, graph, n, past)


@pytest.mark.parametrize("name", OTHER)
def test_a_mask_that_hides_anything_else_stays(name: str) -> None:
    proto = attention_model(OTHER[name])
    graph = optimise(imported(proto), Mode(TARGET))
    node = attention_of(graph)
    assert len(node.inputs) == 4
    assert not node.attr("causal")
    for n, past in [(3, 2), (5, 12), (5, 200)]:
        agrees(proto, graph, n, past)


def test_a_single_query_needs_no_mask() -> None:
    proto = attention_model(CAUSAL["keys greater"], tokens=1)
    graph = optimise(imported(proto, tokens=1), Mode(TARGET))
    node = attention_of(graph)
    assert len(node.inputs) == 3
    assert not node.attr("causal")
    agrees(proto, graph, 1, 9)
