"""Convolutional networks in ONNX with seeded random parameters.

Batch normalisation is folded into the convolutions, as in exported models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.onnx_writer import OnnxWriter

SILU_GAIN = 2.6
"""Gain of the weights that follow a SiLU, to preserve the mean square of the values.

SiLU leaves 0.355 of a standard normal's mean square, slightly more of larger values and less of
smaller ones. With a gain of 1 / 0.355, values would grow without bound over 50 layers; with 2.4
they would vanish.
"""


_B0_STAGES = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
    *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
)
"""Expansion, filters, repeats, first stride and kernel of each stage: table 1 of the EfficientNet
paper."""

_DETECTOR_GAIN = 2.4
"""As SILU_GAIN. It is smaller, because maximum pools increase the mean square; with 2.3 values
would vanish."""


def mobilenet_v2(seed: int = 0, size: int = 224, classes: int = 1000) -> Any:
    """MobileNetV2 (Sandler et al. 2018) with folded batch norm; input (1, 3, size, size)."""
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


def efficientnet_b0(seed: int = 0, size: int = 224, classes: int = 1000) -> Any:
    """EfficientNet-B0 (Tan and Le 2019) with squeeze-and-excitation and SiLU.

    The input is (1, 3, size, size), and `size` is a multiple of 32. SiLU is expressed as Sigmoid
    and Mul, as exporters write it.
    """
    writer = OnnxWriter("efficientnet_b0", seed)

    def silu(value: str) -> str:
        return writer.node("Mul", value, writer.node("Sigmoid", value))

    def excite(value: str, channels: int, squeezed: int) -> str:
        gate = writer.node("GlobalAveragePool", value)
        gate = silu(writer.conv(gate, channels, squeezed, 1))
        gate = writer.conv(gate, squeezed, channels, 1, gain=SILU_GAIN)
        return writer.node("Mul", value, writer.node("Sigmoid", gate))

    x = silu(writer.conv(writer.input("x", (1, 3, size, size)), 3, 32, 3, stride=2, gain=1.0))
    # a residual adds its branch's mean square of 1; the next layer's weights make up for the sum,
    # as its batch norm would
    channels, square = 32, 1.0
    for expansion, filters, repeats, first_stride, kernel in _B0_STAGES:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            hidden = channels * expansion
            y = x
            if expansion > 1:
                y = silu(writer.conv(x, channels, hidden, 1, gain=1 / square))
            y = silu(writer.conv(y, hidden, hidden, kernel, stride, hidden, gain=SILU_GAIN))
            # a gate near one half leaves a quarter of the mean square
            y = excite(y, hidden, channels // 4)
            y = writer.conv(y, hidden, filters, 1, gain=4 * SILU_GAIN)
            residual = stride == 1 and channels == filters
            x, square = (writer.node("Add", x, y), square + 1) if residual else (y, 1.0)
            channels = filters
    x = silu(writer.conv(x, channels, 1280, 1, gain=1 / square))
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return writer.finish([(writer.gemm(x, 1280, classes), (1, classes))])


def efficientnet_lite0(seed: int = 0, size: int = 224, classes: int = 1000) -> Any:
    """EfficientNet-Lite0 (Liu 2020), which is EfficientNet-B0 for quantisation.

    It has ReLU6 instead of SiLU, and no squeeze-and-excitation. The input is (1, 3, size, size).
    """
    writer = OnnxWriter("efficientnet_lite0", seed)
    zero, six = writer.constant(np.float32(0)), writer.constant(np.float32(6))

    def relu6(value: str) -> str:
        return writer.node("Clip", value, zero, six)

    x = relu6(writer.conv(writer.input("x", (1, 3, size, size)), 3, 32, 3, stride=2))
    channels, square = 32, 1.0
    for expansion, filters, repeats, first_stride, kernel in _B0_STAGES:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            hidden = channels * expansion
            y = x
            if expansion > 1:
                y = relu6(writer.conv(x, channels, hidden, 1, gain=2 / square))
            y = relu6(writer.conv(y, hidden, hidden, kernel, stride, hidden))
            y = writer.conv(y, hidden, filters, 1)
            residual = stride == 1 and channels == filters
            x, square = (writer.node("Add", x, y), square + 1) if residual else (y, 1.0)
            channels = filters
    x = relu6(writer.conv(x, channels, 1280, 1, gain=2 / square))
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return writer.finish([(writer.gemm(x, 1280, classes), (1, classes))])


def yolo_nano(seed: int = 0, size: int = 320, classes: int = 80) -> Any:
    """A detector with the structure of YOLOv5n (Jocher 2020).

    The input is (1, 3, size, size), and `size` is a multiple of 32. It has cross-stage blocks,
    spatial pyramid pooling, a top-down path with nearest-neighbour upsampling, a bottom-up path,
    and three heads. Each head returns sigmoids of shape (1, 3 (5 + classes), side, side).
    """
    writer = OnnxWriter("yolo_nano", seed)

    def conv(
        x: str, channels: int, filters: int, kernel: int = 1, stride: int = 1, square: float = 1.0
    ) -> str:
        """A convolution and SiLU.

        The weights are scaled for an input `x` whose mean square is `square`.
        """
        y = writer.conv(x, channels, filters, kernel, stride, gain=_DETECTOR_GAIN / square)
        return writer.node("Mul", y, writer.node("Sigmoid", y))

    def cross_stage(x: str, channels: int, filters: int, depth: int, *, skip: bool = True) -> str:
        half = filters // 2
        y, square = conv(x, channels, half), 1.0
        for _ in range(depth):
            z = conv(conv(y, half, half, square=square), half, half, 3)
            y, square = (writer.node("Add", y, z), square + 1) if skip else (z, 1.0)
        joined = writer.node("Concat", y, conv(x, channels, half), axis=1)
        return conv(joined, filters, filters, square=(square + 1) / 2)

    def doubled(x: str) -> str:
        scales = writer.constant(np.array([1, 1, 2, 2], np.float32))
        return writer.node(
            "Resize", x, "", scales, mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )  # fmt: skip

    x = writer.input("x", (1, 3, size, size))
    x = conv(conv(x, 3, 16, 3, 2), 16, 32, 3, 2)
    x = cross_stage(x, 32, 32, 1)
    near = cross_stage(conv(x, 32, 64, 3, 2), 64, 64, 2)
    middle = cross_stage(conv(near, 64, 128, 3, 2), 128, 128, 3)
    x = cross_stage(conv(middle, 128, 256, 3, 2), 256, 256, 1)
    pools = [conv(x, 256, 128)]
    for _ in range(3):
        pools.append(
            writer.node("MaxPool", pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4)
        )
    x = conv(writer.node("Concat", *pools, axis=1), 512, 256)
    far = conv(x, 256, 128)
    x = writer.node("Concat", doubled(far), middle, axis=1)
    up = conv(cross_stage(x, 256, 128, 1, skip=False), 128, 64)
    x = writer.node("Concat", doubled(up), near, axis=1)
    first = cross_stage(x, 128, 64, 1, skip=False)
    x = writer.node("Concat", conv(first, 64, 64, 3, 2), up, axis=1)
    second = cross_stage(x, 128, 128, 1, skip=False)
    x = writer.node("Concat", conv(second, 128, 128, 3, 2), far, axis=1)
    third = cross_stage(x, 256, 256, 1, skip=False)
    outputs = 3 * (5 + classes)
    heads = ((first, 64, size // 8), (second, 128, size // 16), (third, 256, size // 32))
    return writer.finish(
        [
            (
                writer.node("Sigmoid", writer.conv(x, c, outputs, 1, gain=0.25)),
                (1, outputs, side, side),
            )
            for x, c, side in heads
        ]
    )


def vgg16_features(seed: int = 0, height: int = 224, width: int = 224) -> Any:
    """VGG-16 (Simonyan and Zisserman 2014) without its fully connected layers.

    The input is (1, 3, height, width).
    """
    writer = OnnxWriter("vgg16_features", seed)
    x, channels = writer.input("x", (1, 3, height, width)), 3
    for filters, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            x = writer.node("Relu", writer.conv(x, channels, filters, 3))
            channels = filters
        x = writer.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        height, width = height // 2, width // 2
    return writer.finish([(x, (1, channels, height, width))])


def c3d_small(seed: int = 0, frames: int = 8, size: int = 56, classes: int = 101) -> Any:
    """A narrow C3D (Tran et al. 2015), a network for video clips; input (1, 3, frames, size, size).

    Its 3x3x3 convolutions over time, height and width have a quarter to a half of the paper's
    filters. Global average pooling replaces the two large fully connected layers.
    """
    writer = OnnxWriter("c3d_small", seed)
    x, channels = writer.input("x", (1, 3, frames, size, size)), 3
    for layer, filters in enumerate((32, 64, 128, 256)):
        if layer:  # the first pool leaves time alone
            window = [1 if layer == 1 else 2, 2, 2]
            x = writer.node("MaxPool", x, kernel_shape=window, strides=window)
        weight = writer.normal((filters, channels, 3, 3, 3), (2 / (channels * 27)) ** 0.5)
        x = writer.node(
            "Conv",
            x,
            writer.constant(weight, "weight"),
            writer.constant(writer.normal((filters,), 0.05), "bias"),
            kernel_shape=[3, 3, 3],
            pads=[1] * 6,
        )
        x, channels = writer.node("Relu", x), filters
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return writer.finish([(writer.gemm(x, channels, classes), (1, classes))])
