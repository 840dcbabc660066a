"""Scan and Loop with a known number of steps, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.compiler.errors import InvalidModelError, UnsupportedOperatorError
from tilewright.compiler.frontend import nodes, unroll
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.ops.interpret import run_graph

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info = helper.make_tensor_value_info


def typed(name: str) -> Any:
    """A float tensor of any shape."""
    return info(name, FLOAT, None)


X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def _scan(**attrs: Any) -> ModelProto:
    """s' = s + x, y = s' * w, with w from outside of the body."""
    steps = [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Mul", ["t", "w"], ["y"])]
    body = helper.make_graph(
        steps, "body", [typed("s"), typed("x")],
        [typed("t"), typed("y")],
    )  # fmt: skip
    node = helper.make_node("Scan", ["s0", "xs"], ["last", "ys"], "scan", body=body, **attrs)
    width = X.shape[1 - attrs.get("scan_input_axes", [0])[0]]
    constants = [numpy_helper.from_array(np.full(width, 0.5, np.float32), "w")]
    inputs = [info("s0", FLOAT, (width,)), info("xs", FLOAT, X.shape)]
    results = [helper.make_empty_tensor_value_info(name) for name in ("last", "ys")]
    graph = helper.make_graph([node], "m", inputs, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"scan_input_directions": [1], "scan_output_directions": [1]},
        {"scan_input_axes": [1], "scan_output_axes": [1]},
    ],
)
def test_a_scan_is_its_steps(attrs: dict[str, Any]) -> None:
    model = _scan(num_scan_inputs=1, **attrs)
    start = np.ones(X.shape[1 - attrs.get("scan_input_axes", [0])[0]], np.float32)
    feeds = {"s0": start, "xs": X}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, feeds)
    for mine, theirs in zip(run_graph(import_model(model), feeds), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def _loop(trips: int | None, stop: int | None, *, known: bool = True) -> ModelProto:
    """s' = 2 s while i < stop (an input if it is None), collecting s'."""
    steps = [
        helper.make_node("Add", ["s", "s"], ["t"]),
        helper.make_node("Less", ["i", "stop"], ["on"]),
        helper.make_node("Identity", ["t"], ["row"]),
    ]
    body = helper.make_graph(
        steps,
        "body",
        [info("i", INT64, ()), info("c", BOOL, ()), typed("s")],
        [info("on", BOOL, ()), typed("t"), typed("row")],
    )
    inputs = [info("s0", FLOAT, (2,))]
    constants = []
    if stop is None:
        inputs.append(info("stop", INT64, ()))
    else:
        constants.append(numpy_helper.from_array(np.array(stop), "stop"))
    if trips is not None and known:
        constants.append(numpy_helper.from_array(np.array(trips), "n"))
    elif trips is not None:
        inputs.append(info("n", INT64, ()))
    constants.append(numpy_helper.from_array(np.array(True), "go"))
    names = ["" if trips is None else "n", "go", "s0"]
    node = helper.make_node("Loop", names, ["last", "rows"], "loop", body=body)
    results = [helper.make_empty_tensor_value_info(name) for name in ("last", "rows")]
    graph = helper.make_graph([node], "m", inputs, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("trips", "stop", "steps"), [(4, 9, 4), (9, 2, 3), (None, 1, 2)])
def test_a_loop_ends_where_it_says(trips: int | None, stop: int, steps: int) -> None:
    start = np.array([1.0, -3.0], np.float32)
    last, rows = run_graph(import_model(_loop(trips, stop)), {"s0": start})
    np.testing.assert_array_equal(last, start * 2**steps)
    np.testing.assert_array_equal(rows, [start * 2 ** (i + 1) for i in range(steps)])


def test_a_condition_on_the_step_bounds_what_steps_collect() -> None:
    graph = import_model(_loop(3, 9, known=False))
    start = np.array([1.0, -3.0], np.float32)
    for trips, steps in ((3, 3), (20, 10), (0, 0)):
        last, rows = run_graph(graph, {"s0": start, "n": np.array(trips)})
        np.testing.assert_array_equal(last, start * 2**steps)
        assert rows.shape == (steps, 2)
    with pytest.raises(UnsupportedOperatorError, match="have no bound known"):
        import_model(_loop(3, 1 << 28, known=False))  # 2 GiB, for three steps


def _growing(trips: int) -> ModelProto:
    """s' = s twice: every step has shapes of its own."""
    body = helper.make_graph(
        [helper.make_node("Concat", ["s", "s"], ["t"], axis=0)],
        "body",
        [info("i", INT64, ()), info("c", BOOL, ()), typed("s")],
        [info("c", BOOL, ()), typed("t")],
    )
    constants = [numpy_helper.from_array(np.array(trips), "n")]
    node = helper.make_node("Loop", ["n", "", "s0"], ["last"], "loop", body=body)
    results = [helper.make_empty_tensor_value_info("last")]
    graph = helper.make_graph([node], "m", [info("s0", FLOAT, (2,))], results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_steps_may_differ_in_shape_where_they_are_spelled_out() -> None:
    start = np.array([1.0, -3.0], np.float32)
    (last,) = run_graph(import_model(_growing(3)), {"s0": start})
    np.testing.assert_array_equal(last, np.tile(start, 8))


def test_what_is_spelled_out_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops within each other multiply, and each alone stays under the limit of steps."""
    monkeypatch.setattr(nodes, "NODE_LIMIT", 9)
    import_model(_growing(4))
    with pytest.raises(InvalidModelError, match=r"unrolled, .* more than 9 nodes"):
        import_model(_growing(10))


def test_what_is_short_is_spelled_out_and_what_is_long_is_a_loop() -> None:
    operators = [{n.op for n in import_model(_loop(n, 999)).nodes} for n in (9, 900)]
    assert "loop" not in operators[0] and "loop" in operators[1]


def test_loops_that_cannot_be_spelled_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"trip count .* run-time value") as caught:
        import_model(_loop(3, None, known=False))
    assert caught.value.depends_on == ("n",)
    monkeypatch.setattr(unroll, "STEP_LIMIT", 5)
    with pytest.raises(UnsupportedOperatorError, match="more than 5 steps"):
        import_model(_growing(6))
    with pytest.raises(InvalidModelError, match="2 operands, 3 of them scanned"):
        import_model(_scan(num_scan_inputs=3))
