"""The models that are raced and tested, by name, with seeded parameters and inputs.

`build(name)` gives a ModelProto, `feeds(name, model)` its inputs, `check_spread` refuses outputs
that would make a comparison worthless. Models of transformers come from benchmarks/models/, which
`make models` fills; all others need no file and no network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from benchmarks.light import LIGHT_MODELS, light_model
from benchmarks.onnx_writer import OnnxWriter

EXPORTED_FOLDER = Path(__file__).parent / "models"
BERT_VOCABULARY = 30522


@dataclass(frozen=True, slots=True)
class ModelCase:
    """A named model: how it is built, and below what its integer inputs stay."""

    name: str
    build: Callable[[], Any]
    integer_bounds: Mapping[str, int] = field(default_factory=dict)


def mobilenet_v2(seed: int = 0, size: int = 224, classes: int = 1000) -> Any:
    """MobileNetV2 (Sandler et al. 2018) with batch norm folded; input (1, 3, size, size)."""
    writer = OnnxWriter("mobilenet_v2", seed)
    zero, six = writer.constant(np.float32(0)), writer.constant(np.float32(6))

    def relu6(value: str) -> str:
        return writer.node("Clip", value, zero, six)

    x = relu6(writer.conv(writer.input("x", (1, 3, size, size)), 3, 32, 3, stride=2))
    channels = 32
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
    stages += [(6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expansion, filters, repeats, first_stride in stages:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            hidden = channels * expansion
            y = x if expansion == 1 else relu6(writer.conv(x, channels, hidden, 1))
            y = relu6(writer.conv(y, hidden, hidden, 3, stride, group=hidden))
            y = writer.conv(y, hidden, filters, 1)
            x = writer.node("Add", x, y) if stride == 1 and channels == filters else y
            channels = filters
    x = relu6(writer.conv(x, channels, 1280, 1))
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return writer.finish([(writer.gemm(x, 1280, classes), (1, classes))])


def bert(
    seed: int = 0,
    tokens: int = 128,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    intermediate: int = 3072,
    vocabulary: int = BERT_VOCABULARY,
) -> Any:
    """The BERT encoder (Devlin et al. 2018) with its embeddings.

    input_ids: int64 (1, tokens), below `vocabulary`; output: float32 (1, tokens, hidden).
    """
    writer = OnnxWriter("bert", seed)
    head = hidden // heads

    def normalise(value: str) -> str:
        scale = writer.constant(writer.random.uniform(0.5, 1.5, hidden).astype(np.float32))
        bias = writer.constant(writer.normal((hidden,), 0.05))
        return writer.node("LayerNormalization", value, scale, bias, axis=-1, epsilon=1e-12)

    def split_heads(value: str, permutation: list[int]) -> str:
        shape = writer.constant(np.array([1, tokens, heads, head], np.int64))
        return writer.node("Transpose", writer.node("Reshape", value, shape), perm=permutation)

    def gelu(value: str) -> str:
        ratio = writer.node("Div", value, writer.constant(np.float32(2**0.5)))
        erf = writer.node("Add", writer.node("Erf", ratio), writer.constant(np.float32(1)))
        return writer.node("Mul", writer.node("Mul", value, erf), writer.constant(np.float32(0.5)))

    ids = writer.input("input_ids", (1, tokens), TensorProto.INT64)
    words = writer.constant(writer.normal((vocabulary, hidden), 1.0), "words")
    positions = writer.constant(writer.normal((1, tokens, hidden), 0.5), "positions")
    x = normalise(writer.node("Add", writer.node("Gather", words, ids, axis=0), positions))
    for _ in range(layers):
        query = split_heads(writer.linear(x, hidden, hidden), [0, 2, 1, 3])
        key = split_heads(writer.linear(x, hidden, hidden), [0, 2, 3, 1])
        value = split_heads(writer.linear(x, hidden, hidden), [0, 2, 1, 3])
        scores = writer.node(
            "Div", writer.node("MatMul", query, key), writer.constant(np.float32(head**0.5))
        )
        mixed = writer.node("MatMul", writer.node("Softmax", scores, axis=-1), value)
        joined = writer.node(
            "Reshape",
            writer.node("Transpose", mixed, perm=[0, 2, 1, 3]),
            writer.constant(np.array([1, tokens, hidden], np.int64)),
        )
        x = normalise(writer.node("Add", x, writer.linear(joined, hidden, hidden)))
        inner = gelu(writer.linear(x, hidden, intermediate))
        x = normalise(writer.node("Add", x, writer.linear(inner, intermediate, hidden)))
    return writer.finish([(x, (1, tokens, hidden))])


def mlp(seed: int = 0, batch: int = 1, widths: tuple[int, ...] = (784, 512, 512, 10)) -> Any:
    """A perceptron with ReLU between its layers; input (batch, widths[0])."""
    writer = OnnxWriter("mlp", seed)
    x = writer.input("x", (batch, widths[0]))
    for layer, (features, outputs) in enumerate(pairwise(widths)):
        x = writer.gemm(x, features, outputs, gain=2.0)
        if layer < len(widths) - 2:
            x = writer.node("Relu", x)
    return writer.finish([(x, (batch, widths[-1]))])


def vgg16_features(seed: int = 0, height: int = 224, width: int = 224) -> Any:
    """VGG-16 (Simonyan and Zisserman 2014) without its fully connected layers."""
    writer = OnnxWriter("vgg16_features", seed)
    x, channels = writer.input("x", (1, 3, height, width)), 3
    for filters, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            x = writer.node("Relu", writer.conv(x, channels, filters, 3))
            channels = filters
        x = writer.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        height, width = height // 2, width // 2
    return writer.finish([(x, (1, channels, height, width))])


def _cases() -> dict[str, ModelCase]:
    cases = [ModelCase(name, partial(light_model, name)) for name in LIGHT_MODELS]
    cases += [
        ModelCase("mobilenetv2", mobilenet_v2),
        ModelCase("bert-base-128", bert, {"input_ids": BERT_VOCABULARY}),
        ModelCase("mlp", mlp),
        ModelCase("vgg16-features", vgg16_features),
        ModelCase("vgg16-features-126x224", partial(vgg16_features, height=126)),
    ]
    for path in sorted(EXPORTED_FOLDER.glob("*.onnx")):
        cases.append(ModelCase(path.stem, partial(onnx.load, path), {"input_ids": BERT_VOCABULARY}))
    return {case.name: case for case in cases}


MODELS = _cases()


def build(name: str) -> Any:
    """The ModelProto of a name in MODELS; KeyError for another."""
    return MODELS[name].build()


def feeds(name: str, model: Any, seed: int = 1) -> dict[str, NDArray[Any]]:
    """Seeded inputs: standard normal for floats, uniform below the case's bound for integers."""
    random = np.random.default_rng(seed)
    bounds = MODELS[name].integer_bounds
    constants = {tensor.name for tensor in model.graph.initializer}
    arrays: dict[str, NDArray[Any]] = {}
    for info in model.graph.input:
        if info.name in constants:
            continue
        tensor = info.type.tensor_type
        shape = tuple(dim.dim_value or 1 for dim in tensor.shape.dim)
        if tensor.elem_type == TensorProto.FLOAT:
            arrays[info.name] = random.standard_normal(shape, np.float32)
        else:
            bound = bounds.get(info.name, 2)
            arrays[info.name] = random.integers(0, bound, shape, dtype=np.int64)
    return arrays


def check_spread(outputs: NDArray[Any]) -> None:
    """Raise ValueError unless the values differ enough for a comparison to mean anything."""
    if not np.isfinite(outputs).all():
        raise ValueError("the outputs are not finite")
    spread = float(np.std(outputs)) / max(float(np.max(np.abs(outputs))), 1e-30)
    if spread < 0.01:
        raise ValueError(f"the outputs are nearly equal: deviation {spread:.1e} of the largest")
