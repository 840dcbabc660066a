"""Examples that `make fuzz` found and kept no longer fail."""

from __future__ import annotations

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
