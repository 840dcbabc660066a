"""`make demo` with a small model and budget succeeds, and its artifact gives the expected
output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import models
from tests.graphs import random_inputs
from tilewright.compiler.driver import load_graph
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.compiler.targets.families import family_of
from tilewright.compiler.targets.host import host_target

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
BUDGET = ["--model", "mlp", "--trials", "6", "--seconds", "10", "--rounds", "1"]
BUDGET += ["--second-model", "mlp", "--second-seconds", "5", "--turn-seconds", "0.05"]


def test_the_demo(tmp_path: Path) -> None:
    family = family_of(host_target().triple.partition("-")[0])
    assert family is not None
    older = family.baselines[0]
    command = [sys.executable, "-m", "examples.demo", *BUDGET, "--folder", str(tmp_path)]
    command += ["--second-target", older]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = ["a tuner and a worker are up", "ONNX Runtime", "Tilewright, untuned", "all in"]
    said += ["mlp for this machine", f"mlp for {older}", "Numerics 'fast'", "largest difference"]
    for part in said:
        assert part in done.stdout
    assert "KEEP=1" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("  http://127.0.0.1:8080/dashboard/jobs/")
    assert (tmp_path / f"artifact-mlp-{older}").exists()
    graph = load_graph(models.build("mlp"))
    inputs = random_inputs(graph)
    for found, expected in zip(
        load_artifact(tmp_path / "artifact-mlp").run(inputs), run_graph(graph, inputs), strict=True
    ):
        # as the demo compares with ONNX Runtime: sums of at most a few thousand terms
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * scale)
