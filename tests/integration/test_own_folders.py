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
    """The output of a Python process that starts in a folder, which it puts first on its path."""
    environment = {**os.environ, "TILEWRIGHT_DATA_FOLDER": str(folder.parent / "data")}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TUNE = """
import numpy as np, tilewright
tuned = tilewright.tune("../model.onnx", "../artifact", trials=2)
inputs = {"x": np.ones((3, 4), np.float32)}
(found,), (expected,) = tuned.run(inputs), tilewright.compile_model("../model.onnx").run(inputs)
assert np.allclose(found, expected, rtol=1e-5)
try:
    tilewright.tune("absent.onnx", "../artifact")
except tilewright.TuningError as error:
    assert "no such file: 'absent.onnx'" in str(error)
else:
    raise AssertionError("a model that is not there was tuned")
"""


def test_a_model_is_tuned_compiled_and_run_there(tmp_path: Path) -> None:
    here = own_folders(tmp_path / "here")
    (tmp_path / "model.onnx").write_bytes(onnx_bytes())
    (tmp_path / "here" / "script.py").write_text(TUNE)
    ran(here, "script.py")
    arguments = ("compile", "../model.onnx", "-o", "../compiled")
    assert "1 of 4 workloads known" in ran(here, "-m", "tilewright.service.cli", *arguments)


def test_the_backend_of_torch_is_found_there(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "(1, 2)" in ran(own_folders(tmp_path / "here"), "-c", TORCH)
