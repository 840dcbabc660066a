"""Facts of the machine that kernels run on: what a measurement says about where it was made.

Only the standard library is used, so that a device needs nothing else. Everything is read from the
operating system at the time of the call; what it does not say is empty or 0.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache as the first core sees it: `kind` is data, instruction or unified."""

    level: int
    kind: str
    bytes: int
    ways: int
    line_bytes: int
    shared_by: int


@dataclass(frozen=True, slots=True)
class Device:
    """A machine: `cores` are the logical ones that this process may run on."""

    model: str
    architecture: str
    system: str
    cores: int
    physical_cores: int
    memory_bytes: int
    governor: str
    caches: tuple[Cache, ...]

    def cache_bytes(self, level: int) -> int:
        """Size of the data cache of a level, 0 if there is none."""
        sizes = (c.bytes for c in self.caches if c.level == level and c.kind != "instruction")
        return next(sizes, 0)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form that `from_json` reads back to an equal value."""
        return {**asdict(self), "caches": [asdict(cache) for cache in self.caches]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Device:
        """Read what `to_json` wrote; raises TypeError or KeyError for anything else."""
        return cls(**{**data, "caches": tuple(Cache(**cache) for cache in data["caches"])})


def find_device(root: Path = Path("/")) -> Device:
    """The facts of this machine.

    Args:
        root: the folder that holds `proc` and `sys`.
    """
    processors = _processors(root)
    cpu = root / "sys/devices/system/cpu/cpu0"
    return Device(
        model=_model(root, processors),
        architecture=platform.machine(),
        system=platform.system(),
        cores=_available_cores(),
        physical_cores=_physical_cores(processors),
        memory_bytes=_memory_bytes(root),
        governor=_read(cpu / "cpufreq/scaling_governor"),
        caches=tuple(filter(None, map(_cache, sorted((cpu / "cache").glob("index*"))))),
    )


def _processors(root: Path) -> list[dict[str, str]]:
    """The paragraphs of /proc/cpuinfo that describe a processor."""
    paragraphs = _read(root / "proc/cpuinfo").split("\n\n")
    fields = [
        {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in p.splitlines())}
        for p in paragraphs
    ]
    return [f for f in fields if "processor" in f]


def _model(root: Path, processors: list[dict[str, str]]) -> str:
    """The name on the box: x86 says it in cpuinfo, boards with Arm cores in the device tree."""
    first = processors[0] if processors else {}
    if "model name" in first:
        return first["model name"]
    board = _read(root / "sys/firmware/devicetree/base/model").strip("\0")
    if "CPU part" in first:
        part = f"implementer {first.get('CPU implementer', '?')} part {first['CPU part']}"
        return f"{board} ({part})" if board else part
    return board or first.get("uarch", "") or platform.processor()


def _available_cores() -> int:
    """Logical cores that the scheduler may give to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _physical_cores(processors: list[dict[str, str]]) -> int:
    """Cores without their hyper-threads, as far as cpuinfo tells them apart."""
    cores = {
        (p["physical id"], p["core id"]) for p in processors if {"physical id", "core id"} <= {*p}
    }
    return len(cores) or len(processors) or os.cpu_count() or 1


def _memory_bytes(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _cache(folder: Path) -> Cache | None:
    """A cache from its folder in /sys, None if its size is unknown."""
    size = _read(folder / "size")
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    if not size[:-1].isdecimal() or size[-1] not in units:
        return None
    return Cache(
        level=_integer(folder / "level"),
        kind=_read(folder / "type").lower(),
        bytes=int(size[:-1]) * units[size[-1]],
        ways=_integer(folder / "ways_of_associativity"),
        line_bytes=_integer(folder / "coherency_line_size"),
        shared_by=_listed(_read(folder / "shared_cpu_list")),
    )


def _listed(ranges: str) -> int:
    """How many numbers a list like `0-3,8` holds."""
    count = 0
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _integer(path: Path) -> int:
    text = _read(path)
    return int(text) if text.isdecimal() else 0


def _read(path: Path) -> str:
    """The text of a file, empty if it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
