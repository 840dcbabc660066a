"""Cases of the rules that turn one ONNX node into several operators."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.unit.ops.rule_case import FLOAT, Case, data, i64

BYTES = data([[3, 250, 17], [128, 0, 255]], np.uint8)
SIGNED = data([[-128, 127, 5], [0, -1, 64]], np.int8)


def scales(*values: float) -> np.ndarray:
    """Known at import."""
    return np.array(values, FLOAT)


def scale(*values: float) -> np.ndarray:
    return data(values if len(values) > 1 else values[0], FLOAT)


def fourier(attrs: dict[str, Any], x: np.ndarray, length: Any, axis: Any) -> list[np.ndarray]:
    """NumPy's, in float64: ONNX Runtime's is 4e-4 off if the length is not a power of two."""
    values = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    turn = np.fft.ifft if "inverse" in attrs else np.fft.fft
    result = turn(values.astype(np.complex128), int(length), int(axis))
    if "onesided" in attrs:
        result = result[:, : int(length) // 2 + 1]
    return [np.stack([result.real, result.imag], -1).astype(FLOAT)]


BITS = [
    *(
        Case(op, (data([12, -7, 255]), data([10, 3, -1])), opset=18)
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    ),
    Case("BitwiseNot", (BYTES,), opset=18),
    *(
        Case("BitShift", (data(x, t), data(y, t)), {"direction": direction}, opset=opset)
        for direction in ("LEFT", "RIGHT")
        for x, y, t, opset in (
            ([1, 200, 77], [1, 7, 0], np.uint8, 11),
            ([1, 1 << 40, 3], [63, 20, 5], np.uint64, 11),
            ([-128, 100, -1, 5], [3, 1, 9, -2], np.int8, 28),
        )
    ),
    Case("BitCast", ((2, 3),), {"to": 6}, opset=26),
    Case("Pow", (data([-3, 2, 7, 1, -1]), data([3, 20, 0, 9, 5])), opset=15),
    Case("Pow", (data([3, 2, 7], np.int32), data([2.0, 5.0, 1.0], FLOAT)), opset=15),
    Case("Mod", (data([1.5, -2.0], FLOAT), data([np.inf, np.inf], FLOAT)), {"fmod": 1}),
]


def running(x: np.ndarray, axis: np.ndarray) -> list[np.ndarray]:
    """Sums in the type's own range: float16 counts by ones only up to 2048."""
    return [np.cumsum(x, int(axis), dtype=np.float64).astype(x.dtype)]


CUMULATIVE = [
    *(
        Case(op, ((2, 5, 3), np.array(axis)), {"exclusive": e, "reverse": r}, opset=opset)
        for op, opset in (("CumSum", 14), ("CumProd", 26))
        for axis, e, r in ((1, 0, 0), (-1, 1, 0), (0, 0, 1), (1, 1, 1))
    ),
    Case("CumSum", ((7,), np.array(0))),
    Case("CumSum", ((2, 9, 30), np.array(1)), {"reverse": 1}),
    Case("CumSum", ((5, 1, 3), np.array(1))),
    Case("CumSum", ((5, 1, 3), np.array(1)), {"exclusive": 1}),
    Case("CumProd", ((5, 1, 3), np.array(1)), {"exclusive": 1}, opset=26),
    *(
        Case("CumSum", (data(np.ones((2, 3000)), t), np.array(1)), numpy=running)
        for t in (np.float16, np.float64, np.int64, np.uint32)
    ),
    Case("CumSum", (data([[1, 2, 3]], np.int32), np.array(1)), {"exclusive": 1}),
]

ONE_HOT = [
    Case("OneHot", (data([[0, 2], [-1, 7]]), np.array(3), data([2.0, 5.0], FLOAT))),
    Case("OneHot", (data([1, -3]), np.array(4), data([0, 1])), {"axis": 0}),
    Case("Hardmax", ((3, 4, 5),), {"axis": 1}),
    Case("Hardmax", (data([[1, 3, 3], [2, 1, 2]], FLOAT),)),
    Case("Hardmax", ((3, 4, 5),), {"axis": 1}, opset=11),
    Case("EyeLike", (data(np.zeros((3, 4)), np.int32),), {"k": -1}),
    Case("EyeLike", ((4, 2),), {"dtype": 11, "k": 1}),
    Case("EyeLike", ((2, 3),)),
]

LP = [
    Case("LpPool", ((1, 2, 9),), {"kernel_shape": [3], "p": 3}, opset=18),
    Case("LpPool", ((1, 2, 7, 6),), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}, opset=18),
    Case("LpPool", ((1, 1, 6, 6),), {"kernel_shape": [2, 2], "strides": [3, 2], "p": 1}, opset=18),
    Case("GlobalLpPool", ((2, 3, 4, 5),), {"p": 2}),
    Case("GlobalLpPool", ((2, 3, 4),), {"p": 1}),
    Case("LpNormalization", ((3, 4, 5),), {"axis": 1, "p": 1}),
    Case("LpNormalization", ((3, 4),)),
]

SQUARE = data(np.arange(9).reshape(3, 3) * 20, np.uint8)

QUANTISED = [
    Case("QuantizeLinear", ((3, 4), scale(0.02), data(128, np.uint8)), opset=13),
    Case("QuantizeLinear", ((3, 4), scale(0.02, 0.5, 1.0), data([1, 0, -5], np.int8)), {"axis": 0}),
    Case("QuantizeLinear", ((3, 4), scale(0.01)), opset=13),
    Case(
        "QuantizeLinear",
        ((2, 5), data([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], FLOAT), data(np.ones((2, 3)), np.uint8)),
        {"axis": 1, "block_size": 2},
        opset=21,
    ),
    Case("DequantizeLinear", (BYTES, scale(0.5), data(128, np.uint8)), opset=13),
    Case("DequantizeLinear", (SIGNED, scale(0.5, 2.0), data([3, -4], np.int8)), {"axis": 0}),
    Case("DequantizeLinear", (data([[5, -70000]], np.int32), scale(0.5)), opset=13),
    Case("MatMulInteger", (BYTES, data(np.arange(6).reshape(3, 2), np.uint8))),
    Case(
        "MatMulInteger",
        (BYTES, data(np.arange(6).reshape(3, 2), np.int8), data(7, np.uint8), data(1, np.int8)),
    ),
    Case(
        "QLinearMatMul",
        (
            *(BYTES, scale(0.1), data(12, np.uint8)),
            *(data(np.arange(6).reshape(3, 2) * 40, np.uint8), scale(0.2), data(99, np.uint8)),
            *(scale(3.0), data(100, np.uint8)),
        ),
    ),
    Case(
        "ConvInteger",
        (
            data(np.arange(50).reshape(1, 2, 5, 5), np.uint8),
            data(np.arange(36).reshape(2, 2, 3, 3), np.uint8),
            data(9, np.uint8),
            data(17, np.uint8),
        ),
        {"pads": [1, 1, 1, 1]},
    ),
    Case(
        "QLinearConv",
        (
            *(data(np.arange(50).reshape(1, 2, 5, 5) * 5, np.uint8), scale(0.1), data(9, np.uint8)),
            data(np.arange(36).reshape(2, 2, 3, 3) * 7, np.uint8),
            *(scale(0.2, 0.3), data([17, 17], np.uint8), scale(20.0), data(33, np.uint8)),
            np.array([500, -300], np.int32),
        ),
        {"strides": [2, 2]},
    ),
    Case("DequantizeLinear", (SQUARE, scale(0.5)), {"output_dtype": 10}, opset=23),
    # As many of one dimension as of the other, and a zero point for each of one: its axis counts.
    Case("QuantizeLinear", ((3, 3), scale(0.02, 0.1, 0.4), data([1, 90, 200], np.uint8))),
    Case("DequantizeLinear", (SQUARE, scale(0.5, 2, 3), data([3, 9, 200], np.uint8)), {"axis": 0}),
    Case("DequantizeLinear", (SQUARE, scale(0.5, 2, 3), data([3, 9, 200], np.uint8)), {"axis": -1}),
    Case("MatMulInteger", (SQUARE, SQUARE, data([7], np.uint8), data([1, 5, 20], np.uint8))),
    Case(
        "QLinearMatMul",
        (
            *(SQUARE, scale(0.1), data([12], np.uint8)),
            *(SQUARE, scale(0.2, 0.3, 0.1), data([99, 3, 40], np.uint8)),
            *(scale(30.0), data(100, np.uint8)),
        ),
    ),
    Case(
        "ConvInteger",
        (
            data(np.arange(50).reshape(1, 2, 5, 5), np.uint8),
            data(np.arange(36).reshape(2, 2, 3, 3), np.uint8),
            data(9, np.uint8),
            data([17, 3], np.uint8),
        ),
    ),
    Case(
        "QLinearConv",
        (
            *(data(np.arange(50).reshape(1, 2, 5, 5) * 5, np.uint8), scale(0.1), data(9, np.uint8)),
            data(np.arange(36).reshape(2, 2, 3, 3) * 7, np.uint8),
            *(scale(0.2, 0.3), data([17, 40], np.uint8), scale(20.0), data(33, np.uint8)),
        ),
    ),
]

CONV_TRANSPOSED = [
    Case("ConvTranspose", ((1, 3, 5, 4), (3, 2, 3, 3))),
    Case("ConvTranspose", ((1, 3, 5, 4), (3, 2, 3, 3), (2,)), {"strides": [2, 3]}),
    Case("ConvTranspose", ((2, 4, 6), (4, 3, 4)), {"strides": [2], "pads": [1, 2]}),
    Case("ConvTranspose", ((1, 4, 5), (4, 2, 2), (4,)), {"strides": [3], "group": 2}),
    Case(
        "ConvTranspose",
        ((1, 2, 4, 4), (2, 1, 3, 2)),
        {"dilations": [2, 3], "strides": [1, 2], "output_padding": [0, 1]},
    ),
    Case("ConvTranspose", ((1, 1, 4), (1, 1, 3)), {"strides": [2], "auto_pad": "SAME_LOWER"}),
    Case(
        "ConvTranspose",
        ((1, 2, 5, 4), (2, 3, 3, 2)),
        {"dilations": [2, 3], "strides": [1, 2], "pads": [1, 0, 2, 1]},
    ),
    Case("ConvTranspose", ((1, 2, 5, 4), (2, 3, 1, 2)), {"strides": [2, 3]}),
    Case("ConvTranspose", ((1, 1, 4), (1, 1, 3)), {"strides": [3], "output_shape": [12]}),
    Case("ConvTranspose", ((1, 1, 2, 3, 2), (1, 2, 2, 2, 2)), {"strides": [2, 1, 2]}),
    Case("Col2Im", ((1, 5, 5), i64(5, 5), i64(1, 5)), opset=18),
    Case("Col2Im", ((2, 12, 4), i64(5, 4), i64(2, 3)), {"strides": [3, 1]}, opset=18),
    Case("Col2Im", ((1, 8, 6), i64(5, 4), i64(2, 2)), {"dilations": [2, 2]}, opset=18),
]

EVERY_MODE = [
    {"mode": "linear", "coordinate_transformation_mode": mode}
    for mode in ("half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners")
] + [
    {"mode": "nearest", "nearest_mode": mode}
    for mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
]

RESIZED = [
    *(Case("Resize", ((1, 2, 4, 6), None, None, i64(1, 2, 8, 3)), attrs) for attrs in EVERY_MODE),
    *(Case("Resize", ((1, 1, 3, 5), None, None, i64(1, 1, 7, 5)), attrs) for attrs in EVERY_MODE),
    Case("Resize", ((1, 1, 4, 4), None, scales(1, 1, 2.0, 3.0))),
    Case("Resize", ((1, 1, 4, 4), None, scales(1, 1, 0.8, 0.8)), {"mode": "cubic"}),
    Case(
        "Resize",
        ((1, 1, 4, 5), None, None, i64(1, 1, 9, 3)),
        {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    ),
    *(
        Case("Resize", ((1, 1, 9, 7), None, None, i64(4, 3)), {**attrs, "axes": [2, 3]}, opset=18)
        for attrs in ({"mode": "linear", "antialias": 1}, {"mode": "cubic", "antialias": 1})
    ),
    Case(
        "Resize",
        ((1, 1, 4, 6), None, None, i64(7, 8)),
        {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        opset=18,
    ),
    Case(
        "Resize",
        ((1, 1, 4, 4), np.array([0.0, 0, 0.2, 0.4, 1, 1, 1.3, 0.8], FLOAT), None, i64(1, 1, 3, 3)),
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
    ),
    Case(
        "Resize",
        ((1, 1, 4, 4), np.array([0.0, 0, 0.2, 0.4, 1, 1, 1.3, 0.8], FLOAT), None, i64(1, 1, 3, 3)),
        {
            "mode": "linear",
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": -7.5,
        },
    ),
    Case("Resize", ((1, 1, 2, 3), scales(1, 1, 2, 2)), {"mode": "linear"}, opset=10),
    Case(
        "Resize",
        ((1, 1, 4, 7), scales(), scales(1, 1, 1.6, 0.45)),
        {"mode": "nearest", "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
        opset=11,
    ),
    Case(
        "Resize",
        ((1, 1, 6, 5), np.array([0, 0, 0.1, 0.3, 1, 1, 0.7, 0.8], FLOAT), None, i64(1, 1, 1, 3)),
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
    ),
    Case("Upsample", ((1, 1, 2, 3), scales(1, 1, 2, 3)), opset=9),
    Case("Upsample", ((1, 1, 2, 3),), {"scales": [1.0, 1.0, 2.0, 2.0]}, opset=7),
]

EINSUM = [
    Case("Einsum", shapes, {"equation": equation})
    for equation, shapes in (
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij, bjk -> bik", ((5, 2, 3), (5, 3, 4))),
        ("i,i", ((4,), (4,))),
        ("ij->ji", ((2, 3),)),
        ("ij->i", ((2, 3),)),
        ("ii->i", ((4, 4),)),
        ("...ii->...i", ((2, 4, 4),)),
        ("...ij,...jk->...ik", ((2, 1, 2, 3), (5, 3, 4))),
        ("i,j->ij", ((2,), (3,))),
        ("k,ij->jki", ((4,), (2, 3))),
        ("ji,,i->ij", ((2, 3), (), (3,))),
        ("i,kj,ik->jik", ((2,), (4, 3), (1, 4))),
        ("ab,bc,cd->da", ((2, 3), (3, 4), (4, 5))),
        ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("ba", ((2, 3),)),
    )
]


def recurrent(op: str, gates: int, **attrs: Any) -> Case:
    """5 steps, a batch of 3, 2 inputs, 4 hidden."""
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    lengths = attrs.pop("lengths", None)
    rows = gates * 4
    swapped = attrs.get("layout") == 1
    inputs = [
        (3, 5, 2) if swapped else (5, 3, 2),
        (directions, rows, 2),
        (directions, rows, 4),
        (directions, 2 * rows),
        None if lengths is None else data(lengths, np.int32),
        (3, directions, 4) if swapped else (directions, 3, 4),
    ]
    if op == "LSTM":
        inputs += [inputs[-1], (directions, 12)]
    attrs["hidden_size"] = 4
    return Case(op, tuple(inputs), attrs, outputs=3 if op == "LSTM" else 2)


RECURRENT = [
    recurrent(op, gates, **attrs)
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    for attrs in (
        {},
        {"direction": "reverse", "clip": 0.5},
        {"direction": "bidirectional", "lengths": [5, 2, 4]},
    )
] + [
    recurrent("GRU", 3, linear_before_reset=1),
    recurrent("RNN", 1, activations=["LeakyRelu"], activation_alpha=[0.3]),
    recurrent("LSTM", 4, input_forget=1),
    *(recurrent(op, gates, layout=1) for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))),
    Case("LSTM", ((4, 2, 3), (1, 8, 3), (1, 8, 2)), {"hidden_size": 2}, outputs=3),
]

SIGNALS = [
    Case("Det", ((2, 3, 5, 5),), opset=11),
    Case("Det", (data([[0, 2, 1], [0, 3, 4], [5, 1, 1]], FLOAT),), opset=11),
    Case("Det", (data([[1, 2], [2, 4]], FLOAT),), opset=11),
    Case("Det", ((1, 1),), opset=11),
    *(
        # ONNX Runtime computes its angles in float32
        Case("DFT", ((2, 6, 3, parts), None, np.array(axis)), attrs, opset=20, atol=1e-5)
        for parts, axis, attrs in (
            (1, 1, {}),
            (2, -2, {"inverse": 1}),
            (1, 1, {"onesided": 1}),
            (2, 2, {}),
        )
    ),
    *(  # in two steps, of 8 by 9 and 10 by 20 points
        Case(
            "DFT",
            ((2, given, 3, parts), np.array(n), np.array(1)),
            attrs,
            opset=20,
            atol=1e-5,
            numpy=partial(fourier, attrs),
        )
        for given, n in ((72, 72), (150, 200))
        for parts, attrs in ((1, {"onesided": 1}), (2, {"inverse": 1}), (2, {}))
    ),
    Case("DFT", ((2, 5, 2), np.array(8)), {"axis": 1}, opset=17),
    Case("DFT", ((2, 5, 1), np.array(4)), {"axis": 1}, opset=17),
    Case("DFT", ((2, 5, 2),), {"axis": 1, "inverse": 1, "onesided": 1}, opset=19),
    Case("STFT", ((2, 20, 1), np.array(3), None, np.array(8))),
    Case("STFT", ((1, 16, 1), np.array(4), (8,), None), {"onesided": 0}),
    Case(
        "MelWeightMatrix",
        (np.array(6), np.array(32), np.array(8000), np.array(50.0, FLOAT), np.array(3900.0, FLOAT)),
    ),
    *(
        Case(
            "TfIdfVectorizer",
            (data([[1, 3, 3, 3, 7, 8], [5, 6, 7, 8, 6, 7]]),),
            {
                "mode": mode,
                "min_gram_length": low,
                "max_gram_length": 2,
                "max_skip_count": skips,
                "ngram_counts": [0, 4],
                "ngram_indexes": [6, 1, 2, 3, 4, 5, 0],
                "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
                "weights": [0.5, 2.0, 3.0, 1.0, 1.5, 0.25, 4.0],
            },
        )
        for mode, low, skips in (("TF", 2, 0), ("IDF", 1, 5), ("TFIDF", 1, 1))
    ),
]

CASES = [
    *SIGNALS,
    *RECURRENT,
    *CONV_TRANSPOSED,
    *RESIZED,
    *EINSUM,
    *BITS,
    *CUMULATIVE,
    *ONE_HOT,
    *LP,
    *QUANTISED,
]
