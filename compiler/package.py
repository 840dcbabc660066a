"""The installed package: its version, its location, and commands that run its modules."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

IMPORT_ROOT = Path(__file__).absolute().parents[2]
"""The folder that child processes need on their path to execute `import tilewright`."""


def package_version() -> str:
    """Return the version of the installed package for display.

    In a source tree that is not installed, the result is "(not installed)".
    """
    try:
        return version("tilewright")
    except PackageNotFoundError:
        return "(not installed)"


def run_module(module: str) -> list[str]:
    """Return the command line that runs a module of this package with this Python interpreter.

    `module` is the module's name without the prefix `tilewright.`. The option `-P` prevents Python
    from importing a folder `numpy/` or `tilewright/` in the current directory.
    """
    return [sys.executable, "-P", "-m", f"tilewright.{module}"]
