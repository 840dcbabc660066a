"""Translates ONNX image models to TensorFlow.js calls and weights.

TensorFlow.js itself cannot read ONNX. Batch normalisation, bias and activation are fused into the
call of a convolution, as by TensorFlow.js' own converter; images are NHWC. `web_tensorflow.mjs`
executes the calls.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[np.float32]
_ACTIVATIONS = {"Relu": "relu", "Clip": "relu6"}
_LIMITS = (0.0, 6.0)
_WHOLE = {"GlobalAveragePool", "AveragePool"}


class NoCallError(Exception):
    """A model contains something that has no translation to TensorFlow.js."""


class _Calls:
    """Translates the nodes of a graph to calls, in order."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self.uses = Counter(name for node in graph.node for name in node.input)
        self.uses.update(each.name for each in graph.output)
        self.calls: list[dict[str, Any]] = []
        self.weights: list[Array] = []
        self.last: dict[str, dict[str, Any]] = {}
        """The call that makes each value."""

    def weight(self, array: Array) -> int:
        self.weights.append(np.ascontiguousarray(array, np.float32))
        return len(self.weights) - 1

    def call(self, what: str, output: str, *inputs: str, **others: Any) -> None:
        made = {"call": what, "output": output, "inputs": list(inputs), **others}
        self.calls.append(made)
        self.last[output] = made

    def rename(self, output: str, call: dict[str, Any]) -> None:
        call["output"] = output
        self.last[output] = call

    def into_convolution(self, value: str) -> dict[str, Any] | None:
        """Find the convolution that computes a value, to fuse the next operation into its call.

        Returns the call. The result is None if no convolution computes the value, or if the value
        has other uses. It is also None if an activation is already fused into the call.
        """
        found = self.last.get(value)
        if found is None or self.uses[value] > 1 or "filter" not in found:
            return None
        return None if found["activation"] != "linear" else found

    def convolution(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
        kernel = self.constants[node.input[1]]
        groups = attributes.get("group", 1)
        outputs, inputs = kernel.shape[:2]
        if groups not in {1, outputs} or (groups > 1 and inputs > 1):
            raise NoCallError(f"'{node.output[0]}': a convolution of {groups} groups")
        if set(attributes.get("dilations", [1])) != {1}:
            raise NoCallError(f"'{node.output[0]}': a convolution with dilations")
        bias = self.constants[node.input[2]] if len(node.input) > 2 else np.zeros(outputs, "f")
        order = (2, 3, 0, 1) if groups > 1 else (2, 3, 1, 0)
        self.call(
            "depthwise" if groups > 1 else "convolution",
            node.output[0],
            node.input[0],
            filter=self.weight(kernel.transpose(order)),
            bias=self.weight(bias),
            activation="linear",
            **_window(attributes),
        )

    def normalisation(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
        found = self.into_convolution(node.input[0])
        if found is None:
            raise NoCallError(f"'{node.output[0]}': a normalisation that follows no convolution")
        scale, shift, mean, variance = (self.constants[name] for name in node.input[1:5])
        scale = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
        kernel, bias = self.weights[found["filter"]], self.weights[found["bias"]]
        along = scale[:, None] if found["call"] == "depthwise" else scale
        self.weights[found["filter"]] = (kernel * along).astype(np.float32)
        self.weights[found["bias"]] = ((bias - mean) * scale + shift).astype(np.float32)
        self.rename(node.output[0], found)

    def activation(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Clip":
            limits = tuple(float(self.constants[name]) for name in node.input[1:3])
            if limits != _LIMITS:
                raise NoCallError(f"'{node.output[0]}': limits of {limits}")
        found = self.into_convolution(node.input[0])
        if found is None:
            self.call(_ACTIVATIONS[node.op_type], node.output[0], node.input[0])
        else:
            found["activation"] = _ACTIVATIONS[node.op_type]
            self.rename(node.output[0], found)

    def add(self, node: onnx.NodeProto) -> None:
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        output, first = node.output[0], node.input[0]
        match node.op_type:
            case "Conv":
                self.convolution(node, attributes)
            case "BatchNormalization":
                self.normalisation(node, attributes)
            case "Relu" | "Clip":
                self.activation(node)
            case "Sigmoid" | "Softmax":
                self.call(node.op_type.lower(), output, first)
            case "Add" | "Sum" | "Mul":
                what = "multiply" if node.op_type == "Mul" else "add"
                self.call(what, output, *node.input)
            case "Concat":
                self.call("concat", output, *node.input)
            case "MaxPool":
                size = attributes["kernel_shape"]
                self.call("maximum", output, first, size=size, **_window(attributes))
            case name if name in _WHOLE:  # of all pixels, as the models of the race have it
                self.call("mean", output, first)
            case "Flatten" | "Reshape" | "Dropout":  # of one pixel
                self.call("same", output, first)
            case "Gemm":
                self.product(node, attributes)
            case name:
                raise NoCallError(f"'{output}': {name}")

    def product(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
        kernel = self.constants[node.input[1]]
        kernel = kernel.T if attributes.get("transB") else kernel
        bias = self.constants[node.input[2]]
        self.call(
            "product",
            node.output[0],
            node.input[0],
            matrix=self.weight(kernel),
            bias=self.weight(bias),
        )


def _window(attributes: dict[str, Any]) -> dict[str, Any]:
    top, left, bottom, right = attributes.get("pads", [0, 0, 0, 0])
    pads = [[0, 0], [top, bottom], [left, right], [0, 0]]
    return {"strides": attributes.get("strides", [1, 1]), "pads": pads}


def write_calls(proto: onnx.ModelProto, image: Array, folder: Path) -> None:
    """Translate a model, and write the files that `web_tensorflow.mjs` reads.

    They are tensorflow.json, tensorflow.bin and tensorflow-input.bin.

    Args:
        image: the model's only input, (1, C, H, W).

    Raises:
        NoCallError: if the input is not an image, or an operator has no translation.
    """
    (name, *others) = (each.name for each in proto.graph.input)
    if others or image.ndim != 4:
        raise NoCallError(f"'{name}': the input is no image")
    made = _Calls(proto.graph)
    for node in proto.graph.node:
        made.add(node)
    image = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    image.tofile(folder / "tensorflow-input.bin")
    folder.joinpath("tensorflow.bin").write_bytes(b"".join(w.tobytes() for w in made.weights))
    said = {
        "input": {"name": name, "shape": image.shape},
        "output": proto.graph.output[0].name,
        "weights": [each.shape for each in made.weights],
        "calls": made.calls,
    }
    folder.joinpath("tensorflow.json").write_text(json.dumps(said))
