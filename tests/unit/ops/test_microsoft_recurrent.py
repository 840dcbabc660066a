"""DynamicQuantizeLSTM: tests that the cases against ONNX Runtime leave out."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.ops.microsoft_cases import ms
from tests.unit.ops.rule_case import FLOAT, Case, data
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.ops.interpret import run_graph

RANDOM = np.random.default_rng(3)
WIDTH, HIDDEN = 6, 5


def case(x: np.ndarray, state: np.ndarray, **changed: np.ndarray) -> Case:
    random = np.random.default_rng(4)
    weights = {
        "w": random.integers(-128, 128, (1, WIDTH, 4 * HIDDEN)).astype(np.int8),
        "r": random.integers(-128, 128, (1, HIDDEN, 4 * HIDDEN)).astype(np.int8),
        "w_scale": np.full(1, 0.02, FLOAT),
        "r_scale": np.full(1, 0.01, FLOAT),
    } | changed
    zero = np.zeros(1, np.int8)
    return ms(
        "DynamicQuantizeLSTM",
        (
            *(data(x, FLOAT), weights["w"], weights["r"], None, None),
            *(data(state, FLOAT), data(np.zeros_like(state), FLOAT), None),
            *(weights["w_scale"], zero, weights["r_scale"], zero),
        ),
        {"hidden_size": HIDDEN},
        outputs=3,
    )


def run(x: np.ndarray, state: np.ndarray) -> list[np.ndarray]:
    model, feeds = case(x, state).model()
    return run_graph(import_model(model), {name: np.asarray(a) for name, a in feeds.items()})


def test_the_state_of_a_row_is_quantised_by_itself() -> None:
    """Inputs are quantised together, so that all rows have the same smallest and largest one."""
    values = RANDOM.standard_normal(WIDTH)
    x = np.array([[RANDOM.permutation(values) for _ in range(3)] for _ in range(4)])
    state = RANDOM.standard_normal((1, 3, HIDDEN)) * [[[1.0], [0.1], [10.0]]]
    whole = run(x, state)
    for row in range(3):
        alone = run(x[:, row : row + 1], state[:, row : row + 1])
        for both, one in zip(whole, alone, strict=True):
            np.testing.assert_allclose(both[..., row : row + 1, :], one, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"w": np.zeros((WIDTH, 4 * HIDDEN), np.int8)}, "weights"),
        ({"w": np.zeros((1, WIDTH + 1, 4 * HIDDEN), np.int8)}, "weights for 7 features"),
        ({"r": np.zeros((1, HIDDEN + 1, 4 * HIDDEN), np.int8)}, r"R \(input 2\) is \(1, 6, 20\)"),
        ({"w_scale": np.ones(3, FLOAT)}, "input 8 is"),
    ],
)
def test_weights_that_do_not_fit_are_refused(changed: dict[str, np.ndarray], message: str) -> None:
    model, _ = case(np.zeros((2, 1, WIDTH)), np.zeros((1, 1, HIDDEN)), **changed).model()
    with pytest.raises(InvalidModelError, match=message):
        import_model(model)
