"""Conversion of float64 to float16 rounds once: halves, the middles between them, neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import compiler


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_double_to_half_is_exact() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.sort(halves[np.isfinite(halves)].astype(np.float64))
    middle = (finite[:-1] + finite[1:]) / 2
    special = [np.inf, -np.inf, np.nan, 65519.999999, 65520.0, 1e300, -1e300, 5e-324, -0.0]
    above, below = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
    x = np.concatenate([finite, middle, above, below, special])
    infos = [
        helper.make_tensor_value_info("x", TensorProto.DOUBLE, x.shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT16, x.shape),
    ]
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)
    graph = helper.make_graph([node], "cast", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    (found,) = compiler.compile_model(model).run([x])
    np.testing.assert_array_equal(found, x.astype(np.float16))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x.astype(np.float16)))
