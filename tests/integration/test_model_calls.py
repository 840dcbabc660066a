"""Compiled models as functions: their descriptions, and the ways to call them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import tilewright
from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.ports import ModelPort
from tilewright.service.cli import run


def scaled(batch: int | str, chosen: bool = False) -> ModelProto:
    """y = x * scale; with `chosen` also the positions of elements other than 0, whose number the
    data decide, and a sum over as many."""
    nodes = [helper.make_node("Mul", ["x", "scale"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])]
    if chosen:
        nodes.append(helper.make_node("NonZero", ["x"], ["found"]))
        nodes.append(helper.make_node("Shape", ["found"], ["size"]))
        nodes.append(helper.make_node("ConstantOfShape", ["size"], ["zeros"]))
        nodes.append(helper.make_node("ReduceSum", ["zeros"], ["z"], keepdims=0))
        outputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, []))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3]),
        helper.make_tensor_value_info("scale", TensorProto.FLOAT, [3]),
    ]
    graph = helper.make_graph(nodes, "scaled", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (scaled(2), "<Model x float32 (2, 3), scale float32 (3) -> y float32 (2, 3)>"),
        (
            scaled("batch"),
            "<Model x float32 (batch, 3), scale float32 (3) -> y float32 (batch, 3)>",
        ),
        (
            scaled("batch", chosen=True),
            "<Model x float32 (batch, 3), scale float32 (3) -> y float32 (batch, 3), z float32 ()>",
        ),
    ],
)
def test_a_compiled_model_is_a_function_that_says_what_it_takes(
    model: ModelProto, text: str
) -> None:
    compiled: tilewright.Model = tilewright.compile_model(model)
    assert isinstance(compiled, tilewright.Model)
    assert repr(compiled) == text
    assert [port.name for port in compiled.inputs] == ["x", "scale"]
    assert {port.dtype for port in (*compiled.inputs, *compiled.outputs)} == {DType.FLOAT32}
    x, scale = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([1, 2, 3])
    for outputs in (
        compiled(x, scale),
        compiled(scale=scale, x=x),
        compiled({"x": x, "scale": scale}),
    ):
        np.testing.assert_array_equal(outputs[0], x * scale)
        assert len(outputs) == len(compiled.outputs)
    with pytest.raises(tilewright.InvalidInputError, match="either in order or by name"):
        compiled(x, scale=scale)
    with pytest.raises(tilewright.InvalidInputError, match="got 1"):
        compiled(x)


def test_an_artifact_knows_the_types_of_open_inputs(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(scaled("batch").SerializeToString())
    assert run(["compile", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "artifact")]) == 0
    loaded = tilewright.load_artifact(tmp_path / "artifact")
    assert loaded.inputs == (
        ModelPort("x", DType.FLOAT32, ("batch", 3)),
        ModelPort("scale", DType.FLOAT32, (3,)),
    )
    assert loaded.outputs == (ModelPort("y", DType.FLOAT32, ("batch", 3)),)


@pytest.mark.parametrize("name", ["@rows", "s0", "%0x", "y.room"])
def test_a_dimension_may_have_a_name_like_those_that_the_compiler_gives(name: str) -> None:
    compiled = tilewright.compile_model(scaled(name), dims={name: "1..64"})
    assert compiled.inputs[0].shape == (name, 3)
    x, scale = np.ones((5, 3), np.float32), np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(compiled.run([x, scale])[0], x * scale)
