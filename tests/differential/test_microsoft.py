"""Drawn operators of com.microsoft, compiled, against ONNX Runtime's kernels for them.

Requantised values may differ by one quantum, where the kernel rounds at another place (its tables
and fixed-point factors). Products in float32 may differ by float32's rounding.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Unsupported

from tests.differential.test_quantised import BYTES, Model
from tests.exact_int8 import exact_int8
from tilewright.compiler.api import compile_model

DRAWS = 6
"""Models of each kind."""

MOST_APART = 0.02
"""Share of elements that the kernels round to the other neighbour."""


class Microsoft(Model):
    """A model under construction, of operators of com.microsoft."""

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        return super().__call__(op, *inputs, domain="com.microsoft", **attrs)

    def proto(self) -> ModelProto:
        model = super().proto()
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return model

    def operand(self, name: str, kind: Any, *shape: int, fixed: bool = False) -> tuple[str, ...]:
        """Bytes with a scale and a zero point, at run time or `fixed`."""
        array = self.bytes_(kind, *shape)
        value = self.constant(name, array) if fixed else self.input(name, array)
        return value, self.scale(f"{name}_s", 0.02), self.zero(f"{name}_z", kind)

    def result(self, kind: Any, about: float) -> tuple[str, str]:
        return self.scale("y_s", about), self.zero("y_z", kind)


def _shape(m: Model, rank: int) -> list[int]:
    return [m.extent(1, 9) for _ in range(rank)]


def binary(m: Microsoft) -> None:
    """Broadcast either way, either operand a constant."""
    kind, shape = m.pick(*BYTES), _shape(m, m.extent(1, 4))
    other = [m.pick(1, extent) for extent in shape][m.extent(0, len(shape) - 1) :]
    shapes = [shape, other][:: m.pick(1, -1)]
    fixed = m.extent(0, 2)
    parts = [m.operand("ab"[i], kind, *shapes[i], fixed=fixed == i) for i in range(2)]
    m(m.pick("QLinearAdd", "QLinearMul"), *parts[0], *parts[1], *m.result(kind, 0.04))


def unary(m: Microsoft) -> None:
    kind = m.pick(*BYTES)
    x = m.operand("x", kind, *_shape(m, m.extent(1, 4)))
    if m.random.integers(2):
        m("QLinearSigmoid", *x, *m.result(kind, 1 / 256))
    else:
        m("QLinearLeakyRelu", *x, *m.result(kind, 0.02), alpha=float(m.pick(0.0, 0.01, 0.7)))


def softmax(m: Microsoft) -> None:
    kind, shape, opset = m.pick(*BYTES), _shape(m, m.extent(2, 4)), m.pick(12, 13)
    axis = m.extent(-len(shape), len(shape) - 1)
    scale = m.constant("y_s", np.float32(1 / 256))
    zero = m.constant("y_z", np.asarray(np.iinfo(kind).min, kind))
    m("QLinearSoftmax", *m.operand("x", kind, *shape), scale, zero, axis=axis, opset=opset)


def concat(m: Microsoft) -> None:
    kind, shape = m.pick(*BYTES), _shape(m, m.extent(1, 4))
    axis = m.extent(0, len(shape) - 1)
    parts = []
    for number in range(m.extent(1, 4)):
        extents = [*shape[:axis], m.extent(1, 6), *shape[axis + 1 :]]
        parts += m.operand(f"x{number}", kind, *extents, fixed=number == 2)
    m("QLinearConcat", *m.result(kind, 0.02), *parts, axis=axis - m.pick(0, len(shape)))


def pool(m: Microsoft) -> None:
    kind, last = m.pick(*BYTES), m.extent(0, 1)
    channels, height, width = m.extent(1, 20), m.extent(3, 9), m.extent(3, 9)
    shape = (height, width, channels) if last else (channels, height, width)
    x = m.operand("x", kind, m.extent(1, 2), *shape)
    if m.random.integers(2):
        m("QLinearGlobalAveragePool", *x, *m.result(kind, 0.01), channels_last=last)
        return
    kernel = [m.extent(1, 3), m.extent(1, 3)]
    m(
        "QLinearAveragePool", *x, *m.result(kind, 0.02), kernel_shape=kernel, channels_last=last,
        pads=[int(m.random.integers(0, k)) for k in (*kernel, *kernel)],
        strides=[m.extent(1, 2), m.extent(1, 2)], count_include_pad=m.extent(0, 1),
    )  # fmt: skip


def gemm(m: Microsoft) -> None:
    """Weights by column or as a whole; with a bias or not; quantised or not."""
    rows, columns, depth = m.extent(1, 40), m.extent(1, 50), m.extent(2, 70)
    kind, turned = m.pick(*BYTES), (m.extent(0, 1), m.extent(0, 1))
    a = m.operand("a", kind, *(rows, depth)[:: 1 - 2 * turned[0]])
    b = m.constant("b", m.bytes_(np.int8, *(depth, columns)[:: 1 - 2 * turned[1]]))
    each = (columns,) if m.random.integers(2) else ()
    zero = m.constant("b_z", np.zeros(each, np.int8))
    bias = m.constant("c", m.random.integers(-9999, 9999, columns).astype(np.int32))
    y = m.result(kind, 1e-2 * depth**0.5) if m.random.integers(3) else ()
    attrs = {"transA": turned[0], "transB": turned[1], "alpha": float(m.pick(1.0, 0.7))}
    c = m.pick("", bias) if y else bias
    if not c:
        del m.constants[bias]
    m("QGemm", *a, b, m.scale("b_s", 0.01, *each), zero, c, *y, **attrs)


def dynamic_matmul(m: Microsoft) -> None:
    rows, columns, depth = m.extent(1, 40), m.extent(1, 50), m.extent(2, 70)
    batch = [m.extent(1, 3)] if m.random.integers(2) else []
    spread = m.pick(1e-3, 1.0, 1e3) * m.random.standard_normal((*batch, rows, depth))
    a = m.input("a", (spread + m.pick(0, 2)).astype(np.float32))
    kind, each = m.pick(*BYTES), (columns,) if m.random.integers(2) else ()
    b = m.constant("b", m.bytes_(kind, depth, columns))
    operands = [a, b, m.scale("b_s", 0.01, *each), m.zero("b_z", kind, *each)]
    if m.random.integers(2):
        bias = m.random.standard_normal(columns).astype(np.float32)
        operands.append(m.constant("bias", bias))
    m("DynamicQuantizeMatMul", *operands)


def integer_to_float(m: Microsoft) -> None:
    rows, columns, depth = m.extent(1, 40), m.extent(1, 50), m.extent(2, 70)
    # ONNX Runtime has no kernel for int8 times uint8.
    kind, weight = m.pick((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))
    each = (columns,) if m.random.integers(2) else ()
    a, b = m.input("a", m.bytes_(kind, rows, depth)), m.bytes_(weight, depth, columns)
    scales = m.scale("a_s", 0.02), m.scale("b_s", 0.01, *each)
    zeros = m.zero("a_z", kind), m.zero("b_z", weight, *each)
    m("MatMulIntegerToFloat", a, m.constant("b", b), *scales, *zeros)


def matmul_nbits(m: Microsoft) -> None:
    """Any block, K that is not a multiple of it, zero points or none, 4 and 8 bits, float16 too."""
    columns, depth, block = m.extent(1, 70), m.extent(1, 300), m.pick(16, 32, 64, 128, 256)
    bits, kind = m.pick(4, 4, 8), m.pick(np.float32, np.float32, np.float16)
    blocks = -(-depth // block)
    shape = (m.extent(1, 24), depth) if m.random.integers(2) else (1, m.extent(1, 3), depth)
    weights = m.bytes_(np.uint8, columns, blocks, block * bits // 8)
    scales = m.random.uniform(0.5, 1.5, (columns, blocks)) * 0.01
    x = m.input("x", m.random.standard_normal(shape).astype(kind))
    operands = [x, m.constant("w", weights), m.constant("s", scales.astype(kind))]
    if m.random.integers(2):
        zeros = m.bytes_(np.uint8, columns, -(-blocks * bits // 8))
        operands.append(m.constant("z", zeros))
    if m.random.integers(2):
        bias = m.random.standard_normal(columns).astype(kind)
        operands += [""] * (5 - len(operands)) + [m.constant("b", bias)]
    level = m.pick(0, 1, 4, 4)
    m(
        "MatMulNBits", *operands, K=depth, N=columns, bits=bits, block_size=block,
        accuracy_level=level,
    )  # fmt: skip


def attention(m: Microsoft) -> None:
    """Bytes of either kind, a scale for all weights or for each column, rows hidden or not."""
    heads, size, batch, rows = m.extent(1, 3), 4 * m.extent(1, 4), m.extent(1, 3), m.extent(1, 9)
    width, deep = heads * size, m.extent(2, 30)
    each = (3 * width,) if m.random.integers(2) else ()
    x, weight = m.pick((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))
    bias = m.random.standard_normal(3 * width).astype(np.float32)
    hidden = m.random.integers(1, rows + 1, batch).astype(np.int32)  # so many are not
    operands = [
        m.input("x", m.bytes_(x, batch, rows, deep)),
        m.constant("w", m.bytes_(weight, deep, 3 * width)), m.constant("b", bias),
        m.scale("x_s", 0.02), m.scale("w_s", 0.01, *each),
        m.input("mask", hidden) if m.random.integers(2) else "",
        m.zero("x_z", x), m.zero("w_z", weight, *each),
    ]  # fmt: skip
    m("QAttention", *operands, num_heads=heads, unidirectional=int(m.random.integers(2)))


def gathered(m: Microsoft) -> None:
    """Rows of 4 or 8 bits, a last block that is partly filled, zero points or none."""
    block, bits = m.pick(16, 32, 64), m.pick(4, 8)
    rows, columns = m.extent(1, 20), 2 * m.extent(1, 60)
    blocks, shape = -(-columns // block), [m.extent(1, 4) for _ in range(m.extent(0, 2))]
    data = m.constant("data", m.bytes_(np.uint8, rows, columns * bits // 8))
    places = m.input("i", m.random.integers(-rows, rows, shape).astype(m.pick(np.int32, np.int64)))
    operands = [data, places, m.scale("s", 0.02, rows, blocks)]
    if m.random.integers(2):
        operands.append(m.constant("z", m.bytes_(np.uint8, rows, -(-blocks * bits // 8))))
    m("GatherBlockQuantized", *operands, block_size=block, bits=bits, quantize_axis=m.pick(1, -1))


def inverse(m: Microsoft) -> None:
    """Far from singular, in any order of rows."""
    size, batch = m.extent(1, 12), [m.extent(1, 3)] if m.random.integers(2) else []
    x = m.random.standard_normal((*batch, size, size)) + 3 * size * np.eye(size)
    m("Inverse", m.input("x", x[..., m.random.permutation(size), :].astype(np.float32)))


def distances(m: Microsoft) -> None:
    features = m.extent(1, 40)
    a, b = (
        m.input(name, m.random.standard_normal((m.extent(1, 30), features)).astype(np.float32))
        for name in "ab"
    )
    m("CDist", a, b, metric=m.pick("euclidean", "sqeuclidean"))


def repeated_ngrams(m: Microsoft) -> None:
    """Few tokens, so that they repeat."""
    batch, tokens = m.extent(1, 3), m.extent(2, 5)
    ids = m.random.integers(0, tokens, (batch, m.extent(1, 20)))
    scores = m.random.standard_normal((batch, tokens)).astype(np.float32)
    m("NGramRepeatBlock", m.input("i", ids), m.input("s", scores), ngram_size=m.extent(1, 4))


def decoder_step(m: Microsoft) -> None:
    """One query, a cache with room, a mask or none, biased or not."""
    batch, heads, size, most = m.extent(1, 3), m.extent(1, 4), 4 * m.extent(1, 8), m.extent(1, 40)
    past, width = m.extent(0, most - 1), heads * size

    def drawn(name: str, *shape: int) -> str:
        return m.input(name, m.random.standard_normal(shape).astype(np.float32))

    operands = [drawn(name, batch, 1, width) for name in "qkv"]
    mask = m.random.integers(0, 2, (batch, past + 1)).astype(np.int32)
    mask[:, -1] = 1
    operands += [m.input("mask", mask) if m.random.integers(2) else "", ""]
    operands += [drawn(name, batch, heads, most, size) for name in ("pk", "pv")]
    operands.append(m.input("past", np.array([past], np.int32)))
    if m.random.integers(2):
        operands += ["", "", drawn("bias", 3 * width)]
    m("DecoderMaskedMultiHeadAttention", *operands, num_heads=heads, past_present_share_buffer=1)
    m.nodes[-1].output.extend(["present_key", "present_value"])  # its kernel writes them unasked


def bytes_lstm(m: Microsoft) -> None:
    """One step of one row: from the second step on, states that round to the other neighbour
    diverge, and ONNX Runtime quantises as many rows together as its threads share out."""
    batch, width, hidden, kind = 1, m.extent(1, 40), m.extent(1, 30), m.pick(*BYTES)
    each = (1, 4 * hidden) if m.random.integers(2) else (1,)

    def held(name: str, rows: int) -> tuple[str, str, str]:
        zero = m.constant(f"{name}_z", np.full(each, 0 if kind is np.int8 else 128, kind))
        weights = m.constant(name, m.bytes_(kind, 1, rows, 4 * hidden))
        return weights, m.scale(f"{name}_s", 0.01, *each), zero

    (w, *more_w), (r, *more_r) = held("w", width), held("r", hidden)
    x = m.input("x", m.random.standard_normal((1, batch, width)).astype(np.float32))
    states = [
        m.input(name, m.random.standard_normal((1, batch, hidden)).astype(np.float32))
        for name in ("h", "c")
    ]
    operands = [x, w, r, "", "", *states, "", *more_w, *more_r]
    m("DynamicQuantizeLSTM", *operands, hidden_size=hidden)


KINDS: dict[str, Callable[[Microsoft], None]] = {
    f.__name__: f
    for f in (
        binary,
        unary,
        softmax,
        concat,
        pool,
        gemm,
        dynamic_matmul,
        integer_to_float,
        matmul_nbits,
        attention,
        gathered,
        inverse,
        distances,
        repeated_ngrams,
        decoder_step,
        bytes_lstm,
    )
}


def reference(proto: ModelProto, feeds: dict[str, np.ndarray[Any, Any]]) -> Any:
    """ONNX Runtime's answer with exact sums of bytes.

    Without VNNI, its sums of two products of bytes saturate unless signed weights become unsigned,
    which is a graph optimisation. Operators that it does not compute so keep their weights.
    """
    options = exact_int8()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    except Unsupported:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("number", range(DRAWS))
@pytest.mark.parametrize("kind", KINDS)
def test_operators_of_com_microsoft(kind: str, number: int) -> None:
    model = Microsoft(np.random.default_rng(zlib.crc32(f"{kind} {number}".encode())))
    KINDS[kind](model)
    proto = model.proto()
    expected = reference(proto, model.feeds)
    (found,) = compile_model(proto).run(model.feeds)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype.kind == "f":
        one = max(float(np.finfo(expected.dtype).eps), 1e-5)
        if any(a.name == "accuracy_level" and a.i == 4 for a in proto.graph.node[0].attribute):
            one = 5e-3  # rows are quantised in blocks, which ONNX Runtime chooses by the CPU
        largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
        np.testing.assert_allclose(found, expected, rtol=10 * one, atol=4 * one * largest)
        return
    apart = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    assert apart.max() <= 1
    assert (apart > 0).mean() <= MOST_APART
