"""What a worker tells of its device, found without LLVM: it goes into every measurement."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")
_CPU = Path("/sys/devices/system/cpu/cpu0")


def device_facts() -> dict[str, Any]:
    """Architecture, operating system, CPU model, flags, cores, caches (bytes) and governor.

    A fact that this system does not tell is missing.
    """
    cpuinfo = _cpuinfo()
    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "cpu_model": cpuinfo.get("model name") or platform.processor(),
        "cpu_flags": sorted((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split()),
        "caches": _caches(),
        "governor": _read(_CPU / "cpufreq" / "scaling_governor"),
    }
    return {name: value for name, value in facts.items() if value not in (None, "", [], {})}


def _cpuinfo() -> dict[str, str]:
    """The first processor's entries."""
    found: dict[str, str] = {}
    for line in (_read(_CPUINFO) or "").split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    return found


def _caches() -> dict[str, int]:
    """Bytes by name: L1d, L2, L3 of the first core."""
    found = {}
    for index in sorted((_CPU / "cache").glob("index*")):
        kind, level, size = (_read(index / name) for name in ("type", "level", "size"))
        if kind in ("Data", "Unified") and size and size.endswith("K") and size[:-1].isdecimal():
            found[f"L{level}{'d' if kind == 'Data' else ''}"] = int(size[:-1]) << 10
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
