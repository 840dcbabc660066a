"""Drawn quantised models, compiled, against onnx.reference.

Products of integers must be equal. Rescaled and rounded values may differ by one quantum, where
float32 sums of the reference fall on the other side of a tie: its sums of up to 300 terms err by
some 2**-20 of a quantum, ours are exact, so that one element in some thousands may differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from tests.differential.reference import evaluator
from tilewright.compiler.api import compile_model
from tilewright.compiler.driver import load_graph, optimise
from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.targets.host import resolve_target

Array = np.ndarray[Any, Any]
Random = np.random.Generator

DRAWS = 6
"""Models of each kind."""

OPSET = 21
ENDS = {np.uint8: (0, 255, 128, 7), np.int8: (-128, 127, 0, -5)}
BYTES = (np.uint8, np.int8)
MOST_TIES = 0.001
BYTES_TARGET = resolve_target("cascadelake")


@dataclass
class Model:
    """A model under construction; the last node's output is the model's."""

    random: Random
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)

    def pick(self, *values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def extent(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def constant(self, name: str, array: Any) -> str:
        self.constants[name] = np.asarray(array)
        return name

    def bytes_(self, kind: Any, *shape: int) -> Array:
        """Any bytes; sometimes all of them equal, at an end of the range."""
        limits = np.iinfo(kind)
        if self.random.integers(6) == 0:
            return np.full(shape, self.pick(limits.min, limits.max), kind)
        return self.random.integers(limits.min, limits.max + 1, shape).astype(kind)

    def input(self, name: str, array: Array) -> str:
        self.feeds[name] = array
        return name

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        output = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], **attrs))
        return output

    def zero(self, name: str, kind: Any, *shape: int) -> str:
        return self.constant(name, np.full(shape, self.pick(*ENDS[kind]), kind))

    def scale(self, name: str, about: float, *shape: int) -> str:
        drawn = self.random.uniform(0.5, 1.5, shape) * about
        return self.constant(name, drawn.astype(np.float32))

    def proto(self) -> ModelProto:
        def info(name: str, array: Array) -> Any:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            return helper.make_tensor_value_info(name, kind, array.shape)

        graph = helper.make_graph(
            self.nodes,
            "quantised",
            [info(name, array) for name, array in self.feeds.items()],
            [ValueInfoProto(name=self.nodes[-1].output[0])],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _dequantised(m: Model, value: str, kind: Any, about: float = 0.02) -> str:
    return m("DequantizeLinear", value, m.scale("s", about), m.zero("z", kind))


def _requantised(m: Model, value: str, spread: float) -> str:
    """To bytes, of which some saturate."""
    kind = m.pick(*BYTES)
    if m.random.integers(2):
        value = m("Relu", value)
    return m("QuantizeLinear", value, m.scale("out_s", spread), m.zero("out_z", kind))


def qdq_matmul(m: Model) -> None:
    """Weights by column or as a whole, symmetric or not, perhaps transposed or in a Gemm."""
    rows, columns, depth = m.extent(1, 40), m.extent(1, 50), m.extent(2, 70)
    kind, weight = m.pick(*BYTES), m.pick(*BYTES)
    form = m.pick("MatMul", "MatMul", "Gemm", "Transpose")
    turned = form == "Transpose" or (form == "Gemm" and bool(m.random.integers(2)))
    a = _dequantised(m, m.input("a", m.bytes_(kind, rows, depth)), kind)
    shape = (columns, depth) if turned else (depth, columns)
    each = (columns,) if m.random.integers(2) else ()
    b = m(
        "DequantizeLinear", m.constant("b", m.bytes_(weight, *shape)), m.scale("b_s", 0.01, *each),
        m.zero("b_z", weight, *each), axis=0 if turned else 1,
    )  # fmt: skip
    spread = 1e-4 * depth**0.5 * 100
    if form == "Gemm":
        bias = m.constant("bias", m.random.standard_normal(columns).astype(np.float32))
        _requantised(m, m("Gemm", a, b, bias, transB=int(turned)), spread)
        return
    if turned:
        b = m("Transpose", b, perm=[1, 0])
    _requantised(m, m("MatMul", a, b), spread)


def _conv(m: Model) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of image and weight, and attributes."""
    group = m.pick(1, 1, 1, 2, 16, 21)
    channels, filters = group * m.pick(4, 16, 32, m.extent(4, 20)), group * m.extent(1, 36)
    if group == 1 and m.random.integers(4) == 0:
        channels = 3
    if group > 2:  # depthwise
        channels = filters = group
    kernel = [m.pick(1, 3), m.pick(1, 2, 3)]
    attrs = {
        "kernel_shape": kernel, "strides": [m.pick(1, 1, 2)] * 2, "group": group,
        "pads": [int(m.random.integers(0, k)) for k in (*kernel, *kernel)],
    }  # fmt: skip
    image = (m.pick(1, 2), channels, m.extent(4, 12), m.extent(4, 12))
    return image, (filters, channels // group, *kernel), attrs


def qdq_conv(m: Model) -> None:
    """In groups or not, weights by filter or as a whole, symmetric or not."""
    image, shape, attrs = _conv(m)
    kind, each = m.pick(*BYTES), (shape[0],) if m.random.integers(2) else ()
    x = _dequantised(m, m.input("x", m.bytes_(kind, *image)), kind)
    weight = m.pick(*BYTES)
    none = m.constant("w_z", np.zeros(each, weight)) if m.random.integers(2) else ""
    w = m(
        "DequantizeLinear", m.constant("w", m.bytes_(weight, *shape)), m.scale("w_s", 0.01, *each),
        none or m.zero("w_z", weight, *each), axis=0,
    )  # fmt: skip
    operands = [x, w]
    if m.random.integers(2):
        scales = m.constants["s"] * m.constants["w_s"] * np.ones(shape[0], np.float32)
        bias = m.constant("b", m.random.integers(-9999, 9999, shape[0]).astype(np.int32))
        operands.append(m("DequantizeLinear", bias, m.constant("b_s", scales), axis=0))
    _requantised(m, m("Conv", *operands, **attrs), 1e-2 * float(np.prod(shape[1:])) ** 0.5)


def qlinear_matmul(m: Model) -> None:
    rows, columns, depth = m.extent(1, 40), m.extent(1, 50), m.extent(2, 70)
    kind = m.pick(*BYTES)
    a, b = m.bytes_(kind, rows, depth), m.bytes_(np.int8, depth, columns)
    m(
        "QLinearMatMul",
        m.input("a", a), m.scale("a_s", 0.02), m.zero("a_z", kind),
        m.constant("b", b), m.scale("b_s", 0.01), m.zero("b_z", np.int8),
        m.scale("y_s", 0.01 * depth**0.5), m.zero("y_z", kind),
    )  # fmt: skip


def qlinear_conv(m: Model) -> None:
    image, shape, attrs = _conv(m)
    kind = m.pick(*BYTES)
    m(
        "QLinearConv",
        m.input("x", m.bytes_(kind, *image)), m.scale("x_s", 0.02), m.zero("x_z", kind),
        m.constant("w", m.bytes_(np.int8, *shape)), m.scale("w_s", 0.01),
        m.constant("w_z", np.array(0, np.int8)),
        m.scale("y_s", 1e-2 * float(np.prod(shape[1:])) ** 0.5), m.zero("y_z", kind),
        m.constant("b", m.random.integers(-9999, 9999, shape[0]).astype(np.int32)), **attrs,
    )  # fmt: skip


def qdq_products(m: Model) -> None:
    """Two computed matrices, batched or not, the second one transposed or not."""
    rows, columns, depth = m.extent(1, 60), m.extent(1, 70), m.extent(2, 70)
    stack = m.pick((), (m.extent(1, 3),), (1, 2))
    turned = bool(m.random.integers(2))
    kind, other = m.pick(*BYTES), m.pick(*BYTES)
    a = _dequantised(m, m.input("a", m.bytes_(kind, *stack, rows, depth)), kind)
    matrix = (columns, depth) if turned else (depth, columns)
    b = m.input("b", m.bytes_(other, *stack, *matrix))
    b = m("DequantizeLinear", b, m.scale("b_s", 0.01), m.zero("b_z", other))
    if turned:
        b = m("Transpose", b, perm=[*range(len(stack)), len(stack) + 1, len(stack)])
    _requantised(m, m("MatMul", a, b), 1e-4 * depth**0.5 * 100)


def qdq_attention(m: Model) -> None:
    """Queries, keys and values of heads, whose weights and perhaps scores are quantised."""
    heads, size, rows = m.extent(1, 3), m.pick(4, 8, 16, 21), m.extent(2, 40)
    kind = m.pick(*BYTES)

    def head(name: str, order: list[int]) -> str:
        stored = m.input(name, m.bytes_(kind, 1, rows, heads * size))
        scale, zero = m.scale(f"{name}_s", 0.02), m.zero(f"{name}_z", kind)
        value = m("DequantizeLinear", stored, scale, zero)
        shape = m.constant("heads", np.array([1, rows, heads, size]))
        return m("Transpose", m("Reshape", value, shape), perm=order)

    scores = m("MatMul", head("q", [0, 2, 1, 3]), head("k", [0, 2, 3, 1]))
    if m.random.integers(2):
        scores = _quantised(m, scores, 0.1 * size**0.5)
    scores = m("Mul", scores, m.constant("factor", np.array(size**-0.5, np.float32)))
    if m.random.integers(2):
        mask = m.random.integers(0, 2, (1, 1, 1, rows)) * np.float32(-9)
        scores = m("Add", scores, m.constant("mask", mask.astype(np.float32)))
    weights = _quantised(m, m("Softmax", scores, axis=-1), 1 / 255)
    mixed = m("MatMul", weights, head("v", [0, 2, 1, 3]))
    _requantised(m, m("Transpose", mixed, perm=[0, 2, 1, 3]), 0.05)


def qdq_late(m: Model) -> None:
    """As NNCF places them: moves and pooling in floats, depthwise channels with separate scales,
    and several quantisations of one value."""
    channels, size = m.pick(4, 8, 16, 21), m.extent(4, 9)
    kind, group = m.pick(*BYTES), bool(m.random.integers(2))
    x = m.input("x", m.bytes_(kind, 1, channels, size, size))
    each = (channels,) if group else ()
    zero = m.constant("z", np.full(each, m.pick(*ENDS[kind]), kind))
    value = m("DequantizeLinear", x, m.scale("s", 0.02, *each), zero, axis=1)
    if group:
        m_scale = m.scale("w_s", 0.01, channels)
        stored = m.constant("w", m.bytes_(np.int8, channels, 1, 3, 3))
        value = m("Conv", value, m("DequantizeLinear", stored, m_scale, axis=0), group=channels)
    else:
        pooled = m("MaxPool", value, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        value = m("Concat", value, pooled, axis=1)
        ends = [m.constant(name, np.array([at])) for name, at in (("f", 1), ("t", 2 * channels))]
        value = m("Slice", value, *ends, m.constant("axis", np.array([1])))
        value = _weighted(m, value, (m.extent(1, 20), 2 * channels - 1, 1, 1))
    _requantised(m, value, 0.3)


def qdq_16_bits(m: Model) -> None:
    """Activations of 16 bits, multiplied in pairs by weights of 8; images and matrices."""
    kind = m.pick(np.int16, np.uint16)
    limits = np.iinfo(kind)
    zero = m.constant("z", np.array(m.pick(limits.min, 0, 7, limits.max), kind))
    if m.random.integers(2):
        image, shape, attrs = _conv(m)
        op, axis = "Conv", 0
    else:
        depth = m.extent(2, 40)
        image, shape = (m.extent(1, 20), depth), (depth, m.extent(1, 20))
        op, attrs, axis = "MatMul", {}, 1
    words = m.random.integers(limits.min, limits.max + 1, image).astype(kind)
    a = m("DequantizeLinear", m.input("a", words), m.scale("s", 1e-4), zero)
    weight, each = m.pick(*BYTES), (shape[axis],) if m.random.integers(2) else ()
    terms = int(np.prod(shape)) // shape[axis]
    w = m.bytes_(weight, *shape) // np.array(max(1, terms // 128), weight)  # sums stay in int32
    scale, middle = m.scale("w_s", 0.01, *each), m.zero("w_z", weight, *each)
    b = m("DequantizeLinear", m.constant("w", w), scale, middle, axis=axis)
    spread = 0.1 * terms**0.5
    m("QuantizeLinear", m(op, a, b, **attrs), m.scale("out_s", spread), zero)


def pair_of_integers(m: Model) -> None:
    """MatMulInteger of two inputs."""
    rows, columns, depth = m.extent(1, 40), m.extent(1, 50), m.extent(2, 70)
    kinds = m.pick(*BYTES), m.pick(*BYTES)
    a, b = m.bytes_(kinds[0], rows, depth), m.bytes_(kinds[1], depth, columns)
    zeros = (m.zero(f"z{number}", kind) for number, kind in enumerate(kinds))
    m("MatMulInteger", m.input("a", a), m.input("b", b), *zeros)


def matmul_integer(m: Model) -> None:
    """Zero points that are constants, for each row or column, or known at run time only."""
    rows, columns, depth = m.extent(1, 40), m.extent(1, 50), m.extent(2, 70)
    kind, weight = m.pick(*BYTES), m.pick(*BYTES)
    a = m.input("a", m.bytes_(kind, rows, depth))
    zero = m.zero("a_z", kind)
    if m.random.integers(2):
        zero = m.input("a_z", m.constants.pop("a_z"))
    b = m.constant("b", m.bytes_(weight, depth, columns))
    each = (columns,) if m.random.integers(2) else ()
    m("MatMulInteger", a, b, zero, m.zero("b_z", weight, *each))


def conv_integer(m: Model) -> None:
    image, shape, attrs = _conv(m)
    kind = m.pick(*BYTES)
    x, w = m.bytes_(kind, *image), m.bytes_(np.int8, *shape)
    m("ConvInteger", m.input("x", x), m.constant("w", w), m.zero("x_z", kind), **attrs)


def _quantised(m: Model, value: str, about: float, kind: Any = np.uint8) -> str:
    """To bytes and back, by the same numbers, as quantisers write it."""
    scale, zero = m.scale(f"s{len(m.constants)}", about), m.zero(f"z{len(m.constants)}", kind)
    return m("DequantizeLinear", m("QuantizeLinear", value, scale, zero), scale, zero)


def _weighted(m: Model, x: str, shape: tuple[int, ...], **attrs: Any) -> str:
    w = m.constant(f"w{len(m.constants)}", m.bytes_(np.int8, *shape))
    return m("Conv", x, m("DequantizeLinear", w, m.scale(f"s{len(m.constants)}", 0.01)), **attrs)


def _activation(m: Model, x: str, *, gated: bool) -> str:
    """A function of one value, its parts quantised or not; `gated` uses products of two of them."""
    form = m.pick("Sigmoid", "Tanh", "HardSwish", "Erf", "Silu", "LeakyRelu", "Relu")
    if form != "Silu":
        return m(form, x)
    gate = m("Sigmoid", x)
    return m("Mul", x, _quantised(m, gate, 1 / 255) if gated else gate)


def qdq_activation(m: Model) -> None:
    """Functions of a byte; the table equals onnx.reference's results."""
    kind = m.pick(*BYTES)
    shape = (m.extent(1, 3), m.extent(1, 40), m.extent(1, 9), m.extent(1, 9))
    x = _dequantised(m, m.input("x", m.bytes_(kind, *shape)), kind, 0.05)
    for _ in range(m.extent(1, 2)):
        x = _quantised(m, _activation(m, x, gated=True), 0.02, m.pick(*BYTES))
    _requantised(m, x, 0.02)


def qdq_block(m: Model) -> None:
    """Convolutions, activations and a residual with another scale, all between quantisations."""
    channels, size = m.pick(4, 8, 16, 21, 24, 32, 40), m.extent(3, 9)
    kind = m.pick(*BYTES)
    x = _dequantised(m, m.input("x", m.bytes_(kind, m.pick(1, 2), channels, size, size)), kind)
    y = _quantised(m, _weighted(m, x, (channels, channels, 1, 1)), 0.2)
    y = _quantised(m, _activation(m, y, gated=True), 0.1)
    k = m.pick(3, 5, (3, 1), (1, 7), (5, 2))
    taps = k if isinstance(k, tuple) else (k, k)
    stride, dilation = m.pick(1, 1, 2), m.pick(1, 1, 2) if size > 6 else 1
    reach = [dilation * (t - 1) for t in taps]
    pads = [r // 2 for r in reach]
    end = [r - p for r, p in zip(reach, pads, strict=True)]
    y = _weighted(
        m, y, (channels, 1, *taps), pads=[*pads, *end], strides=[stride] * 2, group=channels,
        dilations=[dilation] * 2,
    )  # fmt: skip
    y = _quantised(m, y, 0.2, m.pick(*BYTES))
    if stride == 1:
        y = _quantised(m, m("Add", x, y), 0.2)
    _requantised(m, _weighted(m, y, (m.extent(1, 20), channels, 1, 1)), 0.3)


def qdq_squeeze(m: Model) -> None:
    """Squeeze and excitation: an average, two products with a vector, a gate for each channel."""
    channels, size = m.pick(8, 16, 24, 37), m.extent(1, 9)
    x = _quantised(m, _weighted(
        m, _dequantised(m, m.input("x", m.bytes_(np.uint8, 1, 4, size, size)), np.uint8),
        (channels, 4, 1, 1)), 0.1)  # fmt: skip
    gate = _quantised(m, m("GlobalAveragePool", x), 0.05)
    gate = _quantised(m, _weighted(m, gate, (4, channels, 1, 1)), 0.1)
    gate = _quantised(m, _activation(m, gate, gated=False), 0.05)
    gate = _quantised(m, _weighted(m, gate, (channels, 4, 1, 1)), 0.1)
    gate = _quantised(m, m("Sigmoid", gate), 1 / 255)
    _requantised(m, m("Mul", x, gate), 0.05)


def qdq_moves(m: Model) -> None:
    """Concatenations of different scales, pools and movement between quantisations."""
    size, channels = m.extent(3, 8), m.pick(8, 16, 19)
    kind = m.pick(*BYTES)
    x = _dequantised(m, m.input("x", m.bytes_(kind, 1, channels, size, size)), kind)
    parts = [x, _quantised(m, _weighted(m, x, (m.pick(8, 16), channels, 1, 1)), 0.2)]
    pads = [1, 1, 1, 1]
    parts.append(m("MaxPool", parts[1], kernel_shape=[3, 3], pads=pads))
    if m.random.integers(2):
        scale, zero = m.scale("again", 0.2), m.zero("again_z", np.uint8)
        for place in (1, 2):  # by the same numbers before and behind the pool
            parts[place] = m("QuantizeLinear", parts[place], scale, zero)
            parts[place] = m("DequantizeLinear", parts[place], scale, zero)
    y = _quantised(m, m("Concat", *parts, axis=1), 0.2)
    match m.pick("Transpose", "Reshape", "Slice", "Resize", "none"):
        case "Transpose":
            y = m("Transpose", y, perm=[0, 2, 3, 1])
        case "Reshape":
            y = m("Reshape", y, m.constant("shape", np.array([1, -1])))
        case "Slice":
            starts, ends = np.array([1, 0]), np.array([-1, 2])
            axes = np.array([1, 3])
            y = m(
                "Slice", y, *(m.constant(f"at{i}", a) for i, a in enumerate((starts, ends, axes)))
            )
        case "Resize":
            scales = m.constant("scales", np.array([1, 1, 2, 2], np.float32))
            y = m(
                "Resize", y, "", scales, mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric",
            )  # fmt: skip
    _requantised(m, y, 0.25)


KINDS: dict[str, Callable[[Model], None]] = {
    f.__name__: f
    for f in (
        *(qdq_matmul, qdq_conv, qlinear_matmul, qlinear_conv, matmul_integer, conv_integer),
        *(qdq_activation, qdq_block, qdq_squeeze, qdq_moves),
        *(qdq_products, qdq_attention, qdq_late, qdq_16_bits, pair_of_integers),
    )
}


def drawn(kind: str, number: int) -> Model:
    model = Model(np.random.default_rng(zlib.crc32(f"{kind} {number}".encode())))
    KINDS[kind](model)
    return model


@pytest.mark.parametrize("number", range(DRAWS))
@pytest.mark.parametrize("kind", KINDS)
def test_quantised_models(kind: str, number: int) -> None:
    model = drawn(kind, number)
    proto = model.proto()
    graph = optimise(load_graph(proto), Mode(BYTES_TARGET))
    anchors = [node for node in graph.nodes if node.op in ("matmul", "conv")]
    assert anchors or kind == "qdq_activation"
    factors = {graph.types[value].dtype for node in anchors for value in node.inputs[:2]}
    # Some groups, and images of 16 bits, are multiplied faster as floats.
    assert kind in ("qdq_conv", "qdq_16_bits") or not any(dtype.is_float for dtype in factors)
    (expected,) = evaluator(proto).run(None, model.feeds)
    (found,) = compile_model(proto).run(model.feeds)  # floats, where the host has no instruction
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    apart = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    if expected.dtype == np.int32:
        assert not apart.any()
    assert apart.max() <= 1
    assert (apart > 0).sum() <= max(1, MOST_TIES * apart.size)


def test_ties_round_to_even_and_all_bytes_are_reached() -> None:
    """Sums in steps of 0.5, from below the least quantum to above the largest."""
    model = Model(np.random.default_rng(0))
    a = model.input("a", np.arange(256, dtype=np.uint8).reshape(-1, 1) * np.ones((1, 4), np.uint8))
    b = model.constant("b", np.array([[1, -1, 2], [0, 0, 2], [0, 0, 0], [0, 0, 0]], np.int8))
    one, zero = model.constant("one", np.float32(1)), model.constant("zero", np.uint8(128))
    weight = model("DequantizeLinear", b, one, model.constant("none", np.int8(0)))
    product = model("MatMul", model("DequantizeLinear", a, one, zero), weight)
    two = model.constant("two", np.float32(2))
    model("QuantizeLinear", product, two, zero)
    proto = model.proto()
    (found,) = compile_model(proto).run(model.feeds)
    (expected,) = evaluator(proto).run(None, model.feeds)
    np.testing.assert_array_equal(found, expected)
    assert set(found.reshape(-1)) >= {0, 255, 64, 192}
    assert found[129, 0] == found[128, 0] == 128  # half a quantum, to even
    assert found[131, 0] == 130


@pytest.mark.parametrize(
    ("name", "scaled"),
    [
        ("x86-64-v4", None),
        ("cortex-a72", None),
        ("x86-64-v3", "int32"),
        ("znver4", "int32"),
        ("neoverse-n1", "int32"),
    ],
)
def test_targets_without_an_instruction_multiply_floats_as_they_did(
    name: str, scaled: str | None
) -> None:
    """Only scaled products: integers have no floats to multiply."""
    target = resolve_target(name)
    assert target.multiplies_bytes == (scaled is not None)
    for kind, accumulator in (("qdq_matmul", scaled), ("matmul_integer", "int32")):
        graph = optimise(load_graph(drawn(kind, 0).proto()), Mode(target))
        (anchor,) = [node for node in graph.nodes if node.op == "matmul"]
        assert anchor.attr("accumulator") == accumulator
        if accumulator:
            assert graph.types[anchor.inputs[0]].dtype is target.factor(DType.UINT8)
        constant = graph.constants[anchor.inputs[1]]  # folded, whatever it is multiplied as
        stored = np.int8 if target.factor(DType.UINT8) in INT8_TYPES else np.int16
        assert constant.dtype == (stored if accumulator else np.float32)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
def test_infinities_saturate_and_no_number_is_the_lowest(kind: Any) -> None:
    """ONNX does not define the result for NaN: the lowest integer, as in onnx.reference and ONNX
    Runtime. Infinities saturate as in the standard; onnx.reference turns them into the lowest
    integer, too."""
    model = Model(np.random.default_rng(0))
    numbers = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0] * 6, np.float32)
    x, limits = model.input("x", numbers), np.iinfo(kind)
    zero = limits.max - 9
    moved = model.constant("z", np.array(zero, kind))
    model("QuantizeLinear", x, model.constant("s", np.float32(0.5)), moved)
    proto = model.proto()
    (found,) = compile_model(proto).run(model.feeds)
    np.testing.assert_array_equal(
        found, [limits.min, limits.max, limits.min, limits.max, limits.min, zero] * 6
    )
    with np.errstate(invalid="ignore", over="ignore"):
        (expected,) = evaluator(proto).run(None, model.feeds)
    assert expected[0] == limits.min
