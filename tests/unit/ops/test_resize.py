"""Resize where the specification, its reference and the runtimes differ: as ONNX Runtime has it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.ops.interpret import run_graph

SCALES = (1 / 7, 1 / 3, 0.4, 3 / 7, 0.5, 0.6, 2 / 3, 0.75, 1.1, 1.2, 1.5, 2.0, 2.3, 3.0)
SIZES = (1, 2, 3, 5, 9, 12, 20)
EXTENTS = (1, 2, 4, 5, 10, 14, 15)


def model(extent: int, scale: float = 0.0, size: int = 0, opset: int = 19, **attrs: Any) -> Any:
    """One dimension resized, to a size or by a scale."""
    numbers = np.array([1, 1, size]) if size else np.array([1, 1, scale], np.float32)
    inputs = ["x", "n"] if opset < 11 else ["x", "", "", "n"] if size else ["x", "", "n"]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, extent))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Resize", inputs, ["y"], **attrs)]
    graph = helper.make_graph(nodes, "resize", [x], [y], [numpy_helper.from_array(numbers, "n")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def expected(proto: ModelProto, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def places(extent: int) -> np.ndarray:
    return np.arange(extent, dtype=np.float32).reshape(1, 1, extent)


def agrees(extent: int, **resized: Any) -> bool:
    proto, x = model(extent, **resized), places(extent)
    (found,) = run_graph(import_model(proto), {"x": x})
    theirs = expected(proto, x)
    return found.shape == theirs.shape and np.allclose(found, theirs, rtol=0, atol=2e-5)


def fitting(extent: int) -> list[dict[str, Any]]:
    """Scales and sizes whose result has at least one element."""
    scales = [{"scale": s} for s in SCALES if np.float32(s) * np.float32(extent) >= 1]
    return [*scales, *({"size": s} for s in SIZES)]


@pytest.mark.parametrize(
    "place",
    ["half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric"],
)
@pytest.mark.parametrize(
    "mode", ["linear", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
)
def test_places_and_ties_are_those_of_onnx_runtime(place: str, mode: str) -> None:
    attrs: dict[str, Any] = {"mode": "linear"}
    if mode != "linear":
        attrs = {"mode": "nearest", "nearest_mode": mode}
    wrong = [
        (extent, resized)
        for extent in EXTENTS
        for resized in fitting(extent)
        if not agrees(extent, coordinate_transformation_mode=place, **resized, **attrs)
    ]
    assert not wrong


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_opset_10_rounds_up_what_shrinks(mode: str) -> None:
    wrong = [
        (extent, scale)
        for extent, scale in product(EXTENTS, SCALES)
        if np.float32(scale) * np.float32(extent) >= 1
        and not agrees(extent, scale=scale, opset=10, mode=mode)
    ]
    assert not wrong


def test_a_compiled_model_of_opset_10_rounds_up() -> None:
    """A half of three is one and a half: the second output is the third input."""
    proto = model(4, 0.6, opset=10, mode="nearest")
    (found,) = tilewright.compile_model(proto).run({"x": places(4)})
    np.testing.assert_array_equal(found, [[[0.0, 2.0]]])


@pytest.mark.parametrize("scale", [0.6, 2.3, 1 / 3])
def test_an_open_extent_is_resized_as_a_known_one(scale: float) -> None:
    """Extents, ties and places of a run that knows them only then."""
    attrs: dict[str, Any] = {"mode": "nearest", "nearest_mode": "round_prefer_ceil"}
    proto = model(1, scale, coordinate_transformation_mode="asymmetric", **attrs)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "n"
    module = tilewright.compile_model(proto, dims={"n": range(4, 65)})
    for extent in (4, 10, 15, 30, 64):
        x = places(extent)
        np.testing.assert_array_equal(module.run({"x": x})[0], expected(proto, x))


def test_corners_stay_corners_with_a_scale_that_gives_no_whole_extent() -> None:
    proto = model(4, 2.3, mode="linear", coordinate_transformation_mode="align_corners")
    (found,) = tilewright.compile_model(proto).run({"x": places(4)})
    np.testing.assert_allclose(found[0, 0], np.linspace(0, 3, 9), rtol=1e-6)
