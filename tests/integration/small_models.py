"""Twelve small models, one of each common kind, with their open dimensions left open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.collection_quantised import QUANTISED

FLOAT, DOUBLE, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.INT64,
    TensorProto.BOOL,
)
Port = tuple[str, int, Any]


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    constants: Mapping[str, Any] | None = None,
    domains: Sequence[str] = (),
) -> Any:
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*port) for port in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(name, 3) for name in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def normal(*shape: int, dtype: type = np.float32, scale: float = 0.2) -> Any:
    return (np.random.default_rng(shape).standard_normal(shape) * scale).astype(dtype)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """A node; names are separated by blanks."""
    return helper.make_node(operator, inputs.split(" "), outputs.split(" "), **attributes)


def perceptron(kind: int = FLOAT, dtype: type = np.float32) -> Any:
    """Any number of rows."""
    weights = {"w1": normal(16, 24, dtype=dtype), "w2": normal(24, 4, dtype=dtype)}
    nodes = [
        node("MatMul", "x w1", "h"),
        node("Relu", "h", "r"),
        node("MatMul", "r w2", "y"),
    ]
    return model(nodes, [("x", kind, ["batch", 16])], [("y", kind, ["batch", 4])], weights)


def convolutions() -> Any:
    """Images of any sides."""
    weights = {"w1": normal(8, 3, 3, 3), "w2": normal(4, 8, 1, 1)}
    nodes = [
        node("Conv", "x w1", "h", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "h", "r"),
        node("Conv", "r w2", "c"),
        node("GlobalAveragePool", "c", "y"),
    ]
    sides = ["n", 3, "height", "width"]
    return model(nodes, [("x", FLOAT, sides)], [("y", FLOAT, ["n", 4, 1, 1])], weights)


def recogniser() -> Any:
    """Lines of text of any width, and of a height that the model states nowhere: 16."""
    weights = {"w1": normal(8, 3, 16, 3), "w2": normal(8, 12), "axes": np.array([2])}
    nodes = [
        node("Conv", "x w1", "h", pads=[0, 1, 0, 1], strides=[1, 2]),
        node("Relu", "h", "r"),
        node("Squeeze", "r axes", "s"),
        node("Transpose", "s", "t", perm=[0, 2, 1]),
        node("MatMul", "t w2", "l"),
        node("Softmax", "l", "y", axis=-1),
    ]
    sides = ["n", 3, "height", "width"]
    return model(nodes, [("x", FLOAT, sides)], [("y", FLOAT, ["n", None, 12])], weights)


def encoder() -> Any:
    """Tokens of any length up to 64, in one layer of attention."""
    weights = {n: normal(16, 16) for n in ("wq", "wk", "wv", "wo")}
    constants = {
        **weights,
        "table": normal(50, 16),
        "places": normal(64, 16),
        "zero": np.array([0]),
        "one": np.array([1]),
        "scale": np.float32(0.25),
        "gain": np.ones(16, np.float32),
    }
    nodes = [
        node("Gather", "table tokens", "e"),
        node("Shape", "tokens", "shape"),
        node("Slice", "shape one two zero", "length"),
        node("Slice", "places zero length zero", "p"),
        node("Add", "e p", "x"),
        *(node("MatMul", f"x w{each}", each) for each in "qkv"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "raw"),
        node("Mul", "raw scale", "scores"),
        node("Softmax", "scores", "shares", axis=-1),
        node("MatMul", "shares v", "mixed"),
        node("MatMul", "mixed wo", "o"),
        node("Add", "o x", "sum"),
        node("LayerNormalization", "sum gain", "y"),
    ]
    shape = ["batch", "length"]
    outputs: list[Port] = [("y", FLOAT, [*shape, 16])]
    return model(nodes, [("tokens", INT64, shape)], outputs, {**constants, "two": np.array([2])})


def recurrent() -> Any:
    """An LSTM of any number of steps."""
    weights = {"w": normal(1, 32, 6), "r": normal(1, 32, 8), "axes": np.array([1])}
    nodes = [node("LSTM", "x w r", "h", hidden_size=8), node("Squeeze", "h axes", "y")]
    outputs: list[Port] = [("y", FLOAT, ["steps", 1, 8])]
    return model(nodes, [("x", FLOAT, ["steps", 1, 6])], outputs, weights)


def reflected() -> Any:
    """A sequence that is longer by its reflection at both ends, as before a spectrum."""
    nodes = [node("Pad", "x p", "q", mode="reflect"), node("Relu", "q", "y")]
    shape = ["batch", "samples"]
    pads = {"p": np.array([0, 64, 0, 64])}
    return model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, ["batch", None])], pads)


def boxes() -> Any:
    """The best boxes of a detector's head, without those that cover each other."""
    constants = {
        "w": normal(8, 4),
        "s": normal(8, 1),
        "corners": np.array([0, 0, 1, 1], np.float32),
        "most": np.array([5]),
        "overlap": np.array([0.5], np.float32),
        "k": np.array([6]),
        "axes": np.array([2]),
    }
    nodes = [
        node("MatMul", "x w", "b"),
        node("Sigmoid", "b", "bs"),
        node("Add", "bs corners", "found"),
        node("MatMul", "x s", "raw"),
        node("Transpose", "raw", "scores", perm=[0, 2, 1]),
        node("NonMaxSuppression", "found scores most overlap", "kept"),
        node("Squeeze", "raw axes", "flat"),
        node("TopK", "flat k", "best places", axis=1),
    ]
    outputs: list[Port] = [("kept", INT64, [None, 3]), ("best", FLOAT, [1, 6])]
    return model(nodes, [("x", FLOAT, [1, 20, 8])], outputs, constants)


def branches() -> Any:
    """One of two products, which the value of an input chooses, as a sampling rate does."""

    def branch(weights: str, name: str) -> Any:
        product = node("MatMul", f"x {weights}", name)
        out = helper.make_tensor_value_info(name, FLOAT, ["batch", 4])
        return helper.make_graph([product], name, [], [out])

    nodes = [
        node("Equal", "rate high", "is_high"),
        node("If", "is_high", "h", then_branch=branch("w1", "a"), else_branch=branch("w2", "b")),
        node("Tanh", "h", "y"),
    ]
    constants = {"w1": normal(16, 4), "w2": normal(16, 4, scale=0.4), "high": np.int64(16000)}
    inputs: list[Port] = [("x", FLOAT, ["batch", 16]), ("rate", INT64, [])]
    return model(nodes, inputs, [("y", FLOAT, ["batch", 4])], constants)


def trees() -> Any:
    """Two trees with three leaves, as scikit-learn's converter writes a forest."""
    each = {
        "nodes_nodeids": [0, 1, 2, 3, 4],
        "nodes_featureids": [0, 0, 2, 0, 0],
        "nodes_values": [0.1, 0.0, -0.2, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 3, 0, 0],
        "nodes_falsenodeids": [2, 0, 4, 0, 0],
    }
    leaves = [1, 3, 4]
    forest = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0] * 5 + [1] * 5,
        target_treeids=[0] * 3 + [1] * 3,
        target_nodeids=leaves * 2,
        target_ids=[0] * 6,
        target_weights=[0.5, -1.0, 2.0, 0.25, 1.5, -0.75],
        **{name: values * 2 for name, values in each.items()},
    )
    shape = ["batch", 4]
    outputs: list[Port] = [("y", FLOAT, ["batch", 1])]
    return model([forest], [("x", FLOAT, shape)], outputs, domains=["ai.onnx.ml"])


SMALL: Mapping[str, Callable[[], Any]] = {
    "perceptron": perceptron,
    "convolutions": convolutions,
    "recogniser": recogniser,
    "encoder": encoder,
    "recurrent": recurrent,
    "qdq": QUANTISED["qdq-channels-17"],
    "dynamic": QUANTISED["dynamic-int8-13"],
    "float64": lambda: perceptron(DOUBLE, np.float64),
    "reflected": reflected,
    "boxes": boxes,
    "branches": branches,
    "trees": trees,
}
