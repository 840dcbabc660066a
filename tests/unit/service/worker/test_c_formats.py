"""`tilewright compile --format`: its output and its refusals."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.service.cli import run as run_cli

VIT = str(Path(__file__).parents[3] / "models/vit.onnx")


@pytest.fixture(autouse=True)
def _own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))


def test_a_library_takes_its_name_from_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "library"
    made = ["compile", VIT, "--dim", "batch=1..4", "-o", str(folder), "--format", "c"]
    assert run_cli(made) == 0
    assert "vit.h, libvit.a, libvit.so" in capsys.readouterr().out
    assert "#define VIT_BATCH_MOST 4" in (folder / "vit.h").read_text()
    assert run_cli([*made, "--name", "other", "--weights", "file"]) == 0
    names = {path.name for path in folder.iterdir()}
    assert {"other.h", "libother.a", "libother.so", "other.weights"} <= names
    assert "vit.h" not in names


def test_an_executable_is_one_file(tmp_path: Path) -> None:
    program = tmp_path / "vit"
    assert run_cli(["compile", VIT, "--dim", "batch=1", "-o", str(program), "--format", "exe"]) == 0
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 32, 32), np.float32))
    run = [program, f"pixels={tmp_path}/x.npy", "-o", f"y={tmp_path}/y.npy"]
    assert subprocess.run(run, check=False, capture_output=True).returncode == 0
    assert np.load(tmp_path / "y.npy").shape == (1, 17, 24)


def test_caches_that_grow_have_no_room_that_a_caller_knows_nothing_of(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Concat", ["past", "new"], ["present"], axis=1)],
        "g",
        [
            helper.make_tensor_value_info("past", TensorProto.FLOAT, (2, "past", 4)),
            helper.make_tensor_value_info("new", TensorProto.FLOAT, (2, 1, 4)),
        ],
        [helper.make_tensor_value_info("present", TensorProto.FLOAT, (2, "all", 4))],
    )
    model, program = tmp_path / "cache.onnx", tmp_path / "cache"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), model)
    made = ["compile", str(model), "--dim", "past=0..8", "-o", str(program), "--format", "exe"]
    assert run_cli(made) == 0
    for rows in (0, 3):
        arrays = [np.random.default_rng(rows).random((2, n, 4), np.float32) for n in (rows, 1)]
        command = [program, "--size", f"past={rows}", "-o", f"present={tmp_path}/y.npy"]
        for name, array in zip(("past", "new"), arrays, strict=True):
            np.save(tmp_path / f"{name}.npy", array)
            command.append(f"{name}={tmp_path}/{name}.npy")
        subprocess.run(command, check=True, capture_output=True)
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.concatenate(arrays, 1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "exe", "--name", "x"], "--name is for --format c and wasm"),
        (["--weights", "file"], "--weights is for --format c"),
        (["--format", "c", "--target", "wasm32"], "--format c is not for target 'wasm32'"),
        (["--format", "wasm"], "--format wasm is not for target 'host'"),
        (["--format", "c", "--name", "if"], "a valid one is 'x_if'"),
        (["--format", "c", "--dim", "batch=2"], "not 2 combinations"),
        (["--format", "c", "--pad", "--dim", "batch=2"], "--pad is for artifacts"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = ["--dim", "batch=1,2"] if "--dim" in arguments else ["--dim", "batch=1"]
    arguments = [each for each in arguments if each not in ("--dim", "batch=2")]
    command = ["compile", VIT, *several, "-o", str(tmp_path / "library"), *arguments]
    assert run_cli(command) != 0
    assert words in " ".join(capsys.readouterr().err.split())
