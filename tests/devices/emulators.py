"""A machine under qemu-user: its Python, and the project's packages as it has them."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.wheels import LIBRARY, PLATFORMS, compile_runtime
from tests.devices.machines import Machine
from tests.devices.packages import UnavailableError, cached, debian, zig

SOURCE = Path(__file__).parents[2]
SYSROOTS = {
    "aarch64": ("arm64", "bookworm"),
    "armv7l": ("armhf", "bookworm"),
    "riscv64": ("riscv64", "trixie"),
}
"""Debian's name of an architecture, and the suite that its Python is from."""

PROGRAMS = {"armv7l": "arm"}
"""qemu's name of an architecture, where that is not `uname -m`."""

LIBRARIES = {"armv7l": "arm-linux-gnueabihf"}
"""Folders of libraries that are not ARCHITECTURE-linux-gnu."""

QEMU_SUITE = "bookworm"
"""Its qemu 7.2 imports NumPy in 3 s where version 10 takes 5."""


@dataclass(frozen=True, slots=True)
class Emulated:
    """A machine that runs programs.

    Attributes:
        python: the command that runs its Python.
        packages: the folder of the project's packages that it imports.
    """

    machine: Machine
    python: tuple[str, ...]
    packages: Path


def emulate(machine: Machine, folder: Path) -> Emulated:
    """Set a machine up in an empty folder.

    An x86-64 runs this process's own Python and packages; others have Debian's Python and a copy
    of the packages with a C runtime of their architecture.

    Raises:
        UnavailableError: if a part of it cannot be had here.
    """
    if os.uname().machine != "x86_64":
        raise UnavailableError("qemu is fetched for x86-64 alone")
    root = folder / "root"
    machine.write(root)
    python, packages = sys.executable, SOURCE
    if machine.architecture != os.uname().machine:
        for part in sysroot(machine.architecture).iterdir():
            (root / part.name).symlink_to(part)
        python, packages = str(root / "usr/bin/python3"), folder / "packages"
        copy_packages(machine.architecture, packages)
    qemu = emulator(machine.architecture)
    return Emulated(machine, (*qemu, "-cpu", machine.cpu, "-L", str(root), python), packages)


def emulator(architecture: str) -> tuple[str, ...]:
    """The command of qemu for programs of an architecture: the installed one, or Debian's.

    Debian's is started by the loader that comes with it, for it uses libraries that this machine
    may not have. The loader is not set in the environment, since programs under it would inherit
    it.

    Raises:
        UnavailableError: if no emulator is found.
    """
    name = f"qemu-{PROGRAMS.get(architecture, architecture)}"
    installed = shutil.which(name) or shutil.which(f"{name}-static")
    if installed is not None:
        return (installed,)
    root = debian("amd64", QEMU_SUITE, ["qemu-user"])
    libraries = f"{root}/usr/lib/x86_64-linux-gnu"
    loader = f"{root}/lib64/ld-linux-x86-64.so.2"
    return (loader, "--library-path", libraries, f"{root}/usr/bin/{name}")


def sysroot(architecture: str) -> Path:
    """A root with Python and NumPy of an architecture, 23 MB to fetch.

    Raises:
        UnavailableError: if it is not to be had.
    """
    name, suite = SYSROOTS[architecture]
    root = debian(name, suite, ["python3-numpy", "python3", "libc6", "libstdc++6"])
    # the effect of an installation: the libraries that NumPy is linked with lie a folder deeper
    folder = root / "usr/lib" / LIBRARIES.get(architecture, f"{architecture}-linux-gnu")
    for library in ("blas/libblas.so.3", "lapack/liblapack.so.3"):
        link = folder / Path(library).name
        if not link.is_symlink():
            link.symlink_to(library)
    return root


def copy_packages(architecture: str, folder: Path) -> None:
    """Copy a device's imports, with the C runtime of its architecture.

    Raises:
        UnavailableError: if the compiler is not to be had.
    """
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "db")
    shutil.copytree(SOURCE / "tilewright", folder / "tilewright", ignore=ignore)
    (platform,) = (p for p in PLATFORMS if p.tags[0].endswith(architecture) and "gnu" in p.zig)
    compile_runtime(platform, folder / LIBRARY, zig_environment())


def zig_environment() -> dict[str, str]:
    """This environment, with zig importable and its caches next to it."""
    paths = [str(SOURCE), str(zig()), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    caches = cached("zig-cache", lambda folder: None)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "ZIG_GLOBAL_CACHE_DIR": str(caches / "global"),
        "ZIG_LOCAL_CACHE_DIR": str(caches / "local"),
    }
