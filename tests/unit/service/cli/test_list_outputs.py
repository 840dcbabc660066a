"""Outputs that are lists of tensors: in artifacts, sessions like ONNX Runtime's, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright.compiler.bindings.ort as ort
from tests.unit.frontend.test_sequences import ROWS, assert_lists, lists, one_beside
from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.service.cli import app


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    (folder / "m.onnx").write_bytes(lists().SerializeToString())
    compiled = CliRunner().invoke(app, ["compile", str(folder / "m.onnx"), "-o", str(folder / "a")])
    assert compiled.exit_code == 0, compiled.output
    return folder / "a"


def test_artifacts_and_sessions_give_lists(artifact: Path) -> None:
    assert_lists(load_artifact(artifact).run)
    session = ort.InferenceSession(artifact)
    assert_lists(lambda feeds: session.run(None, feeds))
    described = [each.type for each in session.get_outputs()]
    assert described == ["seq(tensor(float))", "tensor(float)", "seq(tensor(string))"]
    parts, _, _ = session.run_with_ort_values(None, {"x": ort.OrtValue(ROWS)})
    assert parts.is_tensor_sequence() and not parts.is_tensor()
    tensor, binding = ort.OrtValue(ROWS.copy()), session.io_binding()
    binding.bind_cpu_input("x", ROWS)
    binding.bind_ortvalue_output("parts", tensor)
    for wrong in (
        parts.shape,
        lambda: session.run(None, {"x": parts}),
        lambda: session.run_with_iobinding(binding),
    ):
        with pytest.raises(InvalidInputError, match="sequence"):
            wrong()


def test_the_command_line_stores_the_elements_of_lists(artifact: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=ROWS)
    options = ["--inputs", str(tmp_path / "in.npz"), "--outputs", str(tmp_path / "out.npz")]
    done = CliRunner().invoke(app, ["run", str(artifact), *options])
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "out.npz") as found:
        assert sorted(found) == [
            "again", "names[0]", "names[1]", *(f"parts[{k}]" for k in range(4))
        ]  # fmt: skip
        np.testing.assert_array_equal(found["parts[1]"], ROWS)


def test_an_element_that_is_called_as_another_output_gets_a_prime(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(one_beside().SerializeToString())
    np.savez(tmp_path / "in.npz", x=ROWS)
    command = ["run", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "in.npz")]
    done = CliRunner().invoke(app, [*command, "--outputs", str(tmp_path / "out.npz")])
    assert done.exit_code == 0, done.output
    relu = np.maximum(ROWS, 0).tolist()
    with np.load(tmp_path / "out.npz") as stored:
        found = {name: stored[name].tolist() for name in stored}
    assert found == {"p[0]'": relu, "p[1]": ROWS.tolist(), "p[0]": (-ROWS).tolist()}
