"""Models with odd inputs and outputs run as in ONNX Runtime: stated shapes and names that are
wrong, and dimensions of size 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright
from tilewright.compiler.errors import InvalidInputError, ModelWarning
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.service import cli

Dims = list[int | str]


def model(op_type: str, inputs: dict[str, Dims], output: Dims, **attrs: Any) -> onnx.ModelProto:
    """One node over float32 inputs."""
    graph = helper.make_graph(
        [helper.make_node(op_type, list(inputs), ["z"], **attrs)],
        "m",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in inputs.items()],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, output)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def expected(made: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (result,) = session.run(None, feeds)
    return np.asarray(result)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("stated", [[1], [1, 4], [256, 5], [256, 4, 1]])
def test_a_stated_shape_of_an_output_that_is_not_so(stated: Dims) -> None:
    made, feeds = model("Softplus", {"x": [256, 4]}, stated), {"x": numbers(256, 4)}
    with pytest.warns(ModelWarning, match=r"output 'z' is float32\[256,4\], the model states \["):
        executable = tilewright.compile_model(made)
    np.testing.assert_allclose(executable.run(feeds)[0], expected(made, feeds), rtol=1e-6)


@pytest.mark.parametrize("name", ["?", "-1", "batch"])
def test_a_name_for_two_sizes(name: str) -> None:
    """Of two inputs that are put one behind the other."""
    made = model("Concat", {"x": [name, 4], "y": [name, 4]}, [name, 4], axis=0)
    executable = tilewright.compile_model(made)
    assert isinstance(executable, GuardedModel)
    for rows, others in ((2, 5), (3, 3), (2, 5)):
        feeds = {"x": numbers(rows, 4), "y": numbers(others, 4)}
        (found,) = executable.run(feeds)
        np.testing.assert_array_equal(found, expected(made, feeds))
    # one name for two sizes contradicts the range
    assert len(executable.made) == (1 if name == "batch" else 0)


def test_a_name_within_one_input() -> None:
    made = model("MatMul", {"x": ["n", "n"], "y": ["n", 3]}, ["n", 3])
    feeds = {"x": numbers(2, 5), "y": numbers(5, 3)}
    with pytest.warns(ModelWarning, match=r"the sizes of 'x\[1\]', 'y\[0\]' differ"):
        (found,) = tilewright.compile_model(made).run(feeds)
    np.testing.assert_allclose(found, expected(made, feeds), rtol=1e-5, atol=1e-5)


def test_inputs_that_must_agree_and_do_not() -> None:
    made = model("Add", {"x": ["batch", 4], "y": ["batch", 4]}, ["batch", 4])
    with pytest.raises(
        InvalidInputError, match=r"input 'y': dimension 0 \('batch'\) is 3, input 'x'"
    ):
        tilewright.compile_model(made).run({"x": numbers(2, 4), "y": numbers(3, 4)})


def test_the_command_line_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model("Softplus", {"x": [256, 4]}, [1]), path)
    assert cli.run(["show", "graph", str(path)]) == 0
    said = capsys.readouterr().err
    assert said == (
        "warning: output 'z' is float32[256,4], the model states [1], which is ignored\n"
    )


def test_outputs_are_not_cut_to_what_is_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model("Softplus", {"x": ["batch", 4]}, [1, 4]), path)
    options = ["--dim", "batch=2,3", "--pad", "--output", str(tmp_path / "made")]
    assert cli.run(["compile", str(path), *options]) == 1
    assert "output 'z': dimension 0 depends on the sizes and has no name" in capsys.readouterr().err


def test_an_artifact_without_kernels(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model("Softplus", {"x": [0, 4]}, [0, 4]), path)
    assert cli.run(["compile", str(path), "--output", str(tmp_path / "made")]) == 0
    (found,) = load_artifact(tmp_path / "made").run({"x": numbers(0, 4)})
    assert found.shape == (0, 4) and found.dtype == np.float32
