"""The harness as one static binary: its sources, its name, and its compilation.

The sources are C11: those of this folder and the C runtime. setup.py imports this module where no
package is installed, so that it needs the standard library alone.
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
"""Options of a harness that runs on every Linux."""

FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-pthread")


def found_compiler() -> str | None:
    """The path of this machine's C compiler; None if it has none."""
    return next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)


def host_compiler() -> list[str]:
    """The command of this machine's compiler, whose binaries need its libraries.

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
    """Compile the harness.

    Args:
        compiler: its command, with options.
        environment: in which it runs; None: this process's.

    Raises:
        CalledProcessError: if the compiler fails; `stderr` has its messages.
    """
    sources = [*sorted(FOLDER.glob("*.c")), *SOURCES]
    command = [*compiler, *FLAGS, *map(str, sources), "-lm", "-o", str(output)]
    subprocess.run(command, env=environment, check=True, stderr=subprocess.PIPE)


def harness_path(machine: str, folder: Path) -> Path:
    """The path of the harness of this release in a folder.

    Args:
        machine: the architecture, by the name of its family or an operating system's name.
    """
    text = hashlib.sha256()
    for parent in (FOLDER, SOURCES[0].parent):
        for source in sorted(parent.glob("*.[ch]")):
            text.update(source.read_bytes())
    return folder / f"harness-{machine}-{text.hexdigest()[:16]}"


def build_into_package(folder: Path) -> Path:
    """Compile the harness of this machine into the folder of a package, unless it is there.
    Harnesses of earlier sources are deleted.

    It is static, since `--via` copies a package's harness to other devices. Where the C library has
    no static form, none is packaged.

    Raises:
        OSError: if no compiler is found, or the folder cannot be written.
        CalledProcessError: if the compiler fails; `stderr` has its messages.
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
