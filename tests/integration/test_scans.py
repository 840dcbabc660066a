"""Scans and recurrent layers of many steps: whole models against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import tilewright
from tests.integration.control_models import (
    RANDOM,
    agree,
    checked,
    model,
    node,
    random_inputs,
    runtime,
    scanning,
    within,
)
from tilewright.compiler.frontend import unroll
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.program import Loop


@pytest.mark.parametrize(
    ("axes", "backwards"), [((0, 0), (0, 0)), ((0, 1), (1, 0)), ((2, 0), (1, 1)), ((1, 2), (0, 1))]
)
def test_a_long_scan_is_its_steps(
    axes: Sequence[int], backwards: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = scanning(12, axes, backwards)
    feeds = random_inputs(proto)
    spelled = tilewright.compile_model(proto)
    assert isinstance(spelled, Executable) and within(spelled, Loop) == 0
    monkeypatch.setattr(unroll, "SPELLED_NODES", 0)
    looped = checked(proto, feeds)
    assert within(looped, Loop) == 1
    agree(looped.run(feeds), spelled.run(feeds))
    long = scanning(1500, axes, backwards)
    feeds = random_inputs(long)
    agree(tilewright.compile_model(long).run(feeds), runtime(long, feeds))


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers_of_many_steps_are_loops(
    op: str, gates: int, direction: str, lengths: bool
) -> None:
    steps, batch, width, hidden = 90, 2, 6, 8
    directions = 2 if direction == "bidirectional" else 1
    weights = {
        "w": RANDOM.standard_normal((directions, gates * hidden, width)) / 3,
        "r": RANDOM.standard_normal((directions, gates * hidden, hidden)) / 3,
        "b": RANDOM.standard_normal((directions, 2 * gates * hidden)) / 5,
        "h": RANDOM.standard_normal((directions, batch, hidden)),
    }
    inputs = {"x": np.zeros((steps, batch, width), np.float32)}
    feeds = {"x": np.float32(RANDOM.standard_normal((steps, batch, width)))}
    if lengths:
        inputs["lengths"] = np.zeros(batch, np.int32)
        feeds["lengths"] = np.array([steps, 31], np.int32)
    names = ["x", "w", "r", "b", "lengths" if lengths else "", "h"]
    outputs = ["y", "last", *(["cell"] if op == "LSTM" else [])]
    layer = node(op, names, outputs, "layer", hidden_size=hidden, direction=direction)
    constants = {name: array.astype(np.float32) for name, array in weights.items()}
    executable = checked(model([layer], inputs, outputs, constants), feeds)
    assert within(executable, Loop) == directions
