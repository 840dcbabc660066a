"""Each raced model multiplies as often as the network that it is named after."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks import models
from benchmarks.onnx_writer import OnnxWriter

MOST_VALUES = 16
"""Limit on the elements of a parameter whose values are shapes."""

# Million multiply-accumulates. Sources for these networks are the papers and fvcore or ptflops:
# EfficientNet-B0 0.39 G, its Lite0 0.41 G, MobileNetV2 0.30 G, YOLOv5n 0.56 G at 320 pixels (with a
# stem of 6x6, which is 3x3 here), DeiT-S 4.6 G, ConvNeXt-T 4.5 G, PVT-Tiny 1.9 G, SegFormer-B0 8.4
# G at 512 pixels, VGG-16 without its head 15.3 G. A transformer layer has 12 hidden^2 per token and
# 2 tokens * hidden for attention; GPT-2's head multiplies every token with 50257 words. An LSTM
# layer has 4 hidden (features + hidden) per step.
MILLIONS = {
    "mobilenetv2": 300.8,
    "efficientnet-b0": 385.8,
    "efficientnet-lite0": 385.2,
    "yolo-nano": 525.3,
    "bert-base-128": (12 * (12 * 768**2 + 2 * 128 * 768) * 128) / 1e6,
    "minilm-l6-128": (6 * (12 * 384**2 + 2 * 128 * 384) * 128) / 1e6,
    "deit-small": 4598.9,
    "convnext-tiny": 4455.5,
    "pvt-tiny": 1926.4,
    "segformer-b0": 8387.8,
    "whisper-tiny-encoder": (
        (4 * (12 * 384**2 + 2 * 1500 * 384) + 3 * 384 * (2 * 80 + 384)) * 1500 / 1e6
    ),
    "gpt2-prefill-64": (12 * (12 * 768**2 + 2 * 64 * 768) + 768 * 50257) * 64 / 1e6,
    "gpt2-decode-64": (12 * (12 * 768**2 + 2 * 65 * 768) + 768 * 50257) / 1e6,
    "mlp": (784 * 512 + 512 * 512 + 512 * 10) / 1e6,
    "lstm-2x256-64": 64 * 4 * 256 * (128 + 256 + 256 + 256) / 1e6,
    "vgg16-features": 15346.6,
    "vgg16-features-126x224": 8380.6,
}


@pytest.fixture
def no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large parameters are inputs: hundreds of megabytes need not be generated and copied."""
    whole = OnnxWriter.constant

    def constant(self: OnnxWriter, value: Any, hint: str = "constant") -> str:
        if np.size(value) <= MOST_VALUES:
            return whole(self, value, hint)
        self._count += 1
        kind = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
        return self.input(f"{hint}_{self._count}", np.shape(value), kind)

    def normal(self: OnnxWriter, shape: Sequence[int], deviation: float) -> Any:
        return np.broadcast_to(np.float32(deviation), tuple(shape))

    monkeypatch.setattr(OnnxWriter, "constant", constant)
    monkeypatch.setattr(OnnxWriter, "normal", normal)


@pytest.mark.usefixtures("no_values")
@pytest.mark.parametrize("name", MILLIONS)
def test_multiplications(name: str) -> None:
    assert multiplications(models.build(name)) / 1e6 == pytest.approx(MILLIONS[name], abs=0.06)


def multiplications(model: Any) -> int:
    """Multiply-accumulates of the convolutions, products and LSTMs of a model."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True).graph
    for info in (*graph.input, *graph.value_info, *graph.output):
        shapes[info.name] = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
    return sum(_of(node, shapes) for node in graph.node)


def _of(node: Any, shapes: dict[str, tuple[int, ...]]) -> int:
    match node.op_type:
        case "Conv":
            return prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
        case "MatMul":
            return prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
        case "Gemm":  # none of these transposes its first operand
            return prod(shapes[node.output[0]]) * shapes[node.input[0]][1]
        case "LSTM":
            steps, batch, _ = shapes[node.input[0]]
            return steps * batch * (prod(shapes[node.input[1]]) + prod(shapes[node.input[2]]))
        case _:
            return 0
