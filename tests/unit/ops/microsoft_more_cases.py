"""Cases of com.microsoft's operators on matrices, recurrent layers, images and decoders.

ONNX Runtime's kernels give the expected results; `numpy` gives those of operators without a CPU
kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.ops.microsoft_cases import f32, ms, s8, u8
from tests.unit.ops.rule_case import FLOAT, Case, data

_RANDOM = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return data(_RANDOM.standard_normal(shape), FLOAT)


def fixed(array: np.ndarray) -> np.ndarray:
    """The same elements as an initializer."""
    return np.array(array)


def _lstm(
    length: int, directions: int, *, columns: bool = False, kind: Any = s8, **attrs: Any
) -> Case:
    """A batch of one: with several rows, ONNX Runtime quantises those of a thread together."""
    width, hidden = 6, 5
    each = (directions, 4 * hidden) if columns else (directions,)

    def held(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        bytes_ = fixed(kind(directions, rows, 4 * hidden))
        scale = _RANDOM.uniform(0.005, 0.02, each).astype(FLOAT)
        zero = 0 if kind is s8 else 128
        return bytes_, scale, np.full(each, zero, bytes_.dtype)

    (w, w_scale, w_zero), (r, r_scale, r_zero) = held(width), held(hidden)
    bias = fixed(floats(directions, 8 * hidden))
    states = [floats(directions, 1, hidden) for _ in range(2)]
    operands = [floats(length, 1, width), w, r, bias, None, *states, None]
    names = {2: "bidirectional", 1: "forward"}
    return ms(
        "DynamicQuantizeLSTM",
        (*operands, w_scale, w_zero, r_scale, r_zero),
        {"hidden_size": hidden, "direction": names[directions], **attrs},
        outputs=3,
        atol=2e-4,
    )


def _decoder(*, mask: bool = False, bias: bool = False, past: int = 3) -> Case:
    batch, heads, size, most = 2, 2, 4, 6
    width = heads * size
    seen = data(_RANDOM.integers(0, 2, (batch, past + 1)), np.int32)
    seen[:, 0] = 1
    return ms(
        "DecoderMaskedMultiHeadAttention",
        (
            *(floats(batch, 1, width) for _ in range(3)),
            seen if mask else None,
            None,
            *(floats(batch, heads, most, size) for _ in range(2)),
            data([past], np.int32),
            None,
            None,
            floats(3 * width) if bias else None,
        ),
        {"num_heads": heads, "past_present_share_buffer": 1},
        outputs=3,
    )


_CROSS = ms(
    "DecoderMaskedMultiHeadAttention",
    (floats(2, 1, 8), *(floats(2, 2, 5, 4) for _ in range(2))),
    {"num_heads": 2},
)


def _ngrams(ids: list[list[int]], size: int, tokens: int = 6) -> Case:
    return ms("NGramRepeatBlock", (data(ids), (len(ids), tokens)), {"ngram_size": size})


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _finite(value: float, expected: bool, **attrs: int) -> Case:
    return ms(
        "IsAllFinite",
        (data([1, value], FLOAT), (2, 2)),
        attrs,
        numpy=lambda *_: [np.array(expected)],
    )


NAN, INFINITY = float("nan"), float("inf")

CASES = [
    *(ms("Inverse", (shape,), atol=1e-4) for shape in ((4, 4), (2, 3, 5, 5), (1, 1))),
    ms("Inverse", (data([[0, 2], [3, 0]], FLOAT),)),  # the first pivot is 0
    *(
        ms("CDist", ((4, 3), (5, 3)), {"metric": m}, atol=1e-5)
        for m in ("euclidean", "sqeuclidean")
    ),
    _finite(2.0, True),
    _finite(NAN, False),
    _finite(-INFINITY, False),
    _finite(NAN, True, isinf_only=1),
    _finite(INFINITY, True, isnan_only=1),
    _lstm(3, 1),
    _lstm(4, 2, columns=True),
    _lstm(1, 1, kind=u8),
    _lstm(70, 1),
    *(_decoder(**{key: True}) for key in ("mask", "bias")),
    _decoder(past=0),
    _decoder(past=5),
    _CROSS,
    _ngrams([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]], 3),
    _ngrams([[1, 2, 3, 1, 2]], 2),
    _ngrams([[1, 2, 3, 1, 2]], 1),
    _ngrams([[1, 2]], 4),
    ms("BiasAdd", ((2, 3, 4), (4,), (2, 3, 4)), numpy=lambda x, b, s: [x + b + s]),
    ms(
        "BiasSoftmax",
        ((2, 3, 4, 5), (2, 1, 1, 5)),
        {"axis": 3, "is_inner_broadcast": 1},
        numpy=lambda x, b: [_softmax(x + b)],
    ),
    ms(
        "BiasSoftmax",
        ((2, 3, 4, 5), (1, 3, 4, 5)),
        {"axis": -1, "is_inner_broadcast": 0},
        numpy=lambda x, b: [_softmax(x + b)],
    ),
    ms("Range", (f32(1), f32(7), f32(2))),
    ms(
        "NhwcMaxPool",
        (u8(1, 6, 5, 3),),
        {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 0, 1]},
    ),
    *(
        ms(
            "QLinearConv",
            (
                u8(*((1, 6, 5, 3) if last else (1, 3, 6, 5))),
                *(f32(0.02), np.uint8(120)),
                # 7 bits: ONNX Runtime's sums of two products saturate without VNNI.
                *(fixed(s8(4, 3, 3, 3) // 2), f32(0.02), np.int8(0)),
                *(f32(0.05), np.uint8(100)),
            ),
            {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "channels_last": last},
            atol=1.0,  # a quantum, where the kernel rounds at another place
        )
        for last in (0, 1)
    ),
    *(
        ms("GridSample", ((1, 2, 4, 5), (1, 3, 3, 2)), {"mode": mode, "align_corners": corners})
        for mode in ("bilinear", "nearest", "bicubic")
        for corners in (0, 1)
    ),
]

CONTRADICTIONS = [
    (ms("Inverse", ((2, 3),)), "no square matrices"),
    (ms("CDist", ((2, 3), (2, 4))), r"the operands are \(2, 3\) and \(2, 4\)"),
    (
        ms("IsAllFinite", ((2,),), {"isinf_only": 1, "isnan_only": 1}),
        "attributes 'isinf_only' and 'isnan_only' exclude each other",
    ),
    (_ngrams([[1, 2]], 0), "attribute 'ngram_size' is 0"),
    (
        ms("NGramRepeatBlock", (data([1, 2]), (1, 6)), {"ngram_size": 2}),
        r"input_ids \(input 0\) is \(2\) and scores \(input 1\) \(1, 6\)",
    ),
    (
        ms("DecoderMaskedMultiHeadAttention", ((1, 2, 8),) * 3, {"num_heads": 2}),
        "the query has 2 rows",
    ),
    (ms("BiasSoftmax", ((4, 5), (3, 5)), {"axis": 1}), r"the bias \(input 1\) is \(3, 5\)"),
]
"""Inputs that contradict ONNX Runtime's documentation, and part of the message."""

UNSUPPORTED = [
    (ms("Inverse", ((65, 65),)), "matrices of 65 rows"),
    (ms("CDist", ((2, 3), (2, 3)), {"metric": "cosine"}), "attribute 'metric' is 'cosine'"),
    (
        ms(
            "DecoderMaskedMultiHeadAttention",
            (*_CROSS.inputs, *[None] * 5, np.array(4, np.int32)),
            {"num_heads": 2},
        ),
        r"beam_width \(input 8\) must be 1",
    ),
]
