"""What a worker tells of its device, found without LLVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compiler.device import find_device

_CPUINFO = Path("/proc/cpuinfo")


def device_facts() -> dict[str, Any]:
    """The facts that go into every measurement: CPU model, cores, caches (bytes), governor, ..."""
    return find_device().to_json()


def cpu_flags(cpuinfo: Path = _CPUINFO) -> list[str]:
    """The first processor's features by the names that Linux has for them; empty elsewhere."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return sorted(value.split())
    return []


def registration_facts() -> dict[str, Any]:
    """The facts of the device and its features, from which the service finds its targets."""
    return {**device_facts(), "cpu_flags": cpu_flags()}
