"""PaddlePaddle networks with random parameters, exported by paddle2onnx."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.vision import models

from benchmarks.exporters.written import Feeds, Maker, make_all


def exported(
    build: Callable[[], Any],
    path: Path,
    *,
    shapes: Sequence[tuple[int, ...]],
    opset: int = 11,
    integers: int = 0,
) -> Sequence[Feeds]:
    """Build and export a network with one input `x` and a dynamic batch.

    Returns an input for each of `shapes`. Inputs are random float32, or random int64 in [0,
    `integers`) if `integers` is positive.
    """
    paddle.seed(0)
    random = np.random.default_rng(0)
    model = build()
    for layer in model.sublayers():
        if isinstance(layer, nn.BatchNorm2D):
            layer.weight.set_value(random.uniform(0.7, 1.3, layer.weight.shape).astype("float32"))
            layer._mean.set_value(random.normal(0, 0.05, layer._mean.shape).astype("float32"))
            spread = random.uniform(0.6, 1.2, layer._variance.shape)
            layer._variance.set_value(spread.astype("float32"))
    model.eval()
    kind = "int64" if integers else "float32"
    spec = paddle.static.InputSpec([None, *shapes[0][1:]], kind, "x")
    with tempfile.TemporaryDirectory() as folder:
        paddle.onnx.export(model, f"{folder}/model", input_spec=[spec], opset_version=opset)
        path.write_bytes(Path(f"{folder}/model.onnx").read_bytes())
    return [
        {
            "x": random.integers(0, integers, shape)
            if integers
            else random.standard_normal(shape).astype(np.float32)
        }
        for shape in shapes
    ]


class Tagger(nn.Layer):  # type: ignore[misc]  # paddle is not installed for mypy
    """A token classifier with nine classes and two bidirectional recurrent layers.

    `kind` is "LSTM" or "GRU".
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 32)
        self.recurrent = getattr(nn, kind)(32, 48, 2, direction="bidirect")
        self.head = nn.Linear(96, 9)

    def forward(self, x: Any) -> Any:
        states, _ = self.recurrent(self.embedding(x))
        return nn.functional.softmax(self.head(states))


class Encoder(nn.Layer):  # type: ignore[misc]  # as above
    """Two transformer encoder blocks over token embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, activation="gelu")
        self.encoder = nn.TransformerEncoder(block, 2)

    def forward(self, x: Any) -> Any:
        return self.encoder(self.embedding(x))


class Segmenter(nn.Layer):  # type: ignore[misc]  # as above
    """A segmentation network that combines features of two resolutions and upsamples the result."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2D(3, 16, 3, 2, 1), nn.BatchNorm2D(16), nn.Hardswish())
        self.second = nn.Sequential(nn.Conv2D(16, 32, 3, 2, 1), nn.BatchNorm2D(32), nn.PReLU(32))
        self.up = nn.Conv2DTranspose(32, 16, 4, 2, 1)
        self.head = nn.Conv2D(32, 5, 1)

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        b = self.up(self.second(a))
        both = self.head(paddle.concat([a, b], axis=1))
        wide = nn.functional.interpolate(both, scale_factor=2, mode="bilinear")
        return paddle.argmax(wide, axis=1), nn.functional.softmax(wide, axis=1)


def _vision(name: str, opset: int = 11, size: int = 96, **options: Any) -> Maker:
    build = partial(getattr(models, name), num_classes=100, **options)
    return partial(exported, build, shapes=[(1, 3, size, size), (2, 3, size, size)], opset=opset)


_TOKENS = [(2, 24), (1, 24)]
_DIGITS = [(2, 1, 28, 28), (1, 1, 28, 28)]

MAKERS: dict[str, Maker] = {
    "paddle-lenet": partial(exported, models.LeNet, shapes=_DIGITS, opset=7),
    "paddle-mobilenet-v1": _vision("mobilenet_v1", 9, scale=0.25),
    "paddle-mobilenet-v2": _vision("mobilenet_v2", 10, scale=0.5),
    "paddle-mobilenet-v3": _vision("mobilenet_v3_small", scale=0.75),
    "paddle-resnet18": _vision("resnet18", 8),
    "paddle-shufflenet-v2": _vision("shufflenet_v2_x0_25", 11),
    "paddle-squeezenet": _vision("squeezenet1_1", 12),
    "paddle-densenet": _vision("densenet121", 13),
    "paddle-resnext": _vision("resnext50_32x4d", 11),
    "paddle-lstm": partial(exported, partial(Tagger, "LSTM"), shapes=_TOKENS, integers=500),
    "paddle-gru": partial(exported, partial(Tagger, "GRU"), shapes=_TOKENS, integers=500),
    "paddle-transformer": partial(exported, Encoder, shapes=_TOKENS, opset=13, integers=500),
    "paddle-segmenter": partial(exported, Segmenter, shapes=[(1, 3, 64, 96), (2, 3, 64, 96)]),
}

if __name__ == "__main__":
    make_all(MAKERS)
