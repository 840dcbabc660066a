"""Forms that earlier versions refused, though ONNX Runtime accepts them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.ops.microsoft_cases import nbits
from tests.unit.ops.rule_case import FLOAT, Case, data, i64

_RANDOM = np.random.default_rng(5)


def drawn(*shape: int) -> np.ndarray:
    return _RANDOM.uniform(-0.5, 0.5, shape).astype(FLOAT)


def empty(*shape: int) -> np.ndarray:
    return data(np.zeros(shape), FLOAT)


EMPTY = [
    *(Case("Tile", ((2, 3), i64(*repeats))) for repeats in ((0, 1), (1, 0), (0, 0), (2, 0))),
    Case("Tile", (data([[1, 2]]), i64(0, 3))),
    Case("Tile", (empty(0, 3), i64(2, 2))),
    Case("Pad", (empty(0, 3), i64(0, 1, 0, 1))),
    Case("Pad", (empty(0, 3), i64(2, 1, 1, 1), np.array(1.5, FLOAT))),
    Case("Pad", ((2, 3), i64(-1, 0, -1, 0))),
    *(Case("Pad", (empty(0, 3), i64(0, 1, 0, 2)), {"mode": mode}) for mode in ("edge", "reflect")),
    Case("Gather", (empty(3, 0, 2), data(np.zeros((4, 0)))), {"axis": 1}),
    *(
        Case("CumSum", (empty(*shape), np.array(axis)), {"exclusive": exclusive, "reverse": 1})
        for shape, axis in (((3, 0), 1), ((3, 0), 0), ((0,), 0))
        for exclusive in (0, 1)
    ),
]

GATES = (("Softsign", "Tanh", "Tanh"), ("HardSigmoid", "Affine", "Softsign"))


def lstm(steps: int, gates: tuple[str, ...], **attrs: Any) -> Case:
    attrs |= {"hidden_size": 4, "activations": list(gates)}
    return Case("LSTM", ((steps, 2, 5), drawn(1, 16, 5), drawn(1, 16, 4)), attrs, outputs=3)


RECURRENT = [
    *(lstm(3, gates) for gates in (*GATES, ("sigmoid", "relu", "softsign"))),
    lstm(70, GATES[0]),
    lstm(
        3,
        ("HardSigmoid", "ScaledTanh", "Affine"),
        activation_alpha=[0.3, 0.7, 0.5],
        activation_beta=[0.4, 0.6, 0.1],
    ),
]

NO_STEPS = [
    Case(
        "LSTM",
        (empty(0, 2, 5), drawn(1, 16, 5), drawn(1, 16, 4)),
        {"hidden_size": 4},
        outputs=3,
        numpy=lambda *_: [np.zeros(s, FLOAT) for s in ((0, 1, 2, 4), (1, 2, 4), (1, 2, 4))],
    ),
    Case(
        "GRU",
        (
            empty(0, 2, 5),
            drawn(1, 12, 5),
            drawn(1, 12, 4),
            None,
            None,
            data(np.ones((1, 2, 4)), FLOAT),
        ),
        {"hidden_size": 4},
        outputs=2,
        numpy=lambda *_: [np.zeros((0, 1, 2, 4), FLOAT), np.ones((1, 2, 4), FLOAT)],
    ),
]


def old_training(
    x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> list[np.ndarray]:
    """Training before opset 14 gives the batch's mean and variance in addition to the running
    ones."""
    axes = tuple(dim for dim in range(x.ndim) if dim != 1)
    wide = x.astype(np.float64)
    now, spread = wide.mean(axis=axes), wide.var(axis=axes)

    def along(value: np.ndarray) -> np.ndarray:
        return np.expand_dims(value, tuple(range(1, x.ndim - 1)))

    y = (wide - along(now)) / np.sqrt(along(spread) + 1e-5) * along(scale) + along(bias)
    kept = [0.75 * mean + 0.25 * now, 0.75 * variance + 0.25 * spread]
    return [each.astype(FLOAT) for each in (y, *kept, now, spread)]


TRAINED = [
    *(
        Case(
            "BatchNormalization",
            ((4, 3, 5), (3,), (3,), drawn(3), drawn(3) ** 2),
            {"momentum": 0.75, **is_test},
            opset=opset,
            outputs=5,
            numpy=old_training,
        )
        for opset, is_test in ((6, {"is_test": 0}), (9, {}))
    ),
    *(
        Case(
            "BatchNormalization",
            (shape, (3,), (3,), drawn(3), drawn(3) ** 2),
            {"training_mode": 1, "momentum": momentum},
            opset=15,
            outputs=3,
        )
        for shape, momentum in (((2, 3, 4, 5), 0.9), ((5, 3), 0.25), ((1, 3, 7), 0.0))
    ),
]

CERTAIN = [
    Case(
        "Bernoulli",
        (data([[0, 1, 1], [1, 0, 0]], FLOAT),),
        {"dtype": 6},
        numpy=lambda p: [p.astype(np.int32)],
    ),
    Case("Multinomial", (data([[0, -99, -99], [-99, -99, 9]], FLOAT),), {"sample_size": 5}),
]
"""Chances of which nothing is left to chance."""

SEEDED = [
    Case("Bernoulli", (data([0, 1, 1, 0], FLOAT),), {"seed": 3.0}, numpy=lambda p: [p]),
    Case("Multinomial", (data([[-99, 0]], FLOAT),), {"sample_size": 3, "dtype": 7, "seed": 1.0}),
    *(
        Case(op, (shape,), {"seed": seed}, atol=1e-5)
        for op in ("RandomNormalLike", "RandomUniformLike")
        for shape, seed in (((7, 9), 3.0), ((1,), 0.0), ((40, 41), 12345.0))
    ),
    Case("RandomNormalLike", (data([[1, 2, 3]]),), {"seed": 4.0, "dtype": 11, "mean": 2.0}),
    Case("RandomUniformLike", (data([1], np.float64),), {"seed": 4.0, "low": -3.0}),
    Case("RandomNormal", (), {"seed": 9.0, "shape": [2, 5], "scale": 3.0}, atol=1e-5),
    Case("RandomUniform", (), {"seed": 9.0, "shape": [3], "high": 3.0, "low": 2.0}),
]

GRIDS = [
    Case("AffineGrid", ((size[0], len(size) - 2, len(size) - 1), i64(*size)), attrs, opset=20)
    for size in ((1, 1, 2, 3), (2, 3, 4, 5), (1, 1, 1, 3), (1, 1, 2, 3, 4), (2, 1, 3, 1, 2))
    for attrs in ({"align_corners": 0}, {"align_corners": 1})
]

BLOCKS = [
    nbits((3, depth), 6, depth, block=block, bits=bits)
    for bits in (4, 8)
    for depth, block in ((512, 512), (1100, 512), (300, 1024))
]

ROIS = data([[0, 0, 15, 14], [3.3, 2.2, 3.4, 2.3], [-3, -4, 20, 25], [5, 5, 4, 4]], FLOAT)

SAMPLED = [
    *(
        Case(
            "RoiAlign",
            ((2, 3, 16, 17), ROIS, data([0, 1, 1, 0])),
            {"output_height": 3, "output_width": 2, "spatial_scale": 0.7, "mode": mode},
            opset=opset,
            atol=1e-5,
        )
        for mode in ("avg", "max")
        for opset in (10, 16)
    ),
    Case("RoiAlign", ((1, 2, 4, 4), empty(0, 4), data(np.zeros(0, np.int64))), opset=16),
]
"""Regions of several sizes, beyond the image, smaller than a place and of a negative size, with as
many samples as these sizes require."""

EACH_SIZE = [*EMPTY, *NO_STEPS, *SEEDED]
"""Without elements, or constants that a seed decides: compiled for each size."""

CASES = [*EACH_SIZE, *CERTAIN, *RECURRENT, *TRAINED, *GRIDS, *BLOCKS, *SAMPLED]
