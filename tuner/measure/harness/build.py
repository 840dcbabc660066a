"""The harness as one static binary.

It is C11: the sources of this folder and the C runtime, compiled by zig (`pip install ziglang`),
which needs no system root, or for this machine by its own compiler.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.compiler.runtime.native_build import SOURCES
from tilewright.compiler.targets.families import families, family_of

FOLDER = Path(__file__).parent
STATIC = ("-O2", "-static", "-s")
"""Options of a harness that runs on every Linux."""

FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-pthread")

TARGETS = tuple(family.name for family in families() if not family.modules)
"""The kinds of devices, by the names of their architectures."""


def zig_compiler(target: str, library: str = "musl") -> list[str]:
    """The command that compiles for one of TARGETS, wherever this is.

    musl goes into a static binary, which runs on every Linux, Android's too; `gnu` is the library
    of usual systems.
    """
    family = family_of(target)
    assert family is not None
    name = (family.c_target or f"{family.name}-linux-{{library}}").format(library=library)
    processor = [f"-mcpu={family.c_processor}"] if family.c_processor else []
    return [sys.executable, "-m", "ziglang", "cc", "-target", name, *processor]


def host_compiler() -> list[str]:
    """The command of this machine's compiler, whose binaries need its libraries.

    Raises:
        FileNotFoundError: if there is none.
    """
    found = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
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
        CalledProcessError: if it refuses.
    """
    sources = [*sorted(FOLDER.glob("*.c")), *SOURCES]
    command = [*compiler, *FLAGS, *map(str, sources), "-lm", "-o", str(output)]
    subprocess.run(command, env=environment, check=True)


class HarnessError(Exception):
    """No harness can be made for a device; a sentence says why, and what to do."""


def harness_path(target: str, folder: Path) -> Path:
    """Where the harness of this release lies in a folder, once it is made."""
    text = hashlib.sha256()
    for source in [*sorted(FOLDER.glob("*.[ch]")), *SOURCES]:
        text.update(source.read_bytes())
    return folder / f"harness-{target}-{text.hexdigest()[:16]}"


def harness(target: str, folder: Path) -> Path:
    """The harness for one of TARGETS, kept in a folder: the wheel's, or made at its first use.

    Raises:
        HarnessError: if no compiler can make it.
    """
    path = harness_path(target, folder)
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):  # only wheels have them
        shutil.copyfile(harness_path(target, FOLDER), made)
        made.chmod(0o755)
        made.replace(path)
        return path
    if importlib.util.find_spec("ziglang") is not None:
        compiler = zig_compiler(target)
    elif family_of(platform.machine()) is family_of(target) and sys.platform == "linux":
        compiler = _host_compiler()
    else:
        raise HarnessError(f"for a device of {target} zig is needed: pip install ziglang")
    try:
        build([*compiler, *STATIC], made)
    except (OSError, subprocess.CalledProcessError) as error:
        made.unlink(missing_ok=True)
        raise HarnessError(f"the harness for {target} cannot be compiled: {error}") from error
    made.replace(path)
    return path


def _host_compiler() -> list[str]:
    try:
        return host_compiler()
    except FileNotFoundError as error:
        raise HarnessError(str(error)) from error
