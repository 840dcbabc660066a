"""Selection of the harness for a device: from the package, or compiled on first use.

The C compiler installed on this machine builds the harness for this machine's architecture. zig
(`pip install ziglang`) builds it for every architecture, without a sysroot.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.targets.families import families, family_of
from tilewright.tuner.measure.harness.binary import (
    FOLDER,
    OPTIMISED,
    STATIC,
    build,
    found_compiler,
    harness_path,
)

PACKAGED = FOLDER
"""The folder of the harnesses that are part of the package."""

TARGETS = tuple(family.name for family in families() if not family.modules)
"""Names of the architectures for which a harness can be built."""


def zig_compiler(target: str, library: str = "musl") -> list[str]:
    """Return a command that compiles C with zig for a target: an architecture such as `aarch64`.

    `library` is the C library. With `musl`, binaries are static and run on every Linux and on
    Android. `gnu` is the library of most distributions.
    """
    family = family_of(target)
    assert family is not None
    name = (family.c_target or f"{family.name}-linux-{{library}}").format(library=library)
    processor = [f"-mcpu={family.c_processor}"] if family.c_processor else []
    return [sys.executable, "-m", "ziglang", "cc", "-target", name, *processor]


class HarnessError(CompilerError):
    """Raised if no harness is available for a device; the message has the reason and a remedy."""


def harness(target: str, folder: Path) -> Path:
    """Return the path of an executable harness for a target: an architecture such as `aarch64`.

    If `folder` has such a harness, it is used; otherwise, the package's. If the package's file is
    not executable, it is copied into `folder`. If the package has no harness for the target, one is
    compiled into `folder`. This takes seconds with the compiler of this machine, and a minute with
    zig.

    Raises:
        HarnessError: if no compiler can build the harness, or the folder cannot be written.
    """
    path = harness_path(target, folder)
    if path.exists():
        return path
    packaged = _packaged(target)
    if packaged is not None and os.access(packaged, os.X_OK):
        return packaged
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if packaged is not None:
            shutil.copyfile(packaged, made)
            made.chmod(0o755)
        else:
            _build_with_any(target, made)
        made.replace(path)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise HarnessError(f"the harness for {target} cannot be written: {error}") from error
    return path


def _packaged(target: str) -> Path | None:
    """Return the path of the package's harness for a target; None if the package has none.

    The file name contains the target or, if the harness was built when the package was installed,
    the operating system's name of the architecture, such as `arm64` for `aarch64`.
    """
    family = family_of(target)
    assert family is not None
    paths = (harness_path(name, PACKAGED) for name in (family.name, *family.machines))
    return next((path for path in paths if path.exists()), None)


def local_harness(folder: Path) -> Path:
    """Return the path of the harness for this machine (see `harness`).

    Raises:
        HarnessError: if this system is not Linux, if no compiler can build the harness, or if the
            folder cannot be written.
    """
    family = family_of(platform.machine())
    if sys.platform != "linux" or family is None or family.name not in TARGETS:
        raise HarnessError(
            "kernels are measured on Linux alone: tune there, or let a worker reach such a "
            "machine (tilewright-worker --via); models compile and run here without that"
        )
    return harness(family.name, folder)


def harness_folder(environment: Mapping[str, str], other: Path | None = None) -> Path:
    """Return the folder for compiled harnesses, and create it if necessary.

    It is `tilewright/harness` in `$XDG_CACHE_HOME`, by default in ~/.cache.

    Args:
        environment: the environment variables.
        other: the folder to use instead if this user cannot write to the first one.

    Raises:
        HarnessError: if the user cannot write to either folder.
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
    """Compile a harness for a target with the first compiler that succeeds.

    Raises:
        HarnessError: if every compiler fails, or if this machine has no compiler.
    """
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
    """Yield compiler commands that may build a harness for `target`, in the order to try them.

    Faster compilers come first. Dynamic linking is the last resort.
    """
    compiler = found_compiler() if _is_own(target) else None
    if compiler is not None:
        yield [compiler, *STATIC]
    if _has_zig():
        yield [*zig_compiler(target), *STATIC]
    if compiler is not None:  # the C library of some distributions has no static form
        yield [compiler, *OPTIMISED]


def _is_own(target: str) -> bool:
    """Whether the compiler installed on this machine generates code for `target`.

    It does if this machine runs Linux and has the same architecture.
    """
    return sys.platform == "linux" and family_of(platform.machine()) is family_of(target)


def _has_zig() -> bool:
    return importlib.util.find_spec("ziglang") is not None
