"""The worker in C for an emulated machine.

Here it is linked with the C library of the emulated system, because zig takes minutes to compile
its own for a static one; the rest is the same.
"""

from __future__ import annotations

from pathlib import Path

from deploy.static_worker import build, zig_compiler
from tests.devices.emulators import zig_environment

NAMES = {"aarch64": "aarch64", "armv7l": "armv7", "riscv64": "riscv64"}
"""What the worker's builder calls an architecture."""


def build_for(architecture: str, binary: Path) -> Path:
    """Compile it; where it lies.

    Raises:
        UnavailableError: if the compiler is not to be had.
    """
    environment = zig_environment()
    build([*zig_compiler(NAMES[architecture], "gnu"), "-O1"], binary, environment)
    return binary
