"""Compilation of the harness to a binary, and the binary's file name.

The sources are the C11 files in this folder and the C runtime. setup.py imports this module before
the package is installed, so it needs only the standard library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.compiler.runtime.native_build import SOURCES

FOLDER = Path(__file__).parent
OPTIMISED = ("-O2", "-s")
STATIC = (*OPTIMISED, "-static")
"""Compiler options for a harness that runs on every Linux system."""

FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-pthread")


def found_compiler() -> str | None:
    """Return the path of the C compiler installed on this machine; None if there is none."""
    return next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)


def host_compiler() -> list[str]:
    """Return the command of the C compiler installed on this machine, as a list of words.

    Raises:
        FileNotFoundError: if no compiler is found.
    """
    found = found_compiler()
    if found is None:
        raise FileNotFoundError("there is no C compiler: pip install ziglang")
    return [found]


def build(
    compiler: Sequence[str], output: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Compile the harness to a binary.

    Args:
        compiler: the compiler's command, with options.
        output: the path of the binary.
        environment: the environment variables for the compiler; None for those of this process.

    Raises:
        CalledProcessError: if the compiler fails; the attribute `stderr` has its messages.
    """
    sources = [*sorted(FOLDER.glob("*.c")), *SOURCES]
    command = [*compiler, *FLAGS, *map(str, sources), "-lm", "-o", str(output)]
    subprocess.run(command, env=environment, check=True, stderr=subprocess.PIPE)


def harness_path(machine: str, folder: Path) -> Path:
    """Return the path that this release's harness has in a folder, whether or not it exists.

    The file name contains a digest of the sources, so different versions have different names.

    Args:
        machine: the name of the architecture, as a target or as an operating system spells it, such
            as `aarch64` or `arm64`.
        folder: the folder of harnesses.
    """
    text = hashlib.sha256()
    for parent in (FOLDER, SOURCES[0].parent):
        for source in sorted(parent.glob("*.[ch]")):
            text.update(source.read_bytes())
    return folder / f"harness-{machine}-{text.hexdigest()[:16]}"


def build_into_package(folder: Path) -> Path:
    """Compile a static harness for this machine into a package's folder, unless it exists there.

    The harness is linked statically because the option `--via` copies it to other devices.
    Harnesses of other versions are deleted from the folder. Return the path of the harness.

    Raises:
        OSError: if no compiler is found, or the folder cannot be written.
        CalledProcessError: if the compiler fails, for example because there is no static C library;
            the attribute `stderr` has its messages.
    """
    path = harness_path(platform.machine().lower(), folder)
    for other in folder.glob("harness-*"):
        if other != path:
            other.unlink()
    if path.exists():
        return path
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        build([*host_compiler(), *STATIC], made)
        return made.replace(path)
    finally:
        made.unlink(missing_ok=True)
