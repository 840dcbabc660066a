"""RNN, GRU and LSTM in float16 and bfloat16: states are float32 from step to step.

The gates keep nearly all of the state, so that an error of each step would add up. Results are
rounded once: they are off by half of the last digit of the largest, and by the effect of 16-bit
factors of the products.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.compiler.api import compile_model

STEPS, BATCH, WIDTH, HIDDEN = 90, 2, 16, 24
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
HALVES = {
    TensorProto.FLOAT16: (np.dtype(np.float16), 2.0**-10),
    TensorProto.BFLOAT16: (np.dtype(ml_dtypes.bfloat16), 2.0**-7),
}
DIGITS = 0.8
"""Of the last place, for numbers near the largest."""

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def expected(op: str, x: Array, w: Array, r: Array, b: Array, start: Array) -> list[Array]:
    """The results in float64: Y, Y_h and Y_c."""
    rows = r.shape[0]
    h, cell, outputs = start, np.zeros_like(start), []

    def parts(value: Array) -> list[Array]:
        return np.split(value, GATES[op], axis=-1)

    for step in x:
        given, before = parts(step @ w.T + b[:rows]), parts(h @ r.T + b[rows:])
        total = [a + c for a, c in zip(given, before, strict=True)]
        if op == "RNN":
            h = np.tanh(total[0])
        elif op == "GRU":
            update, reset = sigmoid(total[0]), sigmoid(total[1])
            again = (reset * h) @ parts(r.T)[2] + parts(b[rows:])[2]
            h = (1 - update) * np.tanh(given[2] + again) + update * h
        else:
            entry, out, forget = map(sigmoid, total[:3])
            cell = forget * cell + entry * np.tanh(total[3])
            h = out * np.tanh(cell)
        outputs.append(h)
    return [np.array(outputs)[:, None], h[None], cell[None]]


def model(op: str, kind: int, weights: dict[str, Array], results: int) -> ModelProto:
    node = helper.make_node(
        op, ["x", "w", "r", "b", "", "start"], list("yhc")[:results], hidden_size=HIDDEN
    )
    inputs = {"x": (STEPS, BATCH, WIDTH), "start": (1, BATCH, HIDDEN)}
    graph = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in node.output],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.parametrize("kind", HALVES, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("op", GATES)
def test_states_are_not_rounded_at_each_step(op: str, kind: int) -> None:
    random, (dtype, digit) = np.random.default_rng(3), HALVES[kind]
    rows = GATES[op] * HIDDEN
    kept = {"RNN": slice(0), "GRU": slice(HIDDEN), "LSTM": slice(2 * HIDDEN, 3 * HIDDEN)}[op]
    b = 0.1 * random.standard_normal((1, 2 * rows))
    b[:, kept] += 4
    weights = {
        "w": (0.3 * random.standard_normal((1, rows, WIDTH))).astype(dtype),
        "r": (0.1 * random.standard_normal((1, rows, HIDDEN))).astype(dtype),
        "b": b.astype(dtype),
    }
    x = random.standard_normal((STEPS, BATCH, WIDTH)).astype(dtype)
    start = random.standard_normal((1, BATCH, HIDDEN)).astype(dtype)
    results = 3 if op == "LSTM" else 2
    found = compile_model(model(op, kind, weights, results)).run({"x": x, "start": start})
    exact = (np.asarray(a, np.float64) for a in (weights[n][0] for n in "wrb"))
    wanted = expected(op, np.asarray(x, np.float64), *exact, np.asarray(start[0], np.float64))
    for mine, right in zip(found, wanted, strict=False):
        assert mine.dtype == dtype
        error = np.abs(np.asarray(mine, np.float64) - right).max() / np.abs(right).max()
        assert error <= DIGITS * digit
