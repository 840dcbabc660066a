"""Drawn products with weights of few bits in blocks: opset 21 against onnx.reference, MatMulNBits
against its documentation."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.differential.reference import evaluator
from tilewright.compiler.api import compile_model
from tilewright.compiler.driver import load_graph, optimise
from tilewright.compiler.errors import UnsupportedOperatorError
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target

KINDS = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
}
FORMS = ("MatMul", "Gemm", "Gemm transB", "Transpose")


def tensor(name: str, kind: int, values: np.ndarray[Any, Any]) -> TensorProto:
    return helper.make_tensor(name, kind, values.shape, values.reshape(-1).tolist())


def model(
    form: str, kind: int, block: int, blocks: int, columns: int, zero: str, random: Any, rows: int
) -> tuple[ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """x times a weight whose blocks lie along K; `zero` is none, middle, or any."""
    depth, turned = block * blocks, form in ("Gemm transB", "Transpose")
    low, high = KINDS[kind]

    def placed(*shape: int) -> tuple[int, ...]:
        return shape[::-1] if turned else shape

    values = random.integers(low, high + 1, placed(depth, columns))
    scales = random.uniform(0.5, 1.5, placed(blocks, columns)).astype(np.float32) * 0.01
    constants = [tensor("w", kind, values), numpy_helper.from_array(scales, "s")]
    operands = ["w", "s"]
    if zero != "none":
        middle = (low + high + 1) // 2
        zeros = np.full(scales.shape, middle)
        if zero == "any":
            zeros = random.integers(low, high + 1, scales.shape)
        constants.append(tensor("z", kind, zeros))
        operands.append("z")
    axis = int(turned) - (2 if random.integers(2) else 0)
    nodes = [helper.make_node("DequantizeLinear", operands, ["f"], axis=axis, block_size=block)]
    weight = "f"
    if form == "Transpose":
        nodes.append(helper.make_node("Transpose", ["f"], ["t"], perm=[1, 0]))
        weight = "t"
    batch = [2] if form in ("MatMul", "Transpose") and random.integers(2) else []
    if form.startswith("Gemm"):
        bias = random.standard_normal(columns).astype(np.float32)
        constants.append(numpy_helper.from_array(bias, "b"))
        nodes.append(helper.make_node("Gemm", ["x", weight, "b"], ["y"], transB=int(turned)))
    else:
        nodes.append(helper.make_node("MatMul", ["x", weight], ["y"]))
    x = random.standard_normal((*batch, rows, depth)).astype(np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "blocks",
        [info("x", TensorProto.FLOAT, x.shape)],
        [info("y", TensorProto.FLOAT, (*x.shape[:-1], columns))],
        constants,
    )
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), {"x": x}


@pytest.mark.parametrize("zero", ["none", "middle", "any"])
@pytest.mark.parametrize("kind", KINDS, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("form", FORMS)
def test_weights_stay_narrow(form: str, kind: int, zero: str) -> None:
    random = np.random.default_rng(zlib.crc32(f"{form} {kind} {zero}".encode()))
    block = int(random.choice([16, 32, 64, 128]))
    blocks, columns, rows = (int(random.integers(1, limit)) for limit in (5, 40, 9))
    proto, feeds = model(form, kind, block, blocks, columns, zero, random, rows)
    graph = optimise(load_graph(proto), Mode(resolve_target("x86-64-v3")))
    (product,) = (node for node in graph.nodes if node.op == "block_matmul")
    four = kind in (TensorProto.INT4, TensorProto.UINT4)
    words = graph.constants[product.inputs[1]]
    assert words.nbytes == block * blocks * columns // (2 if four else 1)
    assert len(product.inputs) == (4 if zero == "any" or not _is_signed(kind, zero) else 3)
    (expected,) = evaluator(proto).run(None, feeds)
    (found,) = compile_model(proto).run(feeds)
    largest = float(np.abs(expected).max()) or 1.0
    np.testing.assert_allclose(found / largest, expected / largest, atol=1e-5)


def _is_signed(kind: int, zero: str) -> bool:
    """Whether the zero point is the middle of the range."""
    return zero == "middle" or KINDS[kind][0] < 0


@pytest.mark.parametrize(("block", "depth"), [(24, 48), (8, 32), (32, 80)])
def test_other_blocks_are_floats_as_before(block: int, depth: int) -> None:
    """No power of two, less than sixteen, or no divisor of K."""
    random = np.random.default_rng(block)
    proto, feeds = model("MatMul", TensorProto.INT4, 16, depth // 16, 7, "none", random, 3)
    scales = random.uniform(0.5, 1.5, (-(-depth // block), 7)).astype(np.float32)
    del proto.graph.initializer[1]
    proto.graph.initializer.append(numpy_helper.from_array(scales, "s"))
    for attribute in proto.graph.node[0].attribute:
        if attribute.name == "block_size":
            attribute.i = block
    assert all(node.op != "block_matmul" for node in load_graph(proto).nodes)
    (expected,) = evaluator(proto).run(None, feeds)
    (found,) = compile_model(proto).run(feeds)
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)


def test_only_dequantisation_reads_elements_of_four_bits() -> None:
    """In bytes they would saturate, wrap and print at other numbers."""
    proto, _ = model("MatMul", TensorProto.INT4, 16, 1, 7, "none", np.random.default_rng(0), 3)
    proto.graph.node[0].CopyFrom(helper.make_node("Cast", ["w"], ["f"], name="c", to=1))
    with pytest.raises(UnsupportedOperatorError, match=r"'c'.*an operand of 4 bits"):
        load_graph(proto)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
def test_odd_numbers_of_elements_and_both_ways_to_store_them(kind: int, raw: bool) -> None:
    low, high = KINDS[kind]
    values = np.arange(low, high + 1)[:15].reshape(3, 5)
    weight = tensor("w", kind, values)
    if raw:
        pairs = np.append(values.reshape(-1), 0).reshape(-1, 2) & 15
        data = (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8).tobytes()
        weight = helper.make_tensor("w", kind, (3, 5), data, raw=True)
    one = numpy_helper.from_array(np.float32(0.5), "s")
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"]),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    shape = (3, 5)
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, shape)], [info("y", 1, shape)], [weight, one]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (found,) = compile_model(proto).run({"x": np.zeros(shape, np.float32)})
    np.testing.assert_array_equal(found, values * np.float32(0.5))


GROUPS = ("none", "permuted", "any")


def drawn_groups(how: str, depth: int, block: int, random: Any) -> np.ndarray[Any, Any] | None:
    """The group of each k: as many as a block has elements, or any number."""
    if how == "none":
        return None
    if how == "permuted":
        return np.asarray(random.permutation(np.arange(depth) // block), np.int32)
    return np.asarray(random.integers(0, -(-depth // block), depth), np.int32)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("zero", ["none", "bytes", "floats"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_any_order_of_groups(bits: int, zero: str, groups: str) -> None:
    """MatMulNBits as it is documented; ONNX Runtime ignores zero points in bytes together with
    g_idx, and has no g_idx for 2 and 8 bits."""
    random = np.random.default_rng(zlib.crc32(f"{bits} {zero} {groups}".encode()))
    level = 4 * int(random.integers(2))
    block = int(random.choice([16, 32, 64, 128, 256]))
    depth, columns, rows = block * int(random.integers(1, 4)) + 5, 7, int(random.integers(1, 6))
    blocks, per_byte = -(-depth // block), 8 // bits
    random_bytes = random.integers(0, 256, (columns, blocks, block // per_byte)).astype(np.uint8)
    scale = random.uniform(0.01, 0.02, (columns, blocks)).astype(np.float32)
    operands = {"w": random_bytes, "s": scale}
    centre = np.full((columns, blocks), 1 << (bits - 1), np.float64)
    if zero == "bytes":
        packed = random.integers(0, 256, (columns, -(-blocks // per_byte))).astype(np.uint8)
        operands["z"], centre = packed, in_order(packed, bits)[:, :blocks]
    elif zero == "floats":
        operands["z"] = random.uniform(0, 1 << bits, (columns, blocks)).astype(np.float32)
        centre = operands["z"]
    group_of = drawn_groups(groups, depth, block, random)
    if group_of is not None:
        operands["g"] = group_of
    names = ["x", "w", "s", *(name if name in operands else "" for name in "zg")]
    attrs = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attrs)
    x = random.standard_normal((rows, depth)).astype(np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", 1, x.shape)],
        [info("y", 1, (rows, columns))],
        [numpy_helper.from_array(array, name) for name, array in operands.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    at = np.arange(depth) // block if group_of is None else group_of
    elements = in_order(random_bytes.reshape(columns, -1), bits)[:, :depth].astype(np.float64)
    weight = (elements - centre[:, at]) * scale[:, at]
    (found,) = compile_model(proto).run({"x": x})
    # at level 4 an element of x is off by half a quantum of its chunk, at most 1/254 of 4
    size = np.abs(weight).sum(axis=1) * 4 / 254 if level else 1e-6 * np.abs(weight).sum(axis=1)
    assert (np.abs(found - x @ weight.T) <= size).all()


def in_order(packed: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """The elements of bytes, low bits first."""
    split = [packed >> low & ((1 << bits) - 1) for low in range(0, 8, bits)]
    return np.stack(split, axis=-1).reshape(len(packed), -1)
