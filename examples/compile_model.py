"""Compile a small perceptron in memory, run it, and compare with NumPy.

python examples/compile_model.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import tilewright

FEATURES, HIDDEN, CLASSES = 64, 128, 10


def perceptron(seed: int) -> tuple[Any, dict[str, NDArray[np.float32]]]:
    """Build a small perceptron with random parameters.

    Returns the ONNX model, and its parameters by name.
    """
    random = np.random.default_rng(seed)
    parameters = {
        "w1": random.standard_normal((FEATURES, HIDDEN), np.float32) / np.float32(8),
        "b1": random.standard_normal(HIDDEN, np.float32),
        "w2": random.standard_normal((HIDDEN, CLASSES), np.float32) / np.float32(11),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["product"], "fc1"),
        helper.make_node("Add", ["product", "b1"], ["biased"], "bias1"),
        helper.make_node("Relu", ["biased"], ["hidden"], "relu1"),
        helper.make_node("MatMul", ["hidden", "w2"], ["scores"], "fc2"),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        # `batch` is a named dimension, whose size is passed to `compile_model`
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in parameters.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), parameters


def main() -> None:
    model, p = perceptron(seed=0)
    executable = tilewright.compile_model(model, target="host", threads=1, dims={"batch": 4})
    x = np.random.default_rng(1).standard_normal((4, FEATURES), np.float32)
    (scores,) = executable.run({"x": x})
    expected = np.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"]
    error = np.max(np.abs(scores - expected)) / np.max(np.abs(expected))
    print(f"scores {scores.shape}, largest error {error:.1e} of the largest score")
    if error > 1e-5:
        raise SystemExit("the compiled model disagrees with NumPy")
    try:
        executable.run({"x": x[:, :3]})
    except tilewright.CompilerError as refusal:
        print(f"a wrong shape is refused: {refusal}")


if __name__ == "__main__":
    main()
