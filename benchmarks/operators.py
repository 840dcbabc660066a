"""ONNX models of one operator each, with seeded weights.

Every function takes sizes and returns a ModelProto. Weights are scaled so that the values stay near
1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.onnx_writer import OnnxWriter

Pair = tuple[int, int]


def conv(
    channels: int,
    filters: int,
    size: Pair,
    kernel: Pair = (3, 3),
    stride: Pair = (1, 1),
    pads: tuple[int, int, int, int] | None = None,
    dilation: Pair = (1, 1),
    group: int = 1,
    batch: int = 1,
) -> Any:
    """A 2-D convolution with bias of an input (batch, channels, *size).

    `pads` is (top, left, bottom, right); by default the convolution keeps the size at stride 1.
    """
    writer = OnnxWriter("conv", 0)
    pads = pads or (kernel[0] // 2, kernel[1] // 2) * 2
    x = writer.input("x", (batch, channels, *size))
    fan_in = channels // group * kernel[0] * kernel[1]
    weight = writer.normal((filters, channels // group, *kernel), fan_in**-0.5)
    y = writer.node(
        "Conv",
        x,
        writer.constant(weight, "weight"),
        writer.constant(writer.normal((filters,), 0.05), "bias"),
        kernel_shape=kernel,
        strides=stride,
        dilations=dilation,
        pads=pads,
        group=group,
    )
    height = extent(size[0], kernel[0], stride[0], pads[0] + pads[2], dilation[0])
    width = extent(size[1], kernel[1], stride[1], pads[1] + pads[3], dilation[1])
    return writer.finish([(y, (batch, filters, height, width))])


def extent(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Output size of a window operator along one dimension; `padding` is the sum of both sides."""
    return (size + padding - dilation * (kernel - 1) - 1) // stride + 1


def matmul(rows: int, columns: int, depth: int, batch: int = 0) -> Any:
    """A MatMul of an input (rows, depth) and a constant (depth, columns).

    If `batch` is positive, both operands are inputs, and have a batch dimension of this size.
    """
    writer = OnnxWriter("matmul", 0)
    if batch:
        a = writer.input("a", (batch, rows, depth))
        b = writer.input("b", (batch, depth, columns))
        return writer.finish([(writer.node("MatMul", a, b), (batch, rows, columns))])
    x = writer.input("x", (rows, depth))
    weight = writer.constant(writer.normal((depth, columns), depth**-0.5), "weight")
    return writer.finish([(writer.node("MatMul", x, weight), (rows, columns))])


def pool(
    operator: str,
    channels: int,
    size: Pair,
    kernel: Pair,
    stride: Pair,
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> Any:
    """MaxPool or AveragePool of an input (1, channels, *size).

    `pads` is (top, left, bottom, right).
    """
    writer = OnnxWriter("pool", 0)
    x = writer.input("x", (1, channels, *size))
    y = writer.node(operator, x, kernel_shape=kernel, strides=stride, pads=pads)
    height = extent(size[0], kernel[0], stride[0], pads[0] + pads[2])
    width = extent(size[1], kernel[1], stride[1], pads[1] + pads[3])
    return writer.finish([(y, (1, channels, height, width))])


def softmax(shape: Sequence[int], axis: int = -1, operator: str = "Softmax") -> Any:
    """Softmax or LogSoftmax of an input of this shape along one axis."""
    writer = OnnxWriter("softmax", 0)
    return writer.finish([(writer.node(operator, writer.input("x", shape), axis=axis), shape)])


def layer_norm(shape: Sequence[int]) -> Any:
    """LayerNormalization of an input of this shape along the last axis."""
    writer = OnnxWriter("layer_norm", 0)
    scale = writer.constant(1 + writer.normal((shape[-1],), 0.2))
    bias = writer.constant(writer.normal((shape[-1],), 0.05))
    y = writer.node("LayerNormalization", writer.input("x", shape), scale, bias, axis=-1)
    return writer.finish([(y, shape)])


def reduction(operator: str, shape: Sequence[int], axis: int = -1) -> Any:
    """A reduction such as ReduceMean or ReduceMax along one axis, which is kept with extent 1."""
    writer = OnnxWriter("reduction", 0, opset=18)  # since then all take their axes as an input
    axes = writer.constant(np.array([axis], np.int64))
    y = writer.node(operator, writer.input("x", shape), axes, keepdims=1)
    kept = list(shape)
    kept[axis] = 1
    return writer.finish([(y, kept)])


def exp(count: int) -> Any:
    """Exp of a vector of `count` values."""
    writer = OnnxWriter("exp", 0)
    return writer.finish([(writer.node("Exp", writer.input("x", (count,))), (count,))])


def gelu(shape: Sequence[int]) -> Any:
    """GELU, x / 2 (1 + erf(x / sqrt 2)), in the five operators that exporters write."""
    writer = OnnxWriter("gelu", 0)
    return writer.finish([(writer.gelu(writer.input("x", shape)), shape)])
