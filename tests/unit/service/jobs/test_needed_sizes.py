"""An open dimension takes the one size that an operator needs, for each such operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.service.jobs.plan.planning import ModelRequest, plan_sizes

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Shape = Sequence[int | str]

CASES: Mapping[str, tuple[Any, Mapping[str, tuple[int, Shape]], int]] = {
    "a bias of a convolution": (
        helper.make_node("Conv", ["x", "w", "b"], ["y"]),
        {"x": (FLOAT, [1, 2, 5, 5]), "w": (FLOAT, [3, 2, 1, 1]), "b": (FLOAT, ["d"])},
        3,
    ),
    "a window of a convolution": (
        helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3]),
        {"x": (FLOAT, [1, 2, 5, 5]), "w": (FLOAT, [3, 2, 3, "d"])},
        3,
    ),
    "channels of a transposed convolution": (
        helper.make_node("ConvTranspose", ["x", "w"], ["y"]),
        {"x": (FLOAT, [1, "d", 5, 5]), "w": (FLOAT, [4, 2, 3, 3])},
        4,
    ),
    "channels of a batch normalisation": (
        helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y"]),
        {"x": (FLOAT, [2, "d", 3]), **{name: (FLOAT, [6]) for name in "sbmv"}},
        6,
    ),
    "a label of Einsum": (
        helper.make_node("Einsum", ["x", "z"], ["y"], equation="ij,jk->ik"),
        {"x": (FLOAT, [2, "d"]), "z": (FLOAT, [5, 4])},
        5,
    ),
    "a diagonal of Einsum": (
        helper.make_node("Einsum", ["x"], ["y"], equation="ii->i"),
        {"x": (FLOAT, [7, "d"])},
        7,
    ),
    "updates of ScatterElements": (
        helper.make_node("ScatterElements", ["x", "i", "u"], ["y"]),
        {"x": (FLOAT, [5, 4]), "i": (INT64, [3, 4]), "u": (FLOAT, ["d", 4])},
        3,
    ),
    "updates of ScatterND": (
        helper.make_node("ScatterND", ["x", "i", "u"], ["y"]),
        {"x": (FLOAT, [5, 4]), "i": (INT64, [3, 1]), "u": (FLOAT, [3, "d"])},
        4,
    ),
    "batches of GatherND": (
        helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=1),
        {"x": (FLOAT, [3, 4]), "i": (INT64, ["d", 1])},
        3,
    ),
    "lengths of ReverseSequence": (
        helper.make_node("ReverseSequence", ["x", "i"], ["y"], batch_axis=0, time_axis=1),
        {"x": (FLOAT, [3, 4]), "i": (INT64, ["d"])},
        3,
    ),
    "an operand of a layer normalisation": (
        helper.make_node("LayerNormalization", ["x", "s"], ["y"]),
        {"x": (FLOAT, [1, 6]), "s": (FLOAT, ["d", 6])},
        1,
    ),
    "a square of Det": (helper.make_node("Det", ["x"], ["y"]), {"x": (FLOAT, [3, "d"])}, 3),
    "states of an LSTM": (
        helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2),
        {"x": (FLOAT, [3, 1, 4]), "w": (FLOAT, [1, 8, 4]), "r": (FLOAT, [1, "d", 2])},
        8,
    ),
    "weights of MatMulNBits": (
        helper.make_node(
            "MatMulNBits", ["x", "q", "c"], ["y"], domain="com.microsoft", K=32, N=4, block_size=32
        ),
        {"x": (FLOAT, [2, "d"])},
        32,
    ),
}
CONSTANTS = {"q": np.ones((4, 1, 16), np.uint8), "c": np.ones(4, np.float32)}


def model(node: Any, inputs: Mapping[str, tuple[int, Shape]]) -> bytes:
    """The node of inputs with these types; its other operands are constant."""
    graph = helper.make_graph(
        [node],
        "needed",
        [helper.make_tensor_value_info(name, *each) for name, each in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in CONSTANTS.items() if n in node.input],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("case", CASES)
def test_a_dimension_takes_the_size_that_an_operator_needs(case: str) -> None:
    node, inputs, size = CASES[case]
    (planned,) = plan_sizes(ModelRequest(model(node, inputs)), {})
    asked = {n: [size if dim == "d" else dim for dim in each] for n, (_, each) in inputs.items()}
    assert {name: list(planned.graph.types[name].shape) for name in inputs} == asked
    assert any(note.startswith(f"d={size}, since") for note in planned.notes)


def test_rows_that_broadcast_only_if_they_are_one() -> None:
    """Twice as many rows and once as many broadcast where those are one."""
    nodes = [helper.make_node("Concat", ["x", "x"], ["c"], axis=0)]
    nodes.append(helper.make_node("Add", ["c", "x"], ["y"]))
    value = [helper.make_tensor_value_info(n, FLOAT, d) for n, d in (("x", ["d", 3]), ("y", None))]
    graph = helper.make_graph(nodes, "rows", value[:1], value[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (planned,) = plan_sizes(ModelRequest(made.SerializeToString()), {})
    assert planned.graph.types["x"].shape == (1, 3)
