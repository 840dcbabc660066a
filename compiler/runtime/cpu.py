"""What this processor can run, found without LLVM."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

# LLVM's names of features that decide which vector instructions are in the code -> the names in
# Linux' /proc/cpuinfo. Features that are not here cannot be told, or do not change kernels.
_X86 = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "popcnt": "popcnt",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avxvnni": "avx_vnni",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}
_ARM = {
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "fp16fml": "asimdfhm",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}
_KNOWN = {"x86_64": _X86, "aarch64": _ARM}
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def architecture() -> str:
    """The processor's architecture as it stands first in LLVM's triples: `x86_64`, `aarch64`."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)


def missing_features(wanted: Iterable[str]) -> tuple[str, ...]:
    """Features in LLVM's notation ("+avx2", "-gfni") that are asked for and that are not here.

    Features that cannot be told on this system count as present.
    """
    names = _KNOWN.get(architecture(), {})
    flags = _flags()
    if not flags:
        return ()
    asked = [feature[1:] for feature in wanted if feature.startswith("+")]
    return tuple(name for name in asked if name in names and names[name] not in flags)


@cache
def _flags() -> frozenset[str]:
    """Feature names of the first processor in /proc/cpuinfo; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()
