"""Compilation of the C runtime on a device, if the package has no library for its architecture.

Wheels for common architectures contain the library. The platform-independent wheel contains only
its sources, which the system's C compiler compiles once. The result is stored in the package's
folder, because sandboxed processes can read it there.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCES = sorted((Path(__file__).parent / "native").glob("*.c"))
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-shared")
"""Compiler flags for the C runtime. setup.py has the same flags; setuptools adds those that every
shared library needs."""

SECONDS = 300.0
"""Time limit in seconds for compiling the C runtime, for slow boards."""


def build_native(path: Path) -> None:
    """Compile the C runtime to a temporary file, and rename it to `path`.

    Raises:
        ImportError: if the C compiler, the sources or the permission to write is missing, or the
            compilation fails.
    """
    if not SOURCES:
        raise ImportError(f"the C runtime is not built, and {path.parent} holds no sources of it")
    if not os.access(path.parent, os.W_OK):
        raise ImportError(
            f"the C runtime is not built, and {path.parent} cannot be written: install the package "
            "where this user may, or run it once as the user who may"
        )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        done = subprocess.run(
            [*_compiler(), *FLAGS, *map(str, SOURCES), "-o", str(temporary)],
            capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            reason = next((line for line in said if "error" in line), "".join(said[:1]))
            raise ImportError(f"the C runtime does not compile: {reason}")
        temporary.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImportError(f"the C runtime does not compile: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _compiler() -> Sequence[str]:
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found is not None:
        return (found,)
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    raise ImportError(
        "the C runtime is not built for this machine, and there is no C compiler to do so: "
        "apt install gcc, or pip install ziglang"
    )
