"""Vision networks of convolutions with attention or layer norms, with seeded parameters.

Their layer norms run along the channels, but convolutions store each channel as a plane. Values are
therefore converted between the two layouts by Transpose and Reshape, as exporters write it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.onnx_writer import OnnxWriter
from benchmarks.transformer import Blocks

_HEADS = (1, 2, 5, 8)
_REDUCTIONS = (8, 4, 2, 1)
"""Factor by which PVT and SegFormer reduce rows and columns of keys and values, by stage."""


def convnext(
    seed: int = 0,
    size: int = 224,
    depths: tuple[int, ...] = (3, 3, 9, 3),
    widths: tuple[int, ...] = (96, 192, 384, 768),
    classes: int = 1000,
) -> Any:
    """ConvNeXt (Liu et al. 2022), ConvNeXt-T by default: depthwise convolutions and layer norms.

    The input is (1, 3, size, size), and `size` is a multiple of 32. The output is (1, classes).
    """
    writer = OnnxWriter("convnext", seed)

    def normalise(x: str, channels: int) -> str:
        """Apply layer normalisation along the channels of x (1, channels, H, W)."""
        rows = writer.node("Transpose", x, perm=[0, 2, 3, 1])
        rows = Blocks(writer, channels, 1).normalise(rows, 1e-6)
        return writer.node("Transpose", rows, perm=[0, 3, 1, 2])

    channels = widths[0]
    x = writer.conv(writer.input("x", (1, 3, size, size)), 3, channels, 4, 4, gain=1.0, padding=0)
    x = normalise(x, channels)
    for depth, width in zip(depths, widths, strict=True):
        if width != channels:
            x = writer.conv(normalise(x, channels), channels, width, 2, 2, gain=1.0, padding=0)
            channels = width
        for _ in range(depth):
            y = writer.conv(x, width, width, 7, group=width, gain=1.0)
            rows = writer.node("Transpose", y, perm=[0, 2, 3, 1])
            rows = Blocks(writer, width, 1).normalise(rows, 1e-6)
            inner = writer.gelu(writer.linear(rows, width, 4 * width))
            outer = writer.linear(inner, 4 * width, width, gain=2.0)
            scale = writer.constant(writer.random.uniform(0.3, 1.0, width).astype(np.float32))
            outer = writer.node("Mul", outer, scale)
            y = writer.node("Transpose", outer, perm=[0, 3, 1, 2])
            x = writer.node("Add", x, y)
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    # a mean over 49 pixels is a seventh of one pixel's deviation: the norm makes up for it
    x = Blocks(writer, channels, 1).normalise(x, 1e-6)
    return writer.finish([(writer.gemm(x, channels, classes), (1, classes))])


class _Pyramid:
    """Builds attention blocks of PVT and SegFormer.

    `x` has shape (1, side * side, width): one row for each pixel of a square image with `side` rows
    of pixels.
    """

    def __init__(self, writer: OnnxWriter) -> None:
        self.writer = writer

    def rows(self, x: str, side: int, width: int) -> str:
        """Convert planes (1, width, side, side) to rows (1, side * side, width)."""
        shape = self.writer.constant(np.array([1, width, side * side], np.int64))
        return self.writer.node("Transpose", self.writer.node("Reshape", x, shape), perm=[0, 2, 1])

    def planes(self, x: str, side: int, width: int) -> str:
        """Convert rows (1, side * side, width) to planes (1, width, side, side)."""
        shape = self.writer.constant(np.array([1, width, side, side], np.int64))
        return self.writer.node("Reshape", self.writer.node("Transpose", x, perm=[0, 2, 1]), shape)

    def attend(self, x: str, side: int, width: int, heads: int, reduction: int) -> str:
        """Add attention whose keys and values come from a reduced image.

        The image is reduced by the factor `reduction` in both dimensions.
        """
        writer, blocks = self.writer, Blocks(self.writer, width, heads)
        keys, count = x, side * side
        if reduction > 1:
            smaller = writer.conv(
                self.planes(x, side, width), width, width, reduction, reduction, gain=1.0, padding=0
            )
            keys = blocks.normalise(self.rows(smaller, side // reduction, width), 1e-5)
            count = (side // reduction) ** 2
        return writer.linear(blocks.self_attend(x, side * side, keys, count), width, width)


def pvt(
    seed: int = 0,
    size: int = 224,
    depths: tuple[int, ...] = (2, 2, 2, 2),
    widths: tuple[int, ...] = (64, 128, 320, 512),
    classes: int = 1000,
) -> Any:
    """Pyramid Vision Transformer (Wang et al. 2021), by default PVT-Tiny.

    Mean pooling precedes the classifier. The input is (1, 3, size, size), and `size` is a multiple
    of 32. The output is (1, classes).
    """
    writer = OnnxWriter("pvt", seed)
    pyramid = _Pyramid(writer)
    x, channels, side, rows = writer.input("x", (1, 3, size, size)), 3, size, ""
    expansions = (8, 8, 4, 4)
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        patch = 4 if stage == 0 else 2
        side //= patch
        blocks = Blocks(writer, width, _HEADS[stage])
        x = writer.conv(x, channels, width, patch, patch, gain=1.0, padding=0)
        rows = blocks.normalise(pyramid.rows(x, side, width), 1e-5)
        positions = writer.constant(writer.normal((1, side * side, width), 0.5), "positions")
        rows = writer.node("Add", rows, positions)
        for _ in range(depth):
            y = blocks.normalise(rows, 1e-6)
            y = pyramid.attend(y, side, width, _HEADS[stage], _REDUCTIONS[stage])
            rows = writer.node("Add", rows, y)
            hidden = expansions[stage] * width
            inner = writer.gelu(writer.linear(blocks.normalise(rows, 1e-6), width, hidden))
            rows = writer.node("Add", rows, writer.linear(inner, hidden, width, gain=2.0))
        x, channels = pyramid.planes(rows, side, width), width
    mean = writer.node("ReduceMean", rows, axes=[1], keepdims=0)
    mean = Blocks(writer, channels, 1).normalise(mean, 1e-6)
    return writer.finish([(writer.gemm(mean, channels, classes), (1, classes))])


def segformer(
    seed: int = 0,
    size: int = 512,
    depths: tuple[int, ...] = (2, 2, 2, 2),
    widths: tuple[int, ...] = (32, 64, 160, 256),
    decoded: int = 256,
    classes: int = 150,
) -> Any:
    """SegFormer (Xie et al. 2021), by default B0.

    The four stages are resized bilinearly and concatenated. The input is (1, 3, size, size), and
    `size` is a multiple of 32. The output is (1, classes, size / 4, size / 4).
    """
    writer = OnnxWriter("segformer", seed)
    pyramid = _Pyramid(writer)
    x, channels, side = writer.input("x", (1, 3, size, size)), 3, size
    joined = []
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        kernel, stride = (7, 4) if stage == 0 else (3, 2)
        side //= stride
        blocks = Blocks(writer, width, _HEADS[stage])
        x = writer.conv(x, channels, width, kernel, stride, gain=1.0)
        rows = blocks.normalise(pyramid.rows(x, side, width), 1e-5)
        for _ in range(depth):
            y = blocks.normalise(rows, 1e-6)
            y = pyramid.attend(y, side, width, _HEADS[stage], _REDUCTIONS[stage])
            rows = writer.node("Add", rows, y)
            inner = writer.linear(blocks.normalise(rows, 1e-6), width, 4 * width)
            inner = pyramid.planes(inner, side, 4 * width)
            inner = writer.conv(inner, 4 * width, 4 * width, 3, group=4 * width, gain=1.0)
            inner = writer.gelu(pyramid.rows(inner, side, 4 * width))
            rows = writer.node("Add", rows, writer.linear(inner, 4 * width, width, gain=2.0))
        rows = blocks.normalise(rows, 1e-6)
        x, channels = pyramid.planes(rows, side, width), width
        y = pyramid.planes(writer.linear(rows, width, decoded), side, decoded)
        if stage > 0:
            sizes = writer.constant(np.array([1, decoded, size // 4, size // 4], np.int64))
            y = writer.node(
                "Resize", y, "", "", sizes, mode="linear",
                coordinate_transformation_mode="pytorch_half_pixel",
            )  # fmt: skip
        joined.append(y)
    x = writer.node("Concat", *reversed(joined), axis=1)
    x = writer.node("Relu", writer.conv(x, len(joined) * decoded, decoded, 1, gain=1.0))
    x = writer.conv(x, decoded, classes, 1)
    return writer.finish([(x, (1, classes, size // 4, size // 4))])
