"""The interface of onnx.backend.base around compiled models."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from compiler import onnx_backend
from compiler.errors import CompilerError, InvalidInputError, UnsupportedOperatorError


def model() -> ModelProto:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3)) for n in "aby"]
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    graph = helper.make_graph(nodes, "m", infos[:2], infos[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


A = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
B = np.ones((2, 3), np.float32)


def test_prepare_and_run() -> None:
    rep = onnx_backend.prepare(model(), "CPU")
    for inputs in ([A, B], {"a": A, "b": B}):
        outputs = rep.run(inputs)
        np.testing.assert_array_equal(outputs[0], np.maximum(A + B, 0))
        assert outputs.y is outputs[0]  # type: ignore[attr-defined]
    with pytest.raises(InvalidInputError, match="1 inputs instead of 2"):
        rep.run([A])


def test_run_model_and_run_node() -> None:
    (found,) = onnx_backend.run_model(model(), [A, B])
    np.testing.assert_array_equal(found, np.maximum(A + B, 0))
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    (found,) = onnx_backend.run_node(node, [A, np.array([3, 2])])
    np.testing.assert_array_equal(found, A.reshape(3, 2))
    with pytest.raises(UnsupportedOperatorError, match="TopK"):
        onnx_backend.run_node(helper.make_node("TopK", ["x", "k"], ["v", "i"]), [A, np.array([1])])


def test_the_device_is_the_cpu() -> None:
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    assert not onnx_backend.supports_device("TOASTER")
    with pytest.raises(CompilerError, match="'CUDA'"):
        onnx_backend.prepare(model(), "CUDA")
