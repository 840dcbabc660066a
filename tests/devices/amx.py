"""AMX in this process: by the CPU where it has it, else emulated (`amx_emulator.c`)."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.devices.packages import UnavailableError
from tests.kernels import guarded_calls
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

SOURCE = Path(__file__).parent / "amx_emulator.c"
FEATURES = ("+amx-bf16", "+amx-int8", "+amx-tile")


def amx_target() -> Target:
    """The host with AMX, whether it has it or not."""
    host = resolve_target("host")
    features = {f for f in host.features if f[1:] not in {name[1:] for name in FEATURES}}
    return replace(host, name="host-amx", features=tuple(sorted({*features, *FEATURES})))


def has_amx() -> bool:
    """Whether this CPU runs AMX instructions itself, so that the emulator neither sees nor counts
    them."""
    return "+amx-tile" in resolve_target("host").features


@cache
def _library() -> ctypes.CDLL:
    """The emulator, compiled once.

    Raises:
        UnavailableError: if this machine or its tools cannot.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise UnavailableError(f"AMX is emulated on x86-64, this is {platform.machine()}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "amx_emulator.so"
        command = ["cc", "-O2", "-std=c11", "-shared", "-fPIC", "-o", path, SOURCE]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UnavailableError(f"the emulator of AMX does not compile: {error}") from error
        library = ctypes.CDLL(str(path))
    library.amx_executed.restype = ctypes.c_int64
    return library


@contextmanager
def emulated_amx() -> Iterator[ctypes.CDLL]:
    """AMX instructions run inside, in every thread and in processes that fork from it.

    Raises:
        UnavailableError: if they cannot.
    """
    library = _library()
    guarded_calls()  # whose handler is then the one that instructions unknown here are left to
    if library.amx_start():
        raise UnavailableError("AMX is emulated with fused multiply-adds, which this CPU lacks")
    try:
        yield library
    finally:
        library.amx_stop()
