"""What a command imports before it refuses its arguments: each library takes part of a second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = {"llvmlite", "numpy", "onnx", "onnxruntime", "rich", "scipy", "sqlalchemy", "xgboost"}

PROGRAM = """
import json, sys
from tilewright.service.cli import run
status = run(sys.argv[1:])
print(json.dumps([status, [name for name in sys.modules if "." not in name]]))
"""


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (["--version"], 0, ""),
        (["tune", "--help"], 0, ""),
        (["tune", "none.onnx"], 1, "error: no such file: 'none.onnx'\n"),
        (["run", "none.onnx"], 1, "error: no such file: 'none.onnx'\n"),
        (["job", "submit", "none.onnx"], 1, "error: no such file: 'none.onnx'\n"),
        (
            ["tune", "m.onnx", "--target", "znver9"],
            1,
            "did you mean 'znver5' or 'znver4' or 'znver3'?",
        ),
        (["compile", "m.onnx", "-o", "a", "--target", "znver9"], 1, "did you mean 'znver5'"),
        (["tune", "m.onnx", "-o", "."], 1, "exists and is not an artifact"),
    ],
)
def test_a_refusal_waits_for_no_library(
    given: list[str], status: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *given],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found, loaded = json.loads(done.stdout.splitlines()[-1])
    assert found == status and said in done.stderr
    # targets and artifacts need NumPy
    allowed = {"numpy"} if "m.onnx" in given else set()
    assert SLOW & set(loaded) <= allowed
