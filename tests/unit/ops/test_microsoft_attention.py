"""Tests that do not fit a case of one answer: caches with room, layouts that ONNX Runtime's CPU
refuses, and the same operators compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from tests.unit.ops.attention_cases import GROUPED, PLAIN, RAGGED, ROTARY, i32
from tests.unit.ops.microsoft_cases import ms
from tests.unit.ops.rule_case import Case, expected_outputs
from tilewright.compiler.api import compile_model
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.sizes import Dimension

Arrays = dict[str, np.ndarray]


def _said(case: Case, feeds: Arrays, outputs: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs, without the rows that the operator does not speak of.

    Those of a cache behind a row's last key, and queries of a prompt behind it.
    """
    made, *caches = (np.array(each) for each in outputs)
    rows = made.shape[1]
    for batch, last in enumerate(np.asarray(feeds["x5"])):
        for cache in caches:
            cache[batch, :, last + 1 :] = 0
        if int(case.inputs[6]) == rows:
            made[batch, last + 1 :] = 0
    return [made, *caches]


@pytest.mark.parametrize("case", RAGGED, ids=lambda case: case.name)
def test_rows_of_their_own_lengths(case: Case) -> None:
    model, feeds = case.model()
    feeds = {name: np.asarray(array) for name, array in feeds.items()}
    expected = _said(case, feeds, expected_outputs(model, feeds))
    found = _said(case, feeds, run_graph(import_model(model), feeds))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def _run(case: Case, **feeds: np.ndarray) -> list[np.ndarray]:
    model, drawn = case.model()
    return run_graph(import_model(model), {n: np.asarray(a) for n, a in (drawn | feeds).items()})


def test_packed_operands_are_those_apart() -> None:
    """ONNX Runtime has them on GPUs alone."""
    random = np.random.default_rng(1)
    query, key, value = (random.standard_normal((2, 5, 4, 16)).astype(np.float32) for _ in range(3))
    flat = {f"x{n}": a.reshape(2, 5, 64) for n, a in enumerate((query, key, value))}
    attrs: dict[str, Any] = {"num_heads": 4}
    (apart,) = _run(ms("MultiHeadAttention", ((2, 5, 64),) * 3, attrs), **flat)
    (one,) = _run(
        ms("MultiHeadAttention", ((2, 5, 4, 3, 16),), attrs),
        x0=np.stack([query, key, value], 3),
    )
    (two,) = _run(
        ms("MultiHeadAttention", ((2, 5, 64), (2, 5, 4, 2, 16)), attrs),
        x0=flat["x0"],
        x1=np.stack([key, value], 3),
    )
    np.testing.assert_array_equal(apart, one)
    np.testing.assert_array_equal(apart, two)


def test_a_mask_of_all_positions_is_read_from_the_past_on() -> None:
    """(batch, 1, most, most): the rows of the new queries, the columns of all keys."""
    mask = np.random.default_rng(2).integers(0, 2, (2, 1, 12, 12)).astype(np.int32)
    mask[..., 0] = 1
    operands = (2, 5, 20), (20, 192), (192,)
    (whole, _) = _run(
        ms("Attention", (*operands, i32(*mask), (2, 2, 4, 3, 16)), {"num_heads": 4}, outputs=2)
    )
    rows = i32(*mask[:, 0, 3:8, :8])
    (by_rows, _) = _run(
        ms("Attention", (*operands, rows, (2, 2, 4, 3, 16)), {"num_heads": 4}, outputs=2)
    )
    np.testing.assert_array_equal(whole, by_rows)


@pytest.mark.parametrize(
    "case", [PLAIN[6], PLAIN[-1], *GROUPED[3:9], *RAGGED[-3:], *ROTARY[1:4]], ids=lambda c: c.name
)
def test_compiled(case: Case) -> None:
    """Kernels of the rules' output, including heads that share keys and rotated ones."""
    model, feeds = case.model()
    feeds = {name: np.asarray(array) for name, array in feeds.items()}
    expected = run_graph(import_model(model), feeds)
    found = compile_model(model).run(feeds)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def growing() -> ModelProto:
    """Grouped attention whose cache grows: an attention mask determines how many rows it has
    then."""
    attention = {"domain": "com.microsoft", "num_heads": 4, "kv_num_heads": 2}
    names = ("q", "k", "v", "past_k", "past_v", "lasts", "total")
    nodes = [
        helper.make_node("Shape", ["mask"], ["total.long"], start=1),
        helper.make_node("Cast", ["total.long"], ["total"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=0),
        helper.make_node("Sub", ["count", "axis"], ["lasts.long"]),
        helper.make_node("Cast", ["lasts.long"], ["lasts"], to=TensorProto.INT32),
        helper.make_node("GroupQueryAttention", names, ["y", "keys", "values"], **attention),
    ]
    shapes = dict(zip("qkv", ([1, "n", 64], [1, "n", 32], [1, "n", 32]), strict=True))
    shapes |= {name: [1, 2, "past", 16] for name in ("past_k", "past_v")}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.INT64, [1, "past + n"]))
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "keys", "values")]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "growing", inputs, outputs, [axis])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_a_cache_grows_by_the_new_rows_if_sizes_say_so() -> None:
    model = growing()
    compiled = compile_model(model, dims={"past": "0..64", "n": "1..8"})
    graph = import_model(model, {"past": Dimension("past", 0, 64), "n": Dimension("n", 1, 8)})
    for past, n in ((5, 1), (0, 3), (64, 8)):
        random = np.random.default_rng(past)
        extents = {"q": (1, n, 64), "k": (1, n, 32), "v": (1, n, 32)}
        extents |= dict.fromkeys(("past_k", "past_v"), (1, 2, past, 16))
        feeds: Arrays = {
            name: random.standard_normal(shape).astype(np.float32)
            for name, shape in extents.items()
        }
        feeds["mask"] = np.ones((1, past + n), np.int64)
        expected = expected_outputs(model, feeds)
        at_sizes = run_graph(graph.at({"past": past, "n": n}), feeds)
        for found in (at_sizes, compiled.run(feeds)):
            for mine, theirs in zip(found, expected, strict=True):
                assert mine.shape == theirs.shape
                np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)
