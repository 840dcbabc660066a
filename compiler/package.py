"""What this package knows of itself: its version, where it lies, and how to run its modules."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

IMPORT_ROOT = Path(__file__).absolute().parents[2]
"""The folder in which `import tilewright` finds the package: children need it on their path."""


def package_version() -> str:
    """As installed, for people; "(not installed)" for a bare source tree."""
    try:
        return version("tilewright")
    except PackageNotFoundError:
        return "(not installed)"


def run_module(module: str) -> list[str]:
    """The command that runs a module of this package, named without `tilewright.`.

    `-P`: a folder `numpy/` or `tilewright/` in which the user happens to be is not imported.
    """
    return [sys.executable, "-P", "-m", f"tilewright.{module}"]
