"""Function bodies of schemas, in all types of floats that the schemas allow."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.compiler.dtypes import DType
from tilewright.compiler.frontend.catalogue import catalogue
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.ops.interpret import run_graph

LABELS = np.array([0, 2])
SIZE = np.array([2, 6])
OPERANDS: dict[str, list[list[Any]]] = {
    "Attention": [[(1, 2, 3, 4)] * 3],
    "CausalConvWithState": [[(1, 2, 5), (2, 1, 3)]],
    "CenterCropPad": [[(3, 4), SIZE]],
    "LinearAttention": [[(1, 3, 8)] * 3],
    "MeanVarianceNormalization": [[(2, 3, 4, 4)]],
    "NegativeLogLikelihoodLoss": [[(2, 3), LABELS], [(2, 3), LABELS, (3,)]],
    "RotaryEmbedding": [[(1, 2, 3, 4), (5, 2), (5, 2), np.array([[0, 1, 2]])]],
    "Shrink": [[(7,)]],
    "SoftmaxCrossEntropyLoss": [[(2, 3), LABELS], [(2, 3), LABELS, (3,)]],
    "SwiGLU": [[(2, 4), (2, 4)]],
}
"""Shapes of operands of the type in question, and integers."""

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "LinearAttention": {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"},
    "Shrink": {"lambd": 0.7, "bias": 0.3},
}
ENTRIES = [
    (entry.op_type, entry.opsets[1], dtype)
    for entry in catalogue()
    if entry.way == "function"
    for dtype in sorted(entry.types)
    if dtype.is_float and entry.op_type != "DynamicQuantizeLinear"
]


def graph_of(op_type: str, opset: int, dtype: DType, operands: list[Any]) -> Graph:
    kind = getattr(TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper()))
    inputs, constants = [], []
    for number, operand in enumerate(operands):
        if isinstance(operand, tuple):
            inputs.append(helper.make_tensor_value_info(f"x{number}", kind, operand))
        else:
            constants.append(numpy_helper.from_array(operand, f"x{number}"))
    names = [f"x{number}" for number in range(len(operands))]
    node = helper.make_node(op_type, names, ["y"], **ATTRIBUTES.get(op_type, {}))
    result = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([node], "function", inputs, [result], constants)
    imports = [helper.make_opsetid("", opset)]
    return import_model(helper.make_model(graph, opset_imports=imports, ir_version=10))


@pytest.mark.parametrize(("op_type", "opset", "dtype"), ENTRIES)
def test_a_body_is_imported_in_every_type_of_its_schema(
    op_type: str, opset: int, dtype: DType
) -> None:
    """And it computes the result of float64, as exactly as the type allows."""
    for operands in OPERANDS[op_type]:
        graph = graph_of(op_type, opset, dtype, operands)
        random = np.random.default_rng(1)
        wide = {name: random.uniform(-2, 2, graph.types[name].shape) for name in graph.inputs}
        narrow = {name: stored(array, dtype) for name, array in wide.items()}
        (found,) = run_graph(graph, narrow)
        assert graph.types[graph.outputs[0]].dtype is dtype
        if dtype in (DType.FLOAT32, DType.FLOAT64):
            (other,) = run_graph(
                graph_of(op_type, opset, DType.FLOAT32, operands),
                {name: array.astype(np.float32) for name, array in wide.items()},
            )
            np.testing.assert_allclose(found, other, rtol=2e-4, atol=1e-4)


def stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The array in a type, bfloat16 as its bits."""
    if dtype is DType.BFLOAT16:
        return array.astype(ml_dtypes.bfloat16).view(np.uint16)
    return array.astype(dtype.numpy)


@pytest.mark.parametrize(("dtype", "atol"), [(np.float16, 4e-3), (np.float64, 1e-8)])
@pytest.mark.parametrize("opset", [9, 13])
def test_mean_variance_normalization_in_other_floats(dtype: type, atol: float, opset: int) -> None:
    """Its body adds a constant of float32, whatever the type."""
    x = np.random.default_rng(2).uniform(-2, 2, (2, 3, 4, 4)).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    ports = [helper.make_tensor_value_info(name, kind, x.shape) for name in "xy"]
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"])
    graph = helper.make_graph([node], "normalised", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    (found,) = tilewright.compile_model(model).run({"x": x})
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=(0, 2, 3), keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=(0, 2, 3), keepdims=True))
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, centred / spread, rtol=0, atol=atol)
