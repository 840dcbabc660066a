"""Models with native steps: whole, in artifacts, at several sizes, against ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.plan_reader import read_plan
from tilewright.compiler import driver
from tilewright.compiler.driver import compile_whole
from tilewright.compiler.errors import InvalidModelError, UnsupportedOperatorError
from tilewright.compiler.graph.text import digest
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.program import artifacts
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime.program import NativeCall
from tilewright.compiler.targets.host import host_target


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: Sequence[str],
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """Inputs: shapes of float32 values; outputs: whatever type they have."""
    graph = helper.make_graph(
        list(nodes),
        "m",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(v, n) for n, v in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    return made


def detector() -> onnx.ModelProto:
    """A convolution with a halo, its 3 best places, where it is positive, and which rows are."""
    random = np.random.default_rng(4)
    weights = {name: random.standard_normal((16, 16, 3, 3)).astype(np.float32) for name in "vw"}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("TopK", ["a", "k"], ["values", "places"], axis=1),
        helper.make_node("Greater", ["b", "zero"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["where"]),
        helper.make_node("ReduceMax", ["b"], ["best"], axes=[0, 1, 2], keepdims=0),
        helper.make_node("Greater", ["best", "many"], ["chosen"]),
        helper.make_node("Compress", ["b", "chosen"], ["columns"], axis=3),
        helper.make_node("Add", ["values", "zero"], ["raised"]),
    ]
    constants = {**weights, "k": np.array([3]), "zero": np.float32(0), "many": np.float32(25)}
    outputs = ["places", "where", "columns", "raised"]
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    return model(nodes, {"x": [1, 16, 10, 10]}, outputs, arrays)


def image() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(6).standard_normal((1, 16, 10, 10), np.float32)}


def runtime(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return [np.asarray(array) for array in session.run(None, feeds)]


def agree(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Integers are equal; floats differ by the rounding of two sums of 144 products.

    With vectors of 256 bits, Winograd's algorithm computes tiles of 4x4 outputs, which round by
    1e-6 of the largest output.
    """
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind != "f":
            np.testing.assert_array_equal(mine, theirs)
            continue
        largest = float(np.abs(theirs).max(initial=1.0))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=4e-6 * largest)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_of_kernels_and_native_steps(threads: int) -> None:
    proto = detector()
    executable = tilewright.compile_model(proto, threads=threads)
    agree(executable.run(image()), runtime(proto, image()))
    program = executable.program
    calls = [i.function for i in program.instructions if isinstance(i, NativeCall)]
    assert sorted(calls) == ["positions", "positions", "top_k", "trim", "trim"]
    assert [port.counted for port in program.outputs] == [None, 1, 3, None]


def test_native_steps_have_no_task_and_a_json_form() -> None:
    graph = driver.optimise(driver.load_graph(detector()), Mode())
    plan = driver.make_plan(graph, Mode())
    assert len(plan.natives) == 5
    assert sum(count for _, count in plan.tasks()) == len(plan.kernels)
    constants = {digest(array): array for array in plan.graph.constants.values()}
    assert read_plan(plan.to_json(), constants) == plan
    agree(run_graph(graph, image()), runtime(detector(), image()))


ALONE = """
import sys
for name in ("onnx", "llvmlite", "tilewright.compiler.graph", "tilewright.compiler.ops"):
    sys.modules[name] = None
import numpy as np
from tilewright.compiler.runtime.artifact import load_artifact
found = load_artifact(sys.argv[1]).run({"x": np.load(sys.argv[2])})
np.savez(sys.argv[3], *found)
"""


def test_an_artifact_with_native_steps_runs_with_numpy_alone(tmp_path: Path) -> None:
    proto, target = detector(), host_target()
    plan = driver.make_plan(driver.optimise(driver.load_graph(proto), Mode(target)), Mode(target))
    artifacts.save_artifact({(): plan}, ProgramBuilder(None, Mode(target)), tmp_path / "artifact")
    np.save(tmp_path / "x.npy", image()["x"])
    files = [str(tmp_path / name) for name in ("artifact", "x.npy", "found.npz")]
    subprocess.run([sys.executable, "-c", ALONE, *files], check=True)
    with np.load(tmp_path / "found.npz") as found:
        agree(list(found.values()), runtime(proto, image()))


def test_open_dimensions_bound_what_the_data_say() -> None:
    proto = model([helper.make_node("NonZero", ["x"], ["y"])], {"x": ["rows", 3]}, ["y"])
    executable = tilewright.compile_model(proto)
    for rows in (1, 4):
        x = np.round(np.random.default_rng(rows).standard_normal((rows, 3), np.float32))
        agree(executable.run([x]), [np.array(np.nonzero(x))])


def test_constants_of_native_steps_are_weights() -> None:
    limits = {
        "limit": np.array([3]),
        "most": np.array([0.5], np.float32),
        "least": np.array([0.2], np.float32),
    }
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", *limits], ["y"])
    proto = model([node], {"boxes": [2, 9, 4], "scores": [2, 3, 9]}, ["y"], limits)
    executable = tilewright.compile_model(proto)
    random = np.random.default_rng(8)
    feeds = {
        "boxes": random.random((2, 9, 4), np.float32),
        "scores": random.random((2, 3, 9), np.float32),
    }
    agree(executable.run(feeds), runtime(proto, feeds))
    assert executable.program.weight_bytes == 3 * 64


def test_a_counted_output_may_be_given_twice() -> None:
    chosen = {"chosen": np.array([True, False, True])}
    nodes = [
        helper.make_node("NonZero", ["x"], ["y"]),
        helper.make_node("NonZero", ["x"], ["z"]),
        helper.make_node("Compress", ["x", "chosen"], ["w"], axis=0),
    ]
    proto = model(nodes, {"x": [3, 4]}, ["y", "z", "w"], chosen)
    x = np.round(np.random.default_rng(3).standard_normal((3, 4), np.float32))
    executable = tilewright.compile_model(proto)
    agree(executable.run([x]), [*[np.array(np.nonzero(x))] * 2, x[[0, 2]]])
    assert [port.counted for port in executable.program.outputs] == [1, 1, None]  # known at import


def test_what_is_known_at_import_is_no_native_step() -> None:
    table = {"table": np.array([[0, 5], [7, 0]], np.float32)}
    nodes = [
        helper.make_node("NonZero", ["table"], ["where"]),
        helper.make_node("Shape", ["where"], ["shape"]),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    executable = tilewright.compile_model(model(nodes, {"x": [4]}, ["y"], table))
    (found,) = executable.run([np.arange(4, dtype=np.float32)])
    assert found.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs"),
    [
        ("Shape", ["y"], {}),
        ("Div", ["y", "trips"], {}),
        ("Add", ["y", "row"], {}),
        ("Add", ["y", "other"], {}),
        ("Gather", ["y", "trips"], {"axis": 1}),
        ("Squeeze", ["y"], {}),
        ("Reshape", ["y", "open"], {}),
        ("Reshape", ["y", "fixed"], {}),
        ("Slice", ["y", "open", "fixed"], {}),
        ("Concat", ["y", "y"], {"axis": 1}),
        ("Concat", ["y", "other"], {"axis": 0}),
        ("Split", ["y"], {"axis": -1}),
        ("ReduceSum", ["y"], {}),
        ("Loop", ["trips", "", "y"], {"body": "loop"}),
    ],
)
def test_without_a_cut_a_node_that_reads_a_counted_value_is_refused(
    op_type: str, inputs: list[str], attrs: dict[str, Any]
) -> None:
    if "body" in attrs:
        infos = [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_empty_tensor_value_info("v"),
        ]
        body = helper.make_graph([], "body", infos, infos[1:])
        attrs = {"body": body}
    nodes = [
        helper.make_node("NonZero", ["x"], ["y"]),
        helper.make_node("NonZero", ["u"], ["other"]),
        helper.make_node(op_type, inputs, ["z"], name="reader", **attrs),
    ]
    constants = {"trips": np.array(2), "row": np.arange(12)}
    constants |= {"open": np.array([1, -1]), "fixed": np.array([2, 12])}
    proto = model(nodes, {"x": [3, 4], "u": [3, 4]}, ["z"], constants)
    with pytest.raises(UnsupportedOperatorError, match="depends on the data") as caught:
        compile_whole(proto)
    assert (caught.value.node, caught.value.operator) == ("reader", op_type)


def test_nodes_that_keep_places_apart_read_counted_values() -> None:
    """A detector's operators: boxes that suppression chose, coordinates of nonzero elements."""
    limits = {"limit": np.array([5]), "most": np.array([0.3], np.float32)}
    two, one = np.array(2), np.array([1])
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", *limits], ["chosen"]),
        helper.make_node("Gather", ["chosen", "two"], ["which"], axis=1),
        helper.make_node("Gather", ["boxes", "which"], ["picked"], axis=1),
        helper.make_node("Mul", ["picked", "half"], ["scaled"]),
        helper.make_node("Split", ["scaled"], ["low", "high"], axis=2),
        helper.make_node("Sub", ["high", "low"], ["extent"]),
        helper.make_node("Squeeze", ["extent", "zero"], ["flat"]),
        helper.make_node("NonZero", ["boxes"], ["places"]),
        helper.make_node("Transpose", ["places"], ["coordinates"]),
        helper.make_node("Unsqueeze", ["coordinates", "one"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Identity", ["real"], ["same"]),
        helper.make_node("Add", ["same", "half"], ["moved"]),
        helper.make_node("Slice", ["chosen", "two_", "three", "one"], ["column"]),
        helper.make_node("Reshape", ["column", "open"], ["list"]),
        helper.make_node("Cast", ["column"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["flat", "number"], ["joined"], axis=1),
    ]
    constants = {**limits, "two": two, "one": one, "zero": np.array([0])}
    constants["half"] = np.array([0.5], np.float32)
    constants |= {"two_": np.array([2]), "three": np.array([3]), "open": np.array([-1])}
    outputs = ["which", "picked", "low", "flat", "rows", "moved", "list", "joined"]
    proto = model(nodes, {"boxes": [1, 9, 4], "scores": [1, 1, 9]}, outputs, constants)
    random = np.random.default_rng(2)
    boxes = np.round(random.random((1, 9, 4), np.float32), 1)
    feeds = {"boxes": boxes, "scores": random.random((1, 1, 9), np.float32)}
    executable = tilewright.compile_model(proto)
    assert [port.counted for port in executable.program.outputs] == [0, 1, 1, 0, 0, 0, 0, 0]
    agree(executable.run(feeds), runtime(proto, feeds))
    agree(run_graph(driver.load_graph(proto), feeds), runtime(proto, feeds))


def test_stacked_counted_values_are_refused() -> None:
    """A Loop whose body gives one in each step."""
    infos = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    found = helper.make_empty_tensor_value_info("found")
    body = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["found"])], "body", infos, [infos[1], found]
    )
    nodes = [helper.make_node("Loop", ["trips", ""], ["z"], name="loop", body=body)]
    proto = model(nodes, {"x": [3, 4]}, ["z"], {"trips": np.array(2)})
    with pytest.raises(UnsupportedOperatorError, match="depends on the data"):
        tilewright.compile_model(proto)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "message"),
    [
        ("TopK", ["x", "five"], {}, "TopK 'node': k is 5, expected 0 to the 4 elements"),
        ("TopK", ["x", "five"], {"axis": 2}, "TopK 'node': axis 2 is out of range for rank 2"),
        ("Compress", ["x", "five"], {}, "Compress 'node': condition \\(input 1\\) is int64"),
        ("Compress", ["x", "flags"], {"axis": 0}, r"bool\[4\], expected .* for axis 0 of \(3, 4\)"),
        ("Unique", ["x"], {"axis": -3}, "Unique 'node': axis -3 is out of range"),
        ("NonMaxSuppression", ["x", "x"], {}, r"scores \(input 1\) are \(3, 4\), expected"),
        ("NonMaxSuppression", ["b", "b"], {}, r"boxes are \(1, 2, 3\) and the scores \(1, 2, 3\)"),
        ("NonMaxSuppression", ["b", "b"], {"center_point_box": 2}, "center_point_box is 2"),
    ],
)
def test_contradictions_name_the_node(
    op_type: str, inputs: list[str], attrs: dict[str, int], message: str
) -> None:
    constants = {"five": np.array([5]), "flags": np.ones(4, np.bool_)}
    node = helper.make_node(op_type, inputs, ["y"], name="node", **attrs)
    with pytest.raises(InvalidModelError, match=message):
        tilewright.compile_model(model([node], {"x": [3, 4], "b": [1, 2, 3]}, ["y"], constants))


@pytest.mark.parametrize("largest", [0, 1])
def test_the_run_may_say_how_many_are_the_top(largest: int) -> None:
    """The axis bounds k; elementwise operators after it are counted too."""
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=1, largest=largest),
        helper.make_node("Neg", ["values"], ["negative"]),
    ]
    names = ["values", "places", "negative"]
    proto = model(nodes, {"x": [2, 5, 3], "k": [1]}, names)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    executable = tilewright.compile_model(proto)
    assert [port.counted for port in executable.program.outputs] == [1, 1, 1]
    x = np.random.default_rng(6).standard_normal((2, 5, 3)).astype(np.float32)
    order = np.argsort(-x if largest else x, axis=1, kind="stable")
    for k in (0, 1, 3, 5):
        places = order[:, :k]
        values = np.take_along_axis(x, places, 1)
        agree(executable.run([x, np.array([k])]), [values, places, -values])
    assert executable.run([x, np.array([9])])[1].shape == (2, 5, 3)


@pytest.mark.parametrize("number", [0.0, 2.5])
def test_a_scalar_that_is_not_zero_counts_once(number: float) -> None:
    """Its place has no coordinates: the result has no elements, and still an extent."""
    proto = model([helper.make_node("NonZero", ["x"], ["y"])], {"x": []}, ["y"])
    (found,) = tilewright.compile_model(proto).run([np.array(number, np.float32)])
    assert (found.shape, found.dtype) == ((0, int(number != 0)), np.int64)


def test_a_scalar_stays_one() -> None:
    proto = model([helper.make_node("Celu", ["x"], ["y"], alpha=0.5)], {"x": []}, ["y"])
    x = np.array(-1, np.float32)
    agree(tilewright.compile_model(proto).run([x]), runtime(proto, {"x": x}))
