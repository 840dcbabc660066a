"""Every example runs. The demo has a test of its own: tests/acceptance/test_demo.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("demo", "generate", "__init__")
"""Those that are run as modules, in tests of their own."""
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if not p.name.startswith(MODULES))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_onnx_runtime_generates_the_same_text(model: str) -> None:
    command = ["-m", "examples.generate", "--model", model, "--small", "--tokens", "12"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    texts = dict(re.findall(r"^(.+): ((?:\d+ ?)+)$", done.stdout, re.MULTILINE))
    assert texts["greedy"] == texts["ONNX Runtime, greedy"]
    assert all(len(text.split()) == 12 for text in texts.values())
    assert texts["drawn"] != texts["greedy"]
    assert done.stdout.count(" tokens a second\n") == 3
