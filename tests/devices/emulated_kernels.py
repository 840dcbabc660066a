"""Kernels of another architecture or CPU, run under qemu-user by a Python without any package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.devices.emulators import emulator, sysroot, zig_environment
from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.targets.target import Target

Array = np.ndarray[Any, Any]

SECONDS = 120.0

RUN = """\
import ctypes, json, sys
PAGE, POISON = 4096, 0xFF
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def block(size):
    "Poisoned bytes that end, rounded up to a line, at a page that nobody may touch."
    lines = (size + 63) // 64 * 64
    inside = (lines + PAGE - 1) // PAGE * PAGE
    start = libc.mmap(None, inside + PAGE, 3, 0x22, -1, 0)
    assert libc.mprotect(start + inside, PAGE, 0) == 0
    ctypes.memset(start, POISON, inside)
    return start + inside - lines

library = ctypes.CDLL("./kernels.so")
for case in json.load(open("cases.json")):
    places = [block(size) for size in case["sizes"]]
    for name, place in zip(case["inputs"], places):
        data = open(name, "rb").read()
        ctypes.memmove(place, data, len(data))
    buffers = (ctypes.c_void_p * len(places))(*places)
    for symbol, extent in case["stages"]:
        function = getattr(library, symbol)
        function.restype = None
        function(
            buffers, ctypes.c_void_p(block(case["scratch"])), None,
            ctypes.c_int64(0), ctypes.c_int64(extent),
        )
    with open(case["output"], "wb") as file:
        file.write(ctypes.string_at(places[-1], case["sizes"][-1]))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A nest that writes its last buffer, and the others in their physical form."""

    nest: LoopNest
    target: Target
    inputs: tuple[Array, ...]


def run_cases(cases: Sequence[Case], cpu: str, folder: Path) -> list[Array]:
    """Outputs of the nests on an emulated CPU, in physical form; all nests are for one
    architecture.

    Raises:
        UnavailableError: if the emulator or a Python for it cannot be had here.
    """
    python = _python(cases[0].target.arch, cpu)
    described, objects = [], []
    for number, case in enumerate(cases):
        backend = backend_of(case.target)
        code = backend.lower(replace(case.nest, name=f"kernel{number}"), case.target)
        objects.append(f"{number}.o")
        (folder / objects[-1]).write_bytes(backend.compile(code.text, case.target))
        names = []
        for place, array in enumerate(case.inputs):
            names.append(f"{number}.{place}")
            (folder / names[-1]).write_bytes(np.ascontiguousarray(array).tobytes())
        described.append(
            {
                "sizes": [tensor.bytes for tensor in case.nest.buffers],
                "inputs": names,
                "stages": [(stage.symbol, stage.extent) for stage in code.stages],
                "scratch": code.scratch_bytes,
                "output": f"{number}.out",
            }
        )
    subprocess.run(
        [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "-o", "kernels.so", *objects],
        cwd=folder, env=zig_environment(), check=True, timeout=SECONDS,
    )  # fmt: skip
    (folder / "cases.json").write_text(json.dumps(described))
    done = subprocess.run(
        [*python, "-c", RUN],
        cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [
        np.frombuffer((folder / f"{number}.out").read_bytes(), case.nest.buffers[-1].dtype.numpy)
        for number, case in enumerate(cases)
    ]


def _python(architecture: str, cpu: str) -> list[str]:
    """The command of a Python on a CPU of qemu's; this process's own Python, if the CPU is the
    host's.

    Raises:
        UnavailableError: if the emulator or a Python for it cannot be had here.
    """
    emulated = [*emulator(architecture), "-cpu", cpu]
    if architecture == os.uname().machine:
        return [*emulated, sys.executable, "-I", "-S"]
    root = sysroot(architecture)
    libraries = f"{root}/usr/lib/{architecture}-linux-gnu"
    variables = ("-E", f"PYTHONHOME={root}/usr", "-E", f"LD_LIBRARY_PATH={libraries}")
    return [*emulated, "-L", str(root), *variables, f"{root}/usr/bin/python3"]
