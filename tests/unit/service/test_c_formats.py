"""`tilewright compile --format`: what it writes and what it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from service.cli import run as run_cli

VIT = str(Path(__file__).parents[2] / "models/vit.onnx")


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "exe", "--name", "x"], "--name is for --format c and wasm"),
        (["--weights", "file"], "--weights is for --format c"),
        (["--format", "c", "--target", "wasm32"], "--format c is not for target 'wasm32'"),
        (["--format", "wasm"], "--format wasm is not for target 'host'"),
        (["--format", "c", "--name", "if"], "'x_if' would be one"),
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
