"""Operators with sums, in float16 and bfloat16: they add up in float32, whatever the model is.

The values' squares and partial sums are beyond float16, or beyond the digits of both types; the
results are not. They are compared with NumPy's float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.compiler.api import compile_model
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import from_memory, to_memory

HALVES = {DType.FLOAT16: TensorProto.FLOAT16, DType.BFLOAT16: TensorProto.BFLOAT16}
ULP = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}
Array = np.ndarray
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Sum:
    """An operator, its constants after the first operand, and its function on float64."""

    op: str
    shape: tuple[int, ...]
    expected: Callable[[Array], Array]
    attrs: dict[str, object] = field(default_factory=dict)
    constants: Sequence[Array] = ()
    centre: float = 300
    spread: float = 50
    opset: int = 22
    domain: str = ""


def rms(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5))


def normal(x: Array, *axes: int) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + 1e-5))


def grouped(x: Array) -> Array:
    return np.asarray(normal(x.reshape(2, 2, -1), 2).reshape(x.shape))


def soft(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=0))
    return np.asarray(powers / powers.sum(axis=0))


def windows(x: Array, size: int) -> Array:
    return np.asarray(np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3)))


def padded_mean(x: Array) -> Array:
    def total(a: Array) -> Array:
        padded = np.pad(a, ((0, 0), (0, 0), (8, 8), (8, 8)))
        return np.asarray(windows(padded, 17).sum(axis=(4, 5)))

    return np.asarray(total(x) / total(np.ones_like(x)))


def neighbours(x: Array) -> Array:
    squares = np.pad(x * x, ((0, 0), (2, 2), (0, 0), (0, 0)))
    total = sum(squares[:, i : i + x.shape[1]] for i in range(5))
    return np.asarray(x / (1 + 1e-2 / 5 * total) ** 0.75)


ROWS, IMAGE = (4, 512), (2, 4, 32, 32)
LAST = (np.array([1], np.int64),)
ONE = np.ones(512, np.float32)
FOUR = np.ones(4, np.float32)
SUMS = {
    "sum of ones": Sum("ReduceSum", ROWS, lambda x: x.sum(1), {"keepdims": 0}, LAST, 1, 0),
    "sum": Sum("ReduceSum", ROWS, lambda x: x.sum(1, keepdims=True), {}, LAST, 3, 1),
    "mean": Sum("ReduceMean", ROWS, lambda x: x.mean(1, keepdims=True), {}, LAST),
    "L1": Sum("ReduceL1", ROWS, lambda x: np.abs(x).sum(1, keepdims=True), {}, LAST, 3, 1),
    "L2": Sum("ReduceL2", ROWS, lambda x: np.sqrt((x * x).sum(1, keepdims=True)), {}, LAST),
    "squares": Sum(
        "ReduceSumSquare", ROWS, lambda x: (x * x).sum(1, keepdims=True), {}, LAST, 1, 0.5
    ),
    "log sum": Sum("ReduceLogSum", ROWS, lambda x: np.log(x.sum(1, keepdims=True)), {}, LAST),
    "log sum exp": Sum(
        "ReduceLogSumExp", ROWS, lambda x: np.log(np.exp(x).sum(1, keepdims=True)), {}, LAST, 20, 1
    ),
    "softmax": Sum("Softmax", (512, 4), soft, {"axis": 0}, (), 1, 0),
    "log softmax": Sum("LogSoftmax", (512, 4), lambda x: np.log(soft(x)), {"axis": 0}, (), 1, 0),
    "layer norm": Sum(
        "LayerNormalization", ROWS, lambda x: normal(x, 1), {}, (ONE, 0 * ONE), 100, 1
    ),
    "RMS norm": Sum("RMSNormalization", ROWS, rms, {}, (ONE,), opset=23),
    "simplified norm": Sum("SimplifiedLayerNormalization", ROWS, rms, {}, (ONE,)),
    "skip norm": Sum(
        *("SkipLayerNormalization", (1, *ROWS), lambda x: normal(x, 2), {}),
        (np.zeros((1, *ROWS), np.float32), ONE, 0 * ONE),
        domain=MICROSOFT,
    ),
    "skip RMS norm": Sum(
        *("SkipSimplifiedLayerNormalization", (1, *ROWS), rms, {}),
        (np.zeros((1, *ROWS), np.float32), ONE),
        domain=MICROSOFT,
    ),
    "group norm": Sum("GroupNormalization", IMAGE, grouped, {"num_groups": 2}, (FOUR, 0 * FOUR)),
    "instance norm": Sum(
        "InstanceNormalization", IMAGE, lambda x: normal(x, 2, 3), {}, (FOUR, 0 * FOUR)
    ),
    "mean variance": Sum("MeanVarianceNormalization", IMAGE, lambda x: normal(x, 0, 2, 3)),
    "LRN": Sum("LRN", IMAGE, neighbours, {"size": 5, "alpha": 1e-2}),
    "Lp norm 2": Sum(
        "LpNormalization", ROWS, lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)), {"p": 2}
    ),
    "Lp norm 1": Sum("LpNormalization", ROWS, lambda x: x / x.sum(1, keepdims=True), {"p": 1}),
    "Lp pool": Sum(
        *("LpPool", IMAGE, lambda x: np.sqrt((windows(x, 3) ** 2).sum(axis=(4, 5)))),
        {"kernel_shape": [3, 3], "p": 2},
    ),
    "Lp pool 3": Sum(
        *("LpPool", IMAGE, lambda x: np.cbrt((windows(x, 3) ** 3).sum(axis=(4, 5)))),
        {"kernel_shape": [3, 3], "p": 3},
    ),
    "global Lp pool": Sum(
        *("GlobalLpPool", IMAGE, lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True))), {"p": 2}
    ),
    "average pool": Sum(
        *("AveragePool", IMAGE, lambda x: windows(x, 17).mean(axis=(4, 5))),
        {"kernel_shape": [17, 17]},
    ),
    "padded average": Sum(
        *("AveragePool", IMAGE, padded_mean), {"kernel_shape": [17, 17], "pads": [8] * 4}
    ),
    "global average": Sum("GlobalAveragePool", IMAGE, lambda x: x.mean((2, 3), keepdims=True)),
    "einsum": Sum("Einsum", ROWS, lambda x: x.sum(1), {"equation": "ij->i"}, (), 3, 1),
    "running sum": Sum(
        "CumSum", ROWS, lambda x: x.cumsum(1), {}, (np.array(1, np.int64),), 1, 0
    ),
}  # fmt: skip
PRODUCERS = ("none", "scale", "product", "blocks", "moves", "cut")


@dataclass(frozen=True)
class Model:
    """A model under construction: nodes, and constants in its type."""

    dtype: DType
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        if array.dtype == np.float32:
            bits = to_memory(array, self.dtype).tobytes()
            tensor = helper.make_tensor(name, HALVES[self.dtype], array.shape, bits, raw=True)
        else:
            tensor = onnx.numpy_helper.from_array(array, name)
        self.constants.append(tensor)
        return name

    def node(self, op: str, *inputs: str, domain: str = "", **attrs: object) -> str:
        output = f"v{len(self.nodes)}"
        made = helper.make_node(op, inputs, [output], output, domain=domain, **attrs)
        self.nodes.append(made)
        return output

    def doubled(self, x: str, shape: Sequence[int], producer: str) -> str:
        """Twice the value, which is exact, or the value itself."""
        depth = shape[-1]
        match producer:
            case "scale":
                return self.node("Mul", x, self.constant(np.array(2, np.float32)))
            case "product":
                return self.node("MatMul", x, self.constant(2 * np.eye(depth, dtype=np.float32)))
            case "blocks":  # one in the diagonal, with the scale 2
                elements = np.full((depth, depth), 8) + np.eye(depth, dtype=np.int64)
                words = (elements[:, ::2] | elements[:, 1::2] << 4).astype(np.uint8)
                weight = self.constant(words.reshape(depth, depth // 16, 8))
                scales = self.constant(np.full((depth, depth // 16), 2, np.float32))
                attrs = {"K": depth, "N": depth, "bits": 4, "block_size": 16}
                return self.node("MatMulNBits", x, weight, scales, domain=MICROSOFT, **attrs)
            case "moves":
                back = [*range(len(shape))][::-1]
                turned = self.node("Transpose", self.node("Relu", x), perm=back)
                return self.node("Transpose", turned, perm=back)
            case "cut":  # its rows are known when the model has run up to here
                chosen = self.node("Transpose", self.node("NonZero", "chosen"), perm=[1, 0])
                flat = self.node("Reshape", chosen, self.constant(np.array([-1], np.int64)))
                return self.node("Gather", x, flat, axis=0)
        return x


def model_of(found: Sum, dtype: DType, producer: str, products: int) -> onnx.ModelProto:
    """The operator behind a producer, in a model with this number of further kinds of products."""
    made = Model(dtype)
    x = made.doubled("x", found.shape, producer)
    constants = [made.constant(array) for array in found.constants]
    result = made.node(found.op, x, *constants, domain=found.domain, **found.attrs)
    inputs = [helper.make_tensor_value_info("x", HALVES[dtype], found.shape)]
    if producer == "cut":
        inputs.append(helper.make_tensor_value_info("chosen", TensorProto.BOOL, found.shape[:1]))
    outputs = [helper.make_tensor_value_info(result, HALVES[dtype], None)]
    for kind in (HALVES[dtype], TensorProto.FLOAT)[:products]:
        inputs.append(helper.make_tensor_value_info(f"p{kind}", kind, [4, 4]))
        made.nodes.append(helper.make_node("MatMul", [f"p{kind}"] * 2, [f"q{kind}"]))
        outputs.append(helper.make_tensor_value_info(f"q{kind}", kind, [4, 4]))
    if products:  # one that follows, too
        row = made.node("Reshape", result, made.constant(np.array([-1, 1], np.int64)))
        last = made.node("MatMul", row, made.constant(np.ones((1, 4), np.float32)))
        outputs.append(helper.make_tensor_value_info(last, HALVES[dtype], None))
    graph = helper.make_graph(made.nodes, "sums", inputs, outputs, made.constants)
    imports = [helper.make_opsetid("", found.opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def check(found: Sum, dtype: DType, producer: str, products: int) -> None:
    random = np.random.default_rng(7)
    drawn = found.centre + found.spread * random.standard_normal(found.shape)
    x = to_memory(drawn.astype(np.float32), dtype)
    model = model_of(found, dtype, producer, products)
    given = {"x": x}
    for port in model.graph.input[1:]:
        if port.name == "chosen":
            given[port.name] = np.ones(found.shape[0], bool)
        else:
            is_half = port.type.tensor_type.elem_type == HALVES[dtype]
            eye = np.eye(4, dtype=np.float32)
            given[port.name] = to_memory(eye, dtype) if is_half else eye
    result = np.asarray(compile_model(model).run(given)[0])
    exact = from_memory(x, dtype).astype(np.float64)
    factor = 2 if producer in ("scale", "product", "blocks") else 1
    expected = found.expected(factor * exact)
    agree(result, expected, dtype)


def agree(result: Array, expected: Array, dtype: DType) -> None:
    """The result is the expected value, rounded once or twice."""
    assert result.shape == expected.shape
    value = from_memory(result.view(dtype.numpy), dtype).astype(np.float64)
    size = np.maximum(np.abs(expected), 0.02 * np.abs(expected).max())
    assert (np.abs(value - expected) / size).max() <= 2 * ULP[dtype]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_float32(name: str, producer: str, dtype: DType) -> None:
    if producer == "blocks" and SUMS[name].shape[-1] % 16:
        pytest.skip("no whole number of blocks")
    check(SUMS[name], dtype, producer, 0)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("products", [1, 2])
@pytest.mark.parametrize("producer", ["none", "product"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_float32_beside_products(
    name: str, producer: str, products: int, dtype: DType
) -> None:
    check(SUMS[name], dtype, producer, products)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_constants_are_float32(name: str, dtype: DType) -> None:
    found, made = SUMS[name], Model(dtype)
    random = np.random.default_rng(7)
    drawn = (found.centre + found.spread * random.standard_normal(found.shape)).astype(np.float32)
    constants = [made.constant(array) for array in (drawn, *found.constants)]
    result = made.node(found.op, *constants, domain=found.domain, **found.attrs)
    outputs = [helper.make_tensor_value_info(result, HALVES[dtype], None)]
    graph = helper.make_graph(made.nodes, "sum", [], outputs, made.constants)
    imports = [helper.make_opsetid("", found.opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    (value,) = compile_model(model).run({})
    exact = from_memory(to_memory(drawn, dtype), dtype).astype(np.float64)
    agree(np.asarray(value), found.expected(exact), dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_products_within_an_einsum_are_float32(dtype: DType) -> None:
    made = Model(dtype)
    sizes = {"a": 300.0, "b": 300.0, "c": 2.0**-20}
    inputs = [helper.make_tensor_value_info(name, HALVES[dtype], [64, 64]) for name in sizes]
    result = made.node("Einsum", *sizes, equation="ij,jk,kl->il")
    outputs = [helper.make_tensor_value_info(result, HALVES[dtype], None)]
    graph = helper.make_graph(made.nodes, "einsum", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    given = {
        name: to_memory(np.full((64, 64), size, np.float32), dtype) for name, size in sizes.items()
    }
    (value,) = compile_model(model).run(given)
    a, b, c = (from_memory(array, dtype).astype(np.float64) for array in given.values())
    agree(np.asarray(value), a @ b @ c, dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_in_bodies_are_float32(dtype: DType) -> None:
    made = Model(dtype)
    axis = made.constant(np.array([1], np.int64))
    branches = {
        key: helper.make_graph(
            [helper.make_node(op, ["x", axis], [key])],
            key,
            [],
            [helper.make_tensor_value_info(key, HALVES[dtype], [2, 1])],
        )
        for key, op in (("then_branch", "ReduceSum"), ("else_branch", "ReduceL2"))
    }
    made.nodes.append(helper.make_node("If", ["go"], ["y"], **branches))
    ports = [
        helper.make_tensor_value_info("x", HALVES[dtype], [2, 1024]),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", HALVES[dtype], [2, 1])]
    graph = helper.make_graph(made.nodes, "if", ports, outputs, made.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    program = compile_model(model)
    for go, size, expected in ((True, 1, 1024), (False, 1024, 32768)):
        x = to_memory(np.full((2, 1024), size, np.float32), dtype)
        (result,) = program.run({"x": x, "go": np.array(go)})
        value = from_memory(np.asarray(result).view(dtype.numpy), dtype)
        np.testing.assert_array_equal(value, np.full((2, 1), expected, np.float32))


def norm_model(dtype: int, stash: int) -> onnx.ModelProto:
    """A LayerNormalization of 4 x 256 whose statistics are outputs, too."""
    node = helper.make_node(
        *("LayerNormalization", ["x", "s", "b"], ["y", "mean", "inverse"]), stash_type=stash
    )
    shapes = {"x": [4, 256], "s": [256], "b": [256]}
    inputs = [helper.make_tensor_value_info(n, dtype, shape) for n, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", dtype, [4, 256])]
    outputs += [helper.make_tensor_value_info(n, stash, [4, 1]) for n in ("mean", "inverse")]
    graph = helper.make_graph([node], "norm", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


STATISTICS = {
    "float32": (DType.FLOAT32, TensorProto.FLOAT, TensorProto.FLOAT, 1e-4),
    "float64 in float32": (DType.FLOAT64, TensorProto.DOUBLE, TensorProto.FLOAT, 1e-6),
    "float32 in float64": (DType.FLOAT32, TensorProto.FLOAT, TensorProto.DOUBLE, 1e-6),
    "float16": (DType.FLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT, 2e-3),
    "bfloat16": (DType.BFLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, 2e-2),
}


@pytest.mark.parametrize(
    ("dtype", "kind", "stash", "tolerance"), STATISTICS.values(), ids=STATISTICS
)
def test_kept_statistics_do_not_change_a_norm(
    dtype: DType, kind: int, stash: int, tolerance: float
) -> None:
    """At a mean of 1,000 deviations, mean(x**2) - mean(x)**2 consists of rounding errors only."""
    random = np.random.default_rng(3)
    drawn = 1000 + random.standard_normal((4, 256))
    x = to_memory(drawn.astype(dtype.numpy if dtype.bytes > 2 else np.float32), dtype)
    one, zero = (to_memory(np.full(256, value, np.float32), dtype) for value in (1, 0))
    made = compile_model(norm_model(kind, stash)).run({"x": x, "s": one, "b": zero})
    exact = from_memory(x, dtype).astype(np.float64)
    mean = exact.mean(axis=1, keepdims=True)
    inverse = 1 / np.sqrt(((exact - mean) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    y = np.asarray(made[0])
    assert made[1].dtype == made[2].dtype == helper.tensor_dtype_to_np_dtype(stash)
    given = from_memory(y.view(dtype.numpy), dtype).astype(np.float64)
    np.testing.assert_allclose(given, (exact - mean) * inverse, atol=3 * tolerance)
    for found, expected, rtol in ((made[1], mean, 1e-6), (made[2], inverse, 2e-4)):
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=rtol)
