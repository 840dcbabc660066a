"""Ranges of sizes in which a model is invalid at every size are refused when it is compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tilewright.compiler.api import compile_model
from tilewright.compiler.errors import InvalidModelError
from tilewright.service.jobs.plan.planning import ModelRequest, plan_sizes

RESHAPE = "(float[batch, 6] x) => (float[p, q] y) <int64[2] s = {%s}> { y = Reshape(x, s) }"
ADD = "(float[batch, 6] x, float[10, 6] w) => (float[p, q] y) { y = Add(x, w) }"


def model(path: Path, text: str) -> Path:
    opset = '<ir_version: 9, opset_import: ["": 17]> g '
    onnx.save(onnx.parser.parse_model(opset + text), path)
    return path


REFUSED = [
    # the range decides
    (
        RESHAPE % "10, 6",
        "2..5",
        r"every size of batch=2..5: Reshape 'y': the input \(batch, 6\) has",
    ),
    (ADD, "12..300", r"every size of batch=12..300: Add 'y': shapes \(batch, 6\) and \(10, 6\)"),
    # each size decides
    (
        RESHAPE % "7, -1",
        "2..5",
        r"every size of batch=2..5, such as batch=\d: Reshape 'y': the input \(\d, 6\) has",
    ),
    # 6 batch = 1000 k has no solution among more sizes than are imported
    (
        RESHAPE % "1000, -1",
        "2..300",
        r"the \d\d sizes of batch=2..300 that were tried, such as batch=\d+: Reshape 'y'",
    ),
]


@pytest.mark.parametrize(("text", "sizes", "said"), REFUSED)
def test_a_range_without_a_valid_size_does_not_compile(
    tmp_path: Path, text: str, sizes: str, said: str
) -> None:
    path = model(tmp_path / "m.onnx", text)
    with pytest.raises(InvalidModelError, match=said):
        compile_model(path, dims={"batch": sizes}, keep=False)


@pytest.mark.parametrize(("text", "sizes", "said"), REFUSED[:3])
def test_a_range_without_a_valid_size_is_not_planned(
    tmp_path: Path, text: str, sizes: str, said: str
) -> None:
    """By `compile`, `tune` and `job submit`."""
    request = ModelRequest(model(tmp_path / "m.onnx", text).read_bytes())
    with pytest.raises(InvalidModelError, match=said):
        plan_sizes(request, {"batch": (sizes,)})


def test_a_valid_size_of_a_range_is_planned(tmp_path: Path) -> None:
    request = ModelRequest(model(tmp_path / "m.onnx", RESHAPE % "7, -1").read_bytes())
    (planned,) = plan_sizes(request, {"batch": ("2..20",)})
    assert planned.graph.types["x"].shape == (7, 6)
    assert planned.notes[0].startswith("batch=7, since no program serves 2..20: Reshape 'y'")


def test_a_range_with_a_valid_size_compiles(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", RESHAPE % "7, -1")
    compiled = compile_model(path, dims={"batch": "2..20"}, keep=False)
    x = np.arange(42, dtype=np.float32).reshape(7, 6)
    assert np.array_equal(compiled.run({"x": x})[0], x.reshape(7, 6))
    with pytest.raises(InvalidModelError, match="at batch=8: Reshape 'y'"):
        compiled.run({"x": np.ones((8, 6), np.float32)})


def test_a_default_range_is_not_the_end_of_all_sizes(tmp_path: Path) -> None:
    """A run with a larger size than the default range has compiles for it."""
    path = model(tmp_path / "m.onnx", RESHAPE % "5000, 6")
    compiled = compile_model(path, keep=False)
    x = np.ones((5000, 6), np.float32)
    assert np.array_equal(compiled.run({"x": x})[0], x)


ONE_MORE = "(float[batch, k] x) => (float[p, q] y) <int64[2] s = {10, 6}> { y = Reshape(x, s) }"


def test_sizes_that_the_caller_fixed_are_no_ranges(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", ONE_MORE)
    with pytest.raises(InvalidModelError) as error:
        compile_model(path, dims={"batch": "2..5", "k": 6}, keep=False)
    assert "every size of batch=2..5" in str(error.value) and "k=6" not in str(error.value)


def test_a_hint_of_a_position_leaves_the_range_of_its_dimension(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", RESHAPE % "5000, 6")
    compiled = compile_model(path, dims={"x[0]": "@8"}, keep=False)
    x = np.ones((5000, 6), np.float32)
    assert np.array_equal(compiled.run({"x": x})[0], x)


def test_an_error_that_no_size_changes_advises_no_size(tmp_path: Path) -> None:
    text = """(float[batch, 3, 8, 8] x) => (float[batch, 3, 16, 16] y)
        <float[4] s = {1, 1, 2, 2}> { y = Resize<mode = "liner">(x, , s) }"""
    path = model(tmp_path / "m.onnx", text)
    request = ModelRequest(path.read_bytes())
    for compiles in (
        lambda: compile_model(path, dims={"batch": "2..5"}, keep=False),
        lambda: plan_sizes(request, {"batch": ("2..5",)}),
    ):
        with pytest.raises(InvalidModelError, match="did you mean 'linear'") as error:
            compiles()
        assert "give other sizes" not in str(error.value)


def test_the_only_valid_sizes_of_two_ranges_are_planned(tmp_path: Path) -> None:
    """35 divides 6 a b at a=5, b=7 alone."""
    text = """(float[a, b, 6] x) => (float[p, q] y)
        <int64[2] s = {35, -1}> { y = Reshape(x, s) }"""
    request = ModelRequest(model(tmp_path / "m.onnx", text).read_bytes())
    (planned,) = plan_sizes(request, {"a": ("2..5",), "b": ("2..7",)})
    assert planned.graph.types["x"].shape == (5, 7, 6)
