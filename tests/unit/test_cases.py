"""`make fuzz` runs the requested examples, and examples that it found and kept no longer fail."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import CASES

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not any(CASES.glob("*/*")), reason="no case is kept")
def test_cases() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "hypothesis", "--hypothesis-profile=cases", str(ROOT / "tests")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]


def fuzzed(*arguments: str) -> set[str]:
    """The files of which `make fuzz ARGS=...` runs tests."""
    make = ["make", "-n", "-o", ".venv/stamps/test", "fuzz", "JOBS=0"]
    make += ["--no-print-directory", f"ARGS={' '.join(arguments)}"]
    shown = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = set()
    for line in shown.replace("\\\n", " ").splitlines():
        command = [sys.executable, *shlex.split(line)[1:], "--co", "-p", "no:cacheprovider"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found |= {test.split("::")[0] for test in listed.stdout.splitlines() if "::" in test}
    return found


def test_fuzzing_is_narrowed_to_paths() -> None:
    properties = "tests/unit/loops/test_text.py"
    maths = "tests/unit/loops/test_maths.py"
    graphs = "tests/differential/test_graphs.py"
    arguments = ("tests/unit/loops", graphs, "--graphs", "3")
    assert fuzzed(*arguments) == {properties, maths, graphs}
