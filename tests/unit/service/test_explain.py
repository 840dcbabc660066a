"""What `explain` holds kernels against."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.jobs.explain import explain
from service.jobs.planning import ModelRequest, plan_model
from tests.unit.service.devices import SPEEDS, FakeDevice


def product(op: str) -> bytes:
    """(16, 64) by a constant (64, 32), of float32 or of bytes."""
    kind, stored = (TensorProto.FLOAT, np.float32) if op == "MatMul" else (TensorProto.UINT8, "i1")
    graph = helper.make_graph(
        [helper.make_node(op, ["a", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("a", kind, [16, 64])],
        [helper.make_value_info("y", helper.make_tensor_type_proto(kind_of(op), [16, 32]))],
        [numpy_helper.from_array(np.ones((64, 32), stored), "w")],
    )
    opsets = [helper.make_opsetid("", 13)]
    return bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())


def nibbles(level: int) -> bytes:
    """(16, 64) by 4-bit weights (32, 64) in blocks of 32; at level 4 of activations of int8."""
    weight = np.full((32, 2, 16), 0x9A, np.uint8)
    sizes = {"K": 64, "N": 32, "bits": 4, "block_size": 32, "accuracy_level": level}
    graph = helper.make_graph(
        [helper.make_node("MatMulNBits", ["a", "w", "s"], ["y"], domain="com.microsoft", **sizes)],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [16, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 32])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.ones((32, 2), np.float32), "s"),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())


@pytest.mark.parametrize(("level", "at_once"), [(0, 1), (4, 4)])
def test_weights_of_four_bits_take_as_long_as_what_they_are_multiplied_as(
    level: int, at_once: int
) -> None:
    planned = plan_model(ModelRequest(nibbles(level), "cascadelake"))
    kernels = explain(planned, None, FakeDevice()).kernels
    (kernel,) = (k for k in kernels if k.schedule.algorithm == "blocks")
    assert kernel.executed_flops == 2 * 16 * 64 * 32
    assert kernel.bound is not None
    expected = kernel.executed_flops / at_once / SPEEDS.flops_per_second
    assert kernel.bound.compute_seconds == pytest.approx(expected)


def kind_of(op: str) -> int:
    return int(TensorProto.FLOAT if op == "MatMul" else TensorProto.INT32)


@pytest.mark.parametrize(("op", "at_once"), [("MatMul", 1), ("MatMulInteger", 4)])
def test_a_group_of_products_takes_as_long_as_one(op: str, at_once: int) -> None:
    """The peak is that of float32: a kernel of bytes would be beyond it."""
    planned = plan_model(ModelRequest(product(op), "cascadelake"))
    (kernel,) = explain(planned, None, FakeDevice()).kernels
    assert kernel.executed_flops == 2 * 16 * 64 * 32
    assert kernel.bound is not None
    expected = kernel.executed_flops / at_once / SPEEDS.flops_per_second
    assert kernel.bound.compute_seconds == pytest.approx(expected)
