"""The calls of TensorFlow.js compute the ONNX model's results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.web_tensorflow import NoCallError, write_calls

CHANNELS, FILTERS, SIZE = 3, 5, 4


def model(nodes: list[onnx.NodeProto], **constants: np.ndarray) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, CHANNELS, SIZE, SIZE))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    return helper.make_model(helper.make_graph(nodes, "small", [x], [y], held))


def test_a_normalisation_and_an_activation_are_part_of_the_convolution(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    image = rng.standard_normal((1, CHANNELS, SIZE, SIZE), np.float32)
    w = rng.standard_normal((FILTERS, CHANNELS, 1, 1), np.float32)
    s, b, m, v = (rng.uniform(0.5, 2, FILTERS).astype(np.float32) for _ in range(4))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=(1, 1)),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], epsilon=1e-3),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    write_calls(model(nodes, w=w, s=s, b=b, m=m, v=v), image, tmp_path)

    said = json.loads((tmp_path / "tensorflow.json").read_text())
    (call,) = said["calls"]
    assert call["call"] == "convolution" and call["activation"] == "relu"
    assert call["output"] == said["output"] == "y"
    kernel, bias = np.split(
        np.fromfile(tmp_path / "tensorflow.bin", np.float32), [CHANNELS * FILTERS]
    )
    given = np.fromfile(tmp_path / "tensorflow-input.bin", np.float32).reshape(-1, CHANNELS)
    found = np.maximum(given @ kernel.reshape(CHANNELS, FILTERS) + bias, 0)
    plain = np.einsum("fc,chw->hwf", w[:, :, 0, 0], image[0])
    wanted = np.maximum((plain - m) / np.sqrt(v + 1e-3) * s + b, 0)
    assert np.allclose(found.reshape(wanted.shape), wanted, atol=1e-5)


def test_a_value_that_others_read_keeps_its_activation_apart(tmp_path: Path) -> None:
    w = np.ones((CHANNELS, CHANNELS, 1, 1), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=(1, 1)),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Add", ["c", "r"], ["y"]),
    ]
    write_calls(model(nodes, w=w), np.zeros((1, CHANNELS, SIZE, SIZE), np.float32), tmp_path)
    calls = json.loads((tmp_path / "tensorflow.json").read_text())["calls"]
    assert [each["call"] for each in calls] == ["convolution", "relu", "add"]
    assert calls[0]["activation"] == "linear"


def test_what_is_not_translated_is_said(tmp_path: Path) -> None:
    image = np.zeros((1, CHANNELS, SIZE, SIZE), np.float32)
    with pytest.raises(NoCallError, match="'y': Erf"):
        write_calls(model([helper.make_node("Erf", ["x"], ["y"])]), image, tmp_path)
    with pytest.raises(NoCallError, match="'x': the input is no image"):
        write_calls(model([helper.make_node("Relu", ["x"], ["y"])]), image[0, 0], tmp_path)
