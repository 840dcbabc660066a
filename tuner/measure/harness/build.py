"""The harness as one static binary.

It is C11: the sources of this folder and the C runtime, compiled by zig (`pip install ziglang`),
which needs no system root, or for this machine by its own compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.runtime.native_build import SOURCES
from tilewright.compiler.targets.families import families, family_of

FOLDER = Path(__file__).parent
OPTIMISED = ("-O2", "-s")
STATIC = (*OPTIMISED, "-static")
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
        FileNotFoundError: if no compiler is found.
    """
    found = _found_compiler()
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


class HarnessError(CompilerError):
    """No harness is available for a device; the message states the reason and a remedy."""


def harness_path(target: str, folder: Path) -> Path:
    """Where the harness of this release lies in a folder, once it is made."""
    text = hashlib.sha256()
    for source in [*sorted(FOLDER.glob("*.[ch]")), *SOURCES]:
        text.update(source.read_bytes())
    return folder / f"harness-{target}-{text.hexdigest()[:16]}"


def harness(target: str, folder: Path) -> Path:
    """The harness for one of TARGETS: the package's, or one that is kept in a folder.

    An installer may drop the right to execute a file: a packaged harness is then copied. Without
    one, a compiler builds the harness at its first use.
    This machine's compiler takes seconds to build one for its own architecture, zig a minute.

    Raises:
        HarnessError: if no compiler can build it, or the folder cannot be written.
    """
    path = harness_path(target, folder)
    packaged = harness_path(target, FOLDER)
    if os.access(packaged, os.X_OK):
        return packaged
    if path.exists():
        return path
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if packaged.exists():
            shutil.copyfile(packaged, made)
            made.chmod(0o755)
        else:
            _build_with_any(target, made)
        made.replace(path)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise HarnessError(f"the harness for {target} cannot be written: {error}") from error
    return path


def local_harness(folder: Path) -> Path:
    """The harness of this machine.

    Raises:
        HarnessError: as `harness` does, and on other systems than Linux.
    """
    family = family_of(platform.machine())
    if sys.platform != "linux" or family is None or family.name not in TARGETS:
        raise HarnessError(
            "kernels are measured on Linux alone: tune there, or let a worker reach such a "
            "machine (tilewright-worker --via); models compile and run here without that"
        )
    return harness(family.name, folder)


def harness_folder(environment: Mapping[str, str], other: Path | None = None) -> Path:
    """Where harnesses are kept: `tilewright/harness` in `$XDG_CACHE_HOME` or ~/.cache.

    Args:
        other: the folder to take if this user cannot write that one.

    Raises:
        HarnessError: if neither can be written.
    """
    base = environment.get("XDG_CACHE_HOME", "")
    caches = Path(base or os.path.expanduser("~/.cache"))
    for folder in filter(None, (caches / "tilewright" / "harness", other)):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    raise HarnessError(f"no harness can be kept in {caches}: set XDG_CACHE_HOME")


def _build_with_any(target: str, output: Path) -> None:
    """Build with the first compiler that can. Raises HarnessError."""
    commands = list(_commands(target))
    reason = ""
    for command in commands:
        try:
            build(command, output)
            return
        except OSError as error:
            reason = error.strerror or str(error)
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines() or [str(error)]
            reason = next((line for line in said if "error:" in line), said[-1])
    output.unlink(missing_ok=True)
    remedy = "pip install ziglang" if not _has_zig() else ""
    if not commands:
        own = "install gcc or clang, or " if _is_own(target) else ""
        raise HarnessError(
            f"kernels are measured by a C program, and no compiler for {target} is found: "
            f"{own}{remedy}"
        )
    more = f"; {remedy} brings a compiler with all that it needs" if remedy else ""
    raise HarnessError(f"the harness for {target} cannot be compiled: {reason}{more}")


def _commands(target: str) -> Iterator[list[str]]:
    """The compilers that may build a harness, the quickest first."""
    compiler = _found_compiler() if _is_own(target) else None
    if compiler is not None:
        yield [compiler, *STATIC]
    if _has_zig():
        yield [*zig_compiler(target), *STATIC]
    if compiler is not None:  # the C library of some distributions has no static form
        yield [compiler, *OPTIMISED]


def _is_own(target: str) -> bool:
    """Whether this machine's compiler builds for one of TARGETS."""
    return sys.platform == "linux" and family_of(platform.machine()) is family_of(target)


def _has_zig() -> bool:
    return importlib.util.find_spec("ziglang") is not None


def _found_compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
