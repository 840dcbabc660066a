"""The mended onnx.reference agrees with ONNX Runtime where onnx.reference alone does not."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.differential.reference import evaluator

WINDOWS = [
    ((2, 2), (0, 1, 0, 1)),
    ((3, 2), (2, 0, 1, 1)),
    ((2,), (1, 0)),
    ((2, 3, 1), (1, 2, 0, 0, 1, 0)),
]


@pytest.mark.parametrize(("kernel", "pads"), WINDOWS)
def test_a_max_pool_pads_each_dimension_by_its_own(
    kernel: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    shape = (1, 2, *(4, 5, 3)[: len(kernel)])
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=kernel, pads=pads)
    graph = helper.make_graph(
        [node],
        "pool",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    feeds = {"x": np.random.default_rng(0).permutation(120)[: np.prod(shape)]}
    feeds["x"] = feeds["x"].astype(np.float32).reshape(shape)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (reference,) = evaluator(model).run(None, feeds)
    np.testing.assert_array_equal(reference, expected)
    np.testing.assert_array_equal(tilewright.compile_model(model).run(feeds)[0], expected)
