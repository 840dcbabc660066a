"""A user's own packages `compiler`, `tuner`, `db` and `service` are in no command's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import own_folders
from tests.unit.service.api_calls import onnx_bytes

TORCH = """
import torch
model = torch.compile(torch.nn.Linear(3, 2).eval(), backend="tilewright")
with torch.no_grad():
    print(tuple(model(torch.zeros(1, 3)).shape))
"""


def ran(folder: Path, *arguments: str) -> str:
    """What a Python prints that starts in a folder, which it puts first on its path."""
    environment = {**os.environ, "TILEWRIGHT_DATA_FOLDER": str(folder.parent / "data")}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_model_is_tuned_and_run_there(tmp_path: Path) -> None:
    here = own_folders(tmp_path / "here")
    (tmp_path / "model.onnx").write_bytes(onnx_bytes())
    cli = ("-m", "tilewright.service.cli")
    arguments = ("tune", "../model.onnx", "--trials", "2", "-o", "../artifact")
    assert "artifact" in ran(here, *cli, *arguments)
    load = "import tilewright; print(tilewright.load_artifact('../artifact').output_names)"
    assert "(" in ran(here, "-c", load)


def test_the_backend_of_torch_is_found_there(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "(1, 2)" in ran(own_folders(tmp_path / "here"), "-c", TORCH)
