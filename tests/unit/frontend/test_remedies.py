"""Errors of the import name the offender by its user's name for it, and the option to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.sizes import Dimension


def model(path: Path, node: Any, initializers: list[Any], shape: list[Any]) -> Path:
    """One node, x -> y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph([node], "one", [x], [y], initializers)
    opsets = [helper.make_opsetid("", 19)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_an_element_type_has_its_name(tmp_path: Path) -> None:
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)
    with pytest.raises(CompilerError, match="to ONNX element type FLOAT8E4M3FN"):
        import_model(model(tmp_path / "m.onnx", cast, [], [2]))


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (
            helper.make_node("Resize", ["x", "", "s"], ["y"], mode="liner"),
            "attribute 'mode' is 'liner', expected nearest, linear or cubic; did you mean 'linear'",
        ),
        (
            helper.make_node("Relux", ["x"], ["y"]),
            "operator Relux .*not implemented; did you mean 'Relu'",
        ),
        (
            helper.make_node("LSTM", ["x", "s", "s"], ["y"], hidden_size=2),
            r"LSTM 'y': X \(input 0\) is \(2\), expected three dimensions",
        ),
        (
            helper.make_node("ConvTranspose", ["x", "s"], ["y"]),
            r"ConvTranspose 'y': the weight \(input 1\) is \(1\), expected a row for each channel",
        ),
        (
            helper.make_node("GroupNormalization", ["x", "s", "s"], ["y"], num_groups=3),
            "attribute 'num_groups' is 3, which does not divide the channels",
        ),
        (
            helper.make_node("ScatterElements", ["x", "i", "s"], ["y"], reduction="added"),
            "attribute 'reduction' is 'added', expected none, add, mul, max or min",
        ),
        (
            helper.make_node("RandomUniform", [], ["y"], dtype=17, shape=[2]),
            "attribute 'dtype' is the element type FLOAT8E4M3FN, expected a float",
        ),
    ],
)
def test_an_attribute_is_named_with_its_valid_values(tmp_path: Path, node: Any, said: str) -> None:
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, (1,), [2]),
        helper.make_tensor("i", TensorProto.INT64, (1,), [0]),
    ]
    with pytest.raises(CompilerError, match=said):
        import_model(model(tmp_path / "m.onnx", node, constants, [2]))


@pytest.mark.parametrize(("padding", "size"), [(64, 128), (3, 4)])
def test_a_size_is_named_that_a_padding_can_reflect(
    tmp_path: Path, padding: int, size: int
) -> None:
    pads = helper.make_tensor("p", TensorProto.INT64, (2,), [0, padding])
    node = helper.make_node("Pad", ["x", "p"], ["y"], mode="reflect")
    path = model(tmp_path / "m.onnx", node, [pads], [None])
    said = (
        rf"padding of {padding} reflects .* elements: give it more, such as --dim 'x\[0\]={size}'"
    )
    with pytest.raises(CompilerError, match=said):
        import_model(path, {"x[0]": Dimension("x[0]", 1, padding)})
    graph = import_model(path, {"x[0]": size})
    assert graph.types[graph.outputs[0]].shape == (size + padding,)
