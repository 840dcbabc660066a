"""The interface of onnx.backend.base around compiled models."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from tilewright.compiler.bindings import onnx_backend
from tilewright.compiler.errors import CompilerError, InvalidInputError, UnsupportedOperatorError


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
    with pytest.raises(InvalidInputError, match="there are 1 inputs, expected 2"):
        rep.run([A])


def test_run_model_and_run_node() -> None:
    (found,) = onnx_backend.run_model(model(), [A, B])
    np.testing.assert_array_equal(found, np.maximum(A + B, 0))
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    (found,) = onnx_backend.run_node(node, [A, np.array([3, 2])])
    np.testing.assert_array_equal(found, A.reshape(3, 2))
    with pytest.raises(UnsupportedOperatorError, match="MaxRoiPool"):
        onnx_backend.run_node(helper.make_node("MaxRoiPool", ["x", "r"], ["y"]), [A, B])


def test_the_device_is_the_cpu() -> None:
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    assert not onnx_backend.supports_device("TOASTER")
    with pytest.raises(CompilerError, match="'CUDA'"):
        onnx_backend.prepare(model(), "CUDA")


def test_inputs_that_decide_shapes_are_compiled_for() -> None:
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3)),
        helper.make_tensor_value_info("axes", TensorProto.INT64, (1,)),
        helper.make_empty_tensor_value_info("y"),
    ]
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    graph = helper.make_graph([node], "m", infos[:2], infos[2:])
    rep = onnx_backend.prepare(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    )
    for axis in (0, 1, 0):
        feeds = {"x": A, "axes": np.array([axis])}
        np.testing.assert_array_equal(rep.run(feeds)[0], A.sum(axis))
        assert rep.executable(feeds) is rep.executable(dict(feeds))
    with pytest.raises(InvalidInputError, match="'axes' is missing"):
        rep.run({"x": A})


def test_open_dimensions_are_those_of_the_inputs() -> None:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ("rows", 3)) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "m", infos[:1], infos[1:])
    rep = onnx_backend.prepare(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    )
    for rows in (1, 2, 9, 1):
        x = np.arange(-rows, 2 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(rep.run([x])[0], np.maximum(x, 0))
        assert rep.executable({"x": x}) is rep.executable({"x": x})
    with pytest.raises(InvalidInputError, match=r"expected \(rows, 3\)"):
        rep.run([A[:, :2]])


def test_a_shape_that_is_not_stated_and_one_that_is_open_beside_values() -> None:
    """The rank of `x` is seen at a run; `axes` decides, while `rows` is open, too."""
    shapes = {"x": None, "z": ("rows", 3), "axes": (1,)}
    infos = [
        helper.make_tensor_value_info(
            name, TensorProto.INT64 if name == "axes" else TensorProto.FLOAT, shape
        )
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("ReduceSum", ["z", "axes"], ["s"], keepdims=0),
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in "ys"]
    graph = helper.make_graph(nodes, "m", infos, results)
    rep = onnx_backend.prepare(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    )
    for x_shape, rows, axis in (((2,), 4, 0), ((2, 5), 4, 1), ((), 3, 1), ((2,), 5, 0)):
        x = np.arange(np.prod(x_shape), dtype=np.float32).reshape(x_shape)
        z = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        y, s = rep.run({"x": x, "z": z, "axes": np.array([axis])})
        np.testing.assert_array_equal(y, -x)
        np.testing.assert_array_equal(s, z.sum(axis))
    assert rep.decisive == ("axes",)


def test_bfloat16_scalars_are_numbers() -> None:
    """2 * x and 2 + x, where both constants are one element: exact in bfloat16."""
    infos = [helper.make_tensor_value_info(n, TensorProto.BFLOAT16, (3,)) for n in "xy"]
    two = helper.make_tensor("two", TensorProto.BFLOAT16, (), [2.0])
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["m"]),
        helper.make_node("Add", ["m", "two"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "m", infos[:1], infos[1:], [two])
    x = np.array([-1.5, 0.0, 3.0], ml_dtypes.bfloat16)
    (found,) = onnx_backend.run_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), [x]
    )
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.astype(np.float32), [-1.0, 2.0, 8.0])


def test_tensors_without_elements() -> None:
    """The sum over nothing is 0; a slice of nothing is nothing, and both come out of one run."""
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 0))]
    results = [helper.make_empty_tensor_value_info(name) for name in ("total", "all", "top")]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Relu", ["x"], ["all"]),
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=1),
    ]
    graph = helper.make_graph(nodes, "m", infos, results)
    found = onnx_backend.run_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]),
        [np.zeros((2, 0), np.float32)],
    )
    assert found[0] == 0.0
    assert found[1].shape == (2, 0)
    np.testing.assert_array_equal(found[2], [[-np.inf]])
