"""Translation rule to ONNX for recurrent layers: an LSTM of PyTorch becomes ONNX's LSTM.

PyTorch decomposes other recurrent layers into elementary operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError
from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten

LSTM = 2
"""The value of PyTorch's argument `mode` that selects an LSTM."""


def _layer(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    weights: fx.Node,
    state_weights: fx.Node,
    bias: fx.Node,
    state_bias: fx.Node,
    state: fx.Node,
    cell: fx.Node,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[str, ...]:
    """Translate one layer of an LSTM in one direction.

    Shapes: x is (time, batch, width); `state` and `cell` are (1, batch, hidden_size).
    """
    if mode != LSTM or batch_sizes or layers != 1 or bidirectional or batch_first or train:
        raise NotTranslatedError("other than an LSTM over sequences of one length")
    first = t.constant([0])
    made = [t.op("Unsqueeze", _turned(t, each), first) for each in (weights, state_weights)]
    biases = None
    if has_biases:
        biases = t.op("Concat", _turned(t, bias), _turned(t, state_bias), axis=0)
        biases = t.op("Unsqueeze", biases, first)
    results = t.several(
        "LSTM",
        t.value(x),
        *made,
        biases,
        None,
        t.value(state),
        t.value(cell),
        hidden_size=hidden_size,
        direction="reverse" if reverse else "forward",
        count=3,
    )
    return t.op("Squeeze", results[0], t.constant([1])), *results[1:]


def _turned(t: Translator, given: fx.Node) -> str:
    """Emit LSTM weights with the gates in ONNX's order: input, output, forget, cell.

    PyTorch's order is input, forget, cell, output.
    """
    size = t.shape(given)[0]
    if not isinstance(size, int):
        raise NotTranslatedError("with a dynamic width")
    parts = t.several("Split", t.value(given), t.constant([size // 4] * 4), axis=0, count=4)
    return t.op("Concat", *(parts[k] for k in (0, 3, 1, 2)), axis=0)


RULES: dict[Any, Rule] = {aten.mkldnn_rnn_layer.default: _layer}
