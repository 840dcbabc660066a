"""Cases of com.microsoft's operators; ONNX Runtime's kernels give the expected results."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.ops.rule_case import FLOAT, Case, data, i64

_RANDOM = np.random.default_rng(11)
_IMAGE = (1, 3, 6, 5)


def f32(value: float) -> np.ndarray:
    return np.array(value, FLOAT)


def u8(*shape: int) -> np.ndarray:
    return data(_RANDOM.integers(0, 256, shape), np.uint8)


def s8(*shape: int) -> np.ndarray:
    return data(_RANDOM.integers(-128, 128, shape), np.int8)


def ms(
    op_type: str, inputs: tuple[Any, ...], attrs: dict[str, Any] | None = None, **more: Any
) -> Case:
    return Case(op_type, inputs, attrs or {}, domain="com.microsoft", **more)


def _q(array: np.ndarray, scale: float, zero: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An operand, its scale and its zero point."""
    return array, f32(scale), np.array(zero, array.dtype)


def _out(scale: float, zero: int, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    return f32(scale), np.array(zero, dtype)


QUANTISED = [
    ms(
        "QLinearAdd", (*_q(u8(2, 5), 0.02, 128), *_q(u8(2, 5), 0.03, 7), *_out(0.05, 100, np.uint8))
    ),
    ms("QLinearAdd", (*_q(s8(2, 3, 5), 0.02, -3), *_q(s8(5), 0.03, 7), *_out(0.05, 9, np.int8))),
    ms(
        "QLinearMul", (*_q(u8(2, 5), 0.02, 128), *_q(u8(2, 1), 0.03, 7), *_out(0.06, 100, np.uint8))
    ),
    ms("QLinearSigmoid", (*_q(u8(64), 0.05, 128), *_out(1 / 256, 0, np.uint8))),
    ms("QLinearSigmoid", (*_q(s8(64), 0.05, 0), *_out(1 / 256, -128, np.int8))),
    ms("QLinearLeakyRelu", (*_q(u8(64), 0.05, 90), *_out(0.04, 30, np.uint8)), {"alpha": 0.2}),
    ms("QLinearLeakyRelu", (*_q(s8(64), 0.05, 90)[:2], None, *_out(0.04, 0, np.int8))),
    ms(
        "QLinearSoftmax",
        (*_q(u8(3, 7), 0.05, 90), *_out(1 / 256, 0, np.uint8)),
        {"opset": 13, "axis": -1},
    ),
    ms(
        "QLinearSoftmax",
        (*_q(s8(2, 3, 7), 0.05, 0), *_out(1 / 256, -128, np.int8)),
        {"opset": 13, "axis": 1},
    ),
    ms(
        "QLinearSoftmax",
        (*_q(u8(2, 3, 5), 0.05, 90), *_out(1 / 256, 0, np.uint8)),
        {"opset": 12, "axis": 1},
    ),
    ms(
        "QLinearConcat",
        (*_out(0.04, 100, np.uint8), *_q(u8(2, 5), 0.02, 128), *_q(u8(2, 3), 0.03, 7)),
        {"axis": 1},
    ),
    ms(
        "QLinearConcat",
        (*_out(0.04, 1, np.int8), *_q(s8(1, 5), 0.04, 1), *_q(s8(2, 5), 0.03, 7)),
        {"axis": -2},
    ),
    ms("QLinearGlobalAveragePool", (*_q(u8(*_IMAGE), 0.02, 128), *_out(0.01, 100, np.uint8))),
    ms(
        "QLinearGlobalAveragePool",
        (*_q(s8(2, 5, 6, 3), 0.02, 5), *_out(0.01, 9, np.int8)),
        {"channels_last": 1},
    ),
    ms(
        "QLinearAveragePool",
        (*_q(u8(*_IMAGE), 0.02, 128), *_out(0.015, 100, np.uint8)),
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]},
    ),
    ms(
        "QLinearAveragePool",
        (*_q(s8(1, 6, 5, 4), 0.02, 3), *_out(0.015, -7, np.int8)),
        {"kernel_shape": [2, 2], "count_include_pad": 1, "pads": [1, 1, 0, 0], "channels_last": 1},
    ),
    ms(
        "QLinearWhere",
        (
            data([[True, False, True]], np.bool_),
            *_q(u8(2, 3), 0.02, 128),
            *_q(u8(3), 0.03, 7),
            *_out(0.04, 100, np.uint8),
        ),
    ),
    ms("QuantizeLinear", ((3, 7), f32(0.02), np.array(7, np.int8))),
    ms("DequantizeLinear", (s8(3, 7), f32(0.02), np.array(7, np.int8))),
    ms(
        "DequantizeLinear",
        (u8(3, 4), np.array([0.1, 0.2, 0.3], FLOAT), np.array([1, 2, 3], np.uint8)),
        {"axis": 0},
    ),
]

PRODUCTS = [
    ms("DynamicQuantizeMatMul", ((3, 9), s8(9, 5), f32(0.02), np.array(3, np.int8)), atol=2e-4),
    ms(
        "DynamicQuantizeMatMul",
        ((2, 3, 9), u8(9, 5), np.linspace(0.01, 0.02, 5, dtype=FLOAT), None, (5,)),
        atol=2e-4,
    ),
    ms("DynamicQuantizeMatMul", (data(np.zeros((2, 4)), FLOAT), s8(4, 3), f32(0.1))),
    ms(
        "MatMulIntegerToFloat",
        (u8(3, 9), s8(9, 5), f32(0.02), f32(0.03), np.array(128, np.uint8), np.array(2, np.int8)),
        atol=1e-4,
    ),
    ms(
        "MatMulIntegerToFloat",
        (
            s8(2, 3, 9),
            s8(9, 5),
            f32(0.02),
            np.linspace(0.01, 0.02, 5, dtype=FLOAT),
            np.array(-1, np.int8),
            np.array([0, 1, 2, -3, 127], np.int8),
            (5,),
        ),
        atol=1e-4,
    ),
    ms(
        "QGemm",
        (
            *_q(u8(3, 9), 0.02, 128),
            *_q(s8(5, 9), 0.03, 0),
            data([1, -2000, 3, 4, 900], np.int32),
            *_out(0.9, 100, np.uint8),
        ),
        {"transB": 1, "alpha": 1.5},
    ),
    ms("QGemm", (*_q(u8(9, 3), 0.02, 255), *_q(s8(9, 5), 0.03, -4)), {"transA": 1}, atol=1e-4),
    ms(
        "QGemm",
        (
            *_q(u8(3, 9), 0.02, 0),
            s8(9, 5),
            np.linspace(0.01, 0.02, 5, dtype=FLOAT),
            np.zeros(5, np.int8),
            None,
            *_out(0.4, 100, np.uint8),
        ),
    ),
    ms("FusedMatMul", ((2, 3, 4), (2, 3, 5)), {"transA": 1, "alpha": 0.5}),
    ms("FusedMatMul", ((3, 4), (5, 4)), {"transB": 1}),
    ms("FusedMatMul", ((3, 2, 4), (2, 4, 5)), {"transBatchA": 1}),
    ms("FusedMatMul", ((2, 3, 4), (5, 2, 4)), {"transBatchB": 1, "transB": 1}),
    *(
        ms("FusedGemm", ((3, 5), (4, 5), (4,)), {"transB": 1, "activation": name, **more})
        for name, more in (
            ("Relu", {}),
            ("LeakyRelu", {"activation_alpha": 0.3}),
            ("Sigmoid", {}),
            ("Tanh", {}),
            ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
        )
    ),
    *(
        ms("FusedConv", ((1, 3, 6, 5), (4, 3, 3, 3), (4,)), {"activation": name, **more})
        for name, more in (
            ("Relu", {}),
            ("Clip", {"activation_params": [-0.5, 0.75]}),
            ("LeakyRelu", {"activation_params": [0.3]}),
            ("HardSigmoid", {"activation_params": [0.3, 0.4]}),
        )
    ),
    ms("FusedConv", ((1, 3, 6, 5), (4, 3, 3, 3), None, (1, 4, 4, 3))),
]

FUSED = [
    ms("FastGelu", ((3, 7),), atol=2e-5),
    ms("FastGelu", ((3, 7), (7,)), atol=2e-5),
    ms("BiasGelu", ((2, 3, 7), (7,))),
    ms("QuickGelu", ((3, 7),)),
    ms("QuickGelu", ((3, 7),), {"alpha": 0.5}),
    ms("SkipLayerNormalization", ((2, 3, 8), (2, 3, 8), (8,), (8,), (8,)), {"epsilon": 1e-3}),
    ms("SkipLayerNormalization", ((2, 3, 8), (3, 8), (8,))),
    ms("SkipSimplifiedLayerNormalization", ((2, 3, 8), (2, 3, 8), (8,), (8,)), {"epsilon": 1e-3}),
    Case("SimplifiedLayerNormalization", ((2, 3, 8), (8,)), {"epsilon": 1e-3}),
]


def nbits(
    x: Any, columns: int, depth: int, *rest: Any, block: int = 16, bits: int = 4, **attrs: int
) -> Case:
    """MatMulNBits with random weights and scales."""
    blocks = -(-depth // block)
    weight = _RANDOM.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    scales = _RANDOM.uniform(0.005, 0.02, (columns, blocks)).astype(FLOAT)
    both = {"K": depth, "N": columns, "bits": bits, "block_size": block, **attrs}
    return ms("MatMulNBits", (x, weight, scales, *rest), both, atol=1e-5)


def drawn_bytes(*shape: int) -> np.ndarray:
    return _RANDOM.integers(0, 256, shape).astype(np.uint8)


_ROWS = drawn_bytes(7, 16)
_SCALES = _RANDOM.uniform(0.005, 0.02, (7, 2)).astype(FLOAT)

BLOCKS = [
    nbits((3, 32), 5, 32),
    nbits((2, 3, 40), 5, 40, drawn_bytes(5, 2)),  # three blocks, two zero points a byte
    nbits((1, 64), 9, 64, np.full((9, 1), 0x88, np.uint8), block=32),
    nbits((3, 64), 5, 64, _RANDOM.uniform(7, 9, (5, 4)).astype(FLOAT)),
    nbits((3, 70), 5, 70, None, np.arange(80, dtype=np.int32) // 16, (5,)),
    nbits((3, 70), 5, 70, None, np.roll(np.arange(70, dtype=np.int32), 9) // 16),
    nbits((3, 64), 5, 64, None, np.arange(64, dtype=np.int32)[::-1] % 3 * 2 // 3),
    nbits((3, 40), 5, 40, bits=2),
    nbits((1, 96), 9, 96, drawn_bytes(9, 1), bits=2, block=32),
    nbits((5, 128), 9, 128, drawn_bytes(9, 2), bits=2),
    nbits((3, 32), 5, 32, bits=8),
    nbits((3, 33), 5, 33, drawn_bytes(5, 2), block=32, bits=8, accuracy_level=1),
    nbits((2, 256), 3, 256, block=256),
    ms("GatherBlockQuantized", (_ROWS, data([[0, -1], [6, 3]]), _SCALES), {"block_size": 16}),
    ms(
        "GatherBlockQuantized",
        (_ROWS, data([2, 5], np.int32), _SCALES, drawn_bytes(7, 1)),
        {"block_size": 16, "quantize_axis": -1},
    ),
    ms(
        "GatherBlockQuantized",
        (drawn_bytes(7, 32), data(2), _SCALES, drawn_bytes(7, 2)),
        {"block_size": 16, "bits": 8},
    ),
]


def i32(*values: Any) -> np.ndarray:
    return data(values, np.int32)


def qattention(mask: Any = None, *rest: Any, each: tuple[int, ...] = (), **attrs: Any) -> Case:
    """Two rows of three tokens, two heads of four; a scale for all weights or `each` column."""
    scale = np.linspace(0.01, 0.02, int(np.prod(each)), dtype=FLOAT).reshape(each)
    bias = data(_RANDOM.standard_normal(24), FLOAT)
    operands = (u8(2, 3, 8), drawn_bytes(8, 24), bias, f32(0.02), scale, mask)
    zeros = np.array(128, np.uint8), np.array(120, np.uint8)
    outputs = 2 if rest else 1
    more = {"num_heads": 2, **attrs}
    return ms("QAttention", (*operands, *zeros, *rest), more, atol=2e-5, outputs=outputs)


ATTENTION = [
    qattention(),
    qattention(i32(2, 3), each=(24,)),
    qattention(unidirectional=1, scale=0.3),
    qattention(
        i32([1, 1, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1, 1]), (2, 2, 2, 5, 4), unidirectional=1
    ),
]

CASES = [*QUANTISED, *PRODUCTS, *FUSED, *BLOCKS, *ATTENTION]

_U, _S = np.zeros((2, 3), np.uint8), np.zeros((3, 2), np.int8)
_ONE, _U0, _S0 = f32(1), np.array(0, np.uint8), np.array(0, np.int8)
_TWO, _F3 = np.ones(2, FLOAT), np.ones(3, FLOAT)
_A = data(_U, np.uint8), _ONE, _U0

CONTRADICTIONS = [
    (ms("QLinearAdd", (*_A, *_A, _TWO, _U0)), r"a scale \(input 6\) is \(2\), not a scalar"),
    (ms("QLinearAdd", (*_A, *_A, _ONE, _S0)), r"the zero point \(input 7\) has element type int8"),
    (ms("QLinearAdd", (*_A, (2, 3), _ONE, _U0, _ONE, _U0)), "input 3 is of float32"),
    (ms("QLinearAdd", (*_A, *_A)), "input 6 is missing"),
    (ms("QLinearMul", (*_A, data(_U.T, np.uint8), _ONE, _U0, _ONE, _U0)), "do not broadcast"),
    (ms("QLinearSigmoid", (*_A[:2], _U, _ONE, _U0)), "a zero point .* not a scalar"),
    (ms("QLinearSoftmax", (*_A, _ONE, _U0)), "attribute 'opset' is missing"),
    (ms("QLinearSoftmax", (*_A, _ONE, _U0), {"opset": 13, "axis": 7}), "axis 7 is out of range"),
    (ms("QLinearConcat", (_ONE, _U0, *_A, *_A[:2]), {"axis": 0}), "it has 7 inputs"),
    (ms("QLinearConcat", (_ONE, _U0), {"axis": 0}), "it has 2 inputs"),
    (ms("QLinearAveragePool", (*_A, _ONE, _U0), {"kernel_shape": [1]}), "rank 2, not 3 or more"),
    (ms("DynamicQuantizeMatMul", (data(_U, np.uint8), _S, _ONE)), "not elements of float32"),
    (ms("DynamicQuantizeMatMul", ((2, 3), _S, _F3)), r"the scale of B is \(3\)"),
    (ms("MatMulIntegerToFloat", (_A[0], _S, _TWO, _ONE)), r"the scale of A is \(2\)"),
    (
        ms("MatMulIntegerToFloat", (_A[0], _S, _ONE, _ONE, np.zeros(2, np.uint8))),
        r"the zero point of A is \(2\)",
    ),
    (ms("QGemm", (*_A, _S, _ONE, np.zeros(3, np.int8))), r"the zero point of B is \(3\)"),
    (
        ms("QGemm", (data(_U[None], np.uint8), *_A[1:], _S, _ONE, _S0)),
        r"the operand of 'transA' is \(1, 2, 3\)",
    ),
    (
        ms("FusedMatMul", ((2, 3), (3, 2)), {"transBatchA": 1}),
        "attribute 'transBatchA' needs an operand of three dimensions or more,",
    ),
    (ms("FusedMatMul", ((2, 3), (2, 3))), "K differs, 3 against 2"),
    (ms("SkipLayerNormalization", ((2, 3, 8), (4, 8), (8,))), r"skip \(input 1\) is \(4, 8\)"),
    (
        ms("FusedConv", ((1, 1, 2, 2), (1, 1, 1, 1)), {"activation": "Clip"}),
        "activation Clip has 0 parameters",
    ),
    (nbits((3, 32), 5, 32, block=24), "blocks of 24, not a power of two of 16 or more"),
    (nbits((3, 33), 5, 32), r"A \(input 0\) is \(3, 33\)"),
    (nbits((3, 32), 5, 32, K=10**12), r"A \(input 0\) is \(3, 32\)"),
    (nbits((3, 32), 5, 32, N=10**12), "B is uint8 of .5, 2, 8., not uint8 of .1000000000000, 2"),
    (nbits((3, 32), 5, 32, N=0), r"A \(input 0\) is \(3, 32\)"),
    (nbits((3, 32), 5, 32, drawn_bytes(5)[:4]), "zero points are uint8"),
    (nbits((3, 32), 5, 32, np.ones((5, 3), FLOAT)), r"zero points are .*, not floats of \(5, 2\)"),
    (nbits((3, 32), 5, 32, None, np.zeros(7, np.int32)), "g_idx has 7 elements for K=32"),
    (nbits((3, 32), 5, 32, None, np.full(32, 2, np.int32)), "g_idx has 2, and there are 2 blocks"),
    (nbits((3, 32), 5, 32, None, np.full(32, -1, np.int32)), "g_idx has -1"),
    (nbits((3, 32), 5, 32, None, None, (4,)), r"bias \(input 5\) is \(4\)"),
    (nbits((3, 32), 5, 32, accuracy_level=9), "accuracy_level is 9"),
    (qattention(num_heads=3), "not three dimensions of 3 heads"),
    (qattention(None, (2, 2, 2, 5, 3)), r"past is \(2, 2, 5, 3\)"),
    (qattention(each=(7,)), r"the scale of B is \(7\)"),
    (ms("QAttention", (u8(3, 8), drawn_bytes(8, 24))), r"the weights \(input 1\) are \(8, 24\)"),
    (ms("GatherBlockQuantized", (_ROWS, i64(0), _SCALES[:, :1]), {"block_size": 16}), "scales are"),
    (
        ms("GatherBlockQuantized", (_ROWS, i64(0), _SCALES), {"block_size": 16, "gather_axis": 1}),
        r"data \(input 0\) is \(7, 16\)",
    ),
    (
        ms(
            "GatherBlockQuantized", (_ROWS, i64(0), _SCALES), {"block_size": 16, "quantize_axis": 9}
        ),
        "quantize_axis 9 is out of range",
    ),
    (
        ms("GatherBlockQuantized", (_ROWS, i64(0), _SCALES, _ROWS), {"block_size": 16}),
        "zero points are uint8",
    ),
]
"""Inputs that contradict ONNX Runtime's documentation, and part of the message."""

UNSUPPORTED = [
    (ms("FusedGemm", ((2, 3), (3, 2)), {"activation": "Gelu"}), "attribute 'activation' is 'Gelu'"),
    (ms("SkipLayerNormalization", ((2, 3, 8),) * 2 + ((8,),), outputs=2), "mean and inv_std_var"),
    (Case("SimplifiedLayerNormalization", ((2, 8), (8,)), outputs=2), "output inv_std_var"),
    (nbits((3, 32), 5, 32, bits=3), "attribute 'bits' is 3, expected "),
    (qattention(do_rotary=1), "do_rotary"),
    (
        ms(
            "GatherBlockQuantized", (_ROWS, i64(0), _SCALES), {"block_size": 16, "quantize_axis": 0}
        ),
        "attribute 'quantize_axis' is not the last axis",
    ),
    (
        ms("GatherBlockQuantized", (s8(7, 16), i64(0), _SCALES), {"block_size": 16}),
        r"data \(input 0\) with element type int8",
    ),
]
