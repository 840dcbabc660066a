"""The harness in C for an emulated machine.

Here it is linked with the C library of the emulated system, because zig takes minutes to compile
its own for a static one; the rest is the same.
"""

from __future__ import annotations

from pathlib import Path

from tests.devices.emulators import zig_environment
from tilewright.tuner.measure.harness.binary import build, harness_path
from tilewright.tuner.measure.harness.build import zig_compiler
from tilewright.tuner.measure.harness.command import target_of


def put_harness(architecture: str, folder: Path) -> str:
    """Compile it to where an agent looks for it; the name of its target.

    Raises:
        UnavailableError: if the compiler is not to be had.
    """
    target = target_of(architecture)
    environment = zig_environment()
    folder.mkdir(parents=True, exist_ok=True)
    path = harness_path(target, folder)
    build([*zig_compiler(target, "gnu"), "-O1"], path, environment)
    return target
