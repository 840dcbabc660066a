"""A multi-layer perceptron and an LSTM network in ONNX with seeded random parameters."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.onnx_writer import OnnxWriter


def mlp(seed: int = 0, batch: int = 1, widths: tuple[int, ...] = (784, 512, 512, 10)) -> Any:
    """A multi-layer perceptron with ReLU between its layers; input (batch, widths[0])."""
    writer = OnnxWriter("mlp", seed)
    x = writer.input("x", (batch, widths[0]))
    for layer, (features, outputs) in enumerate(pairwise(widths)):
        x = writer.gemm(x, features, outputs, gain=2.0)
        if layer < len(widths) - 2:
            x = writer.node("Relu", x)
    return writer.finish([(x, (batch, widths[-1]))])


def lstm(
    seed: int = 0, steps: int = 64, features: int = 128, hidden: int = 256, layers: int = 2
) -> Any:
    """Stacked LSTM layers (Hochreiter and Schmidhuber 1997), as ONNX LSTM operators.

    The input is (steps, 1, features), with batch size 1; the output is (steps, 1, hidden) of the
    last layer.
    """
    writer = OnnxWriter("lstm", seed)
    x, width = writer.input("x", (steps, 1, features)), features
    for _ in range(layers):
        # gates: input, output, forget, cell
        gates = writer.normal((1, 4 * hidden, width), width**-0.5)
        states = writer.normal((1, 4 * hidden, hidden), hidden**-0.5)
        y = writer.node(
            "LSTM",
            x,
            writer.constant(gates, "weight"),
            writer.constant(states, "weight"),
            writer.constant(writer.normal((1, 8 * hidden), 0.05), "bias"),
            hidden_size=hidden,
        )
        # (steps, directions, 1, hidden) -> (steps, 1, hidden)
        x = writer.node("Squeeze", y, writer.constant(np.array([1], np.int64)))
        width = hidden
    return writer.finish([(x, (steps, 1, hidden))])
