"""Small transformers, compiled, against ONNX Runtime: attention, merged projections, caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from benchmarks import models
from tests.kernels import HOST, WIDTHS
from tilewright.compiler.api import compile_model
from tilewright.compiler.driver import load_graph, make_plan, optimise
from tilewright.compiler.mode import Mode

VOCABULARY = models.BERT_VOCABULARY

SMALL: dict[str, tuple[str, Callable[[], Any]]] = {
    "bert": (
        "bert-base-128",
        lambda: models.bert(
            tokens=19, layers=2, hidden=48, heads=4, intermediate=96, vocabulary=VOCABULARY
        ),
    ),
    "deit": ("deit-small", lambda: models.deit(size=48, layers=2, hidden=40, heads=5, classes=10)),
    "gpt2": ("gpt2-prefill-64", lambda: models.gpt2(tokens=21, layers=2, hidden=32, heads=2)),
    "gpt2 with a cache": (
        "gpt2-decode-64",
        lambda: models.gpt2(tokens=1, past=13, layers=2, hidden=32, heads=4),
    ),
    "gpt2, five tokens and a cache": (
        "gpt2-decode-64",
        lambda: models.gpt2(tokens=5, past=13, layers=2, hidden=32, heads=4),
    ),
}

# Two layers of sums of up to 200 terms and two normalisations, each within a few 2**-24 of its
# largest element; both engines round.
ROUNDING = 2e-5


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("name", SMALL)
def test_a_transformer_agrees_with_onnx_runtime(name: str, bits: int) -> None:
    case, make = SMALL[name]
    model = make()
    feeds = models.feeds(case, model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, feeds)
    found = compile_model(model, target=f"host:{bits}").run(feeds)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=ROUNDING * float(np.abs(a).max()))


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt2 with a cache"])
def test_attention_needs_no_kernel_that_only_moves(name: str) -> None:
    """One product computes queries, keys and values; heads are read and written in place."""
    plan = make_plan(optimise(load_graph(SMALL[name][1]()), Mode(HOST)), Mode(HOST))
    kernels = [step.workload.operators for step in plan.kernels]
    assert sum("attention" in names for names in kernels) == 2
    assert not any(set(names) <= {"transpose", "slice"} for names in kernels)
    # three further products per layer: output, and two of the perceptron; at the end of some, one
    assert sum(names[0] == "matmul" for names in kernels) in (8, 9)


HEADS = {
    "plain": ((2, 3, 5, 8), (2, 3, 7, 8), (), {}),
    "mask": ((2, 3, 5, 8), (2, 3, 7, 8), (5, 7), {}),
    "causal": ((1, 2, 5, 8), (1, 2, 5, 8), (), {"is_causal": 1}),
    "grouped": ((1, 6, 5, 8), (1, 2, 7, 8), (1, 1, 5, 7), {"scale": 0.2}),
    "soft cap": ((1, 2, 5, 8), (1, 2, 7, 8), (5, 7), {"softcap": 0.8}),
    "rows of tokens": ((2, 5, 32), (2, 7, 16), (), {"q_num_heads": 4, "kv_num_heads": 2}),
}


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("name", HEADS)
def test_onnx_attention_is_one_kernel(name: str, opset: int) -> None:
    """The operator is imported as its function's body, and found in it."""
    query, key, mask, attributes = HEADS[name]
    shapes = {"q": query, "k": key, "v": key} | ({"mask": mask} if mask else {})
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Attention", list(shapes), ["y"], **attributes)
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    plan = make_plan(optimise(load_graph(model), Mode(HOST)), Mode(HOST))
    (kernel,) = plan.kernels
    assert "attention" in kernel.workload.operators
    random = np.random.default_rng(0)
    feeds = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    if mask:
        feeds["mask"][..., 2, :] = -np.inf
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    (found,) = compile_model(model).run(feeds)
    np.testing.assert_allclose(found, np.nan_to_num(expected), rtol=0, atol=2e-6)
