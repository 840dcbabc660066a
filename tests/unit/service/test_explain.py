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
