"""`make demo` with a small model and budget ends well, and its artifact gives what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import models
from compiler.driver import load_graph
from compiler.ops.interpret import run_graph
from compiler.runtime.artifact import load_artifact
from compiler.target import host_target
from examples.demo import older_target
from tests.graphs import random_inputs

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
BUDGET = ["--model", "mlp", "--trials", "6", "--seconds", "10", "--rounds", "1"]
BUDGET += ["--older-model", "mlp", "--older-seconds", "5", "--turn-seconds", "0.05"]


def test_the_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.demo", *BUDGET, "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = ["a tuner and a worker are up", "ONNX Runtime", "Tilewright, tuned", "all in"]
    said += ["mlp for this machine", "Numerics 'fast'", "largest difference", "KEEP=1"]
    for part in said:
        assert part in done.stdout
    older = older_target(host_target())
    assert (older is None) == (not (tmp_path / f"artifact-{older}").exists())
    graph = load_graph(models.build("mlp"))
    inputs = random_inputs(graph)
    for found, expected in zip(
        load_artifact(tmp_path / "artifact").run(inputs), run_graph(graph, inputs), strict=True
    ):
        # as the demo compares with ONNX Runtime: sums of at most a few thousand terms
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * scale)
