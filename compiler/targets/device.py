"""Facts about the machine that runs kernels (`DeviceFacts`), read without LLVM.

Only the standard library is used, so that a device needs no other package. All facts are read from
the operating system at the time of the call; unknown ones are empty or 0.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from tilewright.compiler.errors import InvalidFactsError
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import Between, JsonForm, Length, Via
from tilewright.compiler.targets.core_kinds import (
    Processor,
    find_kinds,
    read_integer,
    read_processors,
    read_text,
)
from tilewright.compiler.targets.families import family_of

_Number = Annotated[int, Between(0, 1 << 62)]
_Text = Annotated[str, Length(0, 500)]
_Few = Length(0, 2000)
"""Limits of the facts that a device reports: numbers (`_Number`), characters of a text (`_Text`),
and the number of features or caches (`_Few`)."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of a core.

    Attributes:
        level: 1 for the first level, and so on.
        kind: `data`, `instruction` or `unified`.
        bytes: size of the cache.
        ways: associativity.
        line_bytes: size of a cache line.
        shared_by: number of logical cores that share the cache.
    """

    level: _Number
    kind: _Text
    bytes: _Number
    ways: _Number
    line_bytes: _Number
    shared_by: _Number


@dataclass(frozen=True, slots=True)
class DeviceFacts(JsonValue):
    """Facts about a machine that runs kernels.

    If its cores differ, `processor`, `caches`, `governor` and `core` describe the fastest kind.

    Attributes:
        model: a readable name of the CPU or the board.
        architecture: the operating system's name of the CPU architecture (`x86_64`, `aarch64`,
            `AMD64`).
        system: the operating system, such as `Linux` or `Darwin`.
        cores: number of logical cores that this process may run on.
        physical_cores: number of physical cores of the machine.
        memory_bytes: size of main memory.
        governor: the clock governor of the core, such as `performance`.
        caches: the caches of one core.
        processor: identifier of the core as the CPU reports it: vendor, family, model and stepping
            (`GenuineIntel-6-85-4`), implementer and part (`0x41-0xd0c`), or microarchitecture,
            vendor and number (`sifive,u74-mc 0x489-0x8000000000000007`).
        features: instruction-set features that all cores have, sorted, by the operating system's
            names: `flags`, `Features` or the parts of the `isa` line of /proc/cpuinfo.
        microcode: revision of the microcode, if the CPU has one (`0xa101148`).
        core: the cores that run kernels, with their highest clock in GHz (`cortex-a76@2.4`); empty
            if unknown.
        vector_bits: length of scalable vector registers in bits (SVE, RISC-V's V); 0 without such
            registers, or if the operating system does not report it.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        "device facts",
        InvalidFactsError,
        sparse=("features",),
        optional=("processor", "microcode", "core", "vector_bits"),
    )

    model: _Text
    architecture: _Text
    system: _Text
    cores: _Number
    physical_cores: _Number
    memory_bytes: _Number
    governor: _Text
    caches: Annotated[tuple[Cache, ...], _Few]
    processor: _Text = ""
    features: Annotated[
        tuple[str, ...],
        Via(Annotated[tuple[_Text, ...], _Few], lambda found, _: tuple(sorted(set(found))), tuple),
    ] = ()
    microcode: _Text = ""
    core: _Text = ""
    vector_bits: _Number = 0

    def cache(self, level: int) -> Cache | None:
        """Return the data cache of a level; None if the level is missing or unknown."""
        found = (c for c in self.caches if c.level == level and c.kind != "instruction")
        return next(found, None)

    def cache_bytes(self, level: int) -> int:
        """Return the size of the data cache of a level; 0 if the level is missing or unknown."""
        found = self.cache(level)
        return found.bytes if found else 0

    def brief(self) -> DeviceFacts:
        """Return a copy of the facts without the list of features.

        The copy is stored with every measurement.
        """
        return replace(self, features=())


def find_device(root: Path = Path("/"), cores: Collection[int] | None = None) -> DeviceFacts:
    """Return the properties of this machine, or of some of its cores.

    Some CPU features, such as AMX, need the operating system's permission. `DeviceFacts.features`
    excludes those that the system denies. `DeviceFacts.core` is empty; `detection.named_device`
    sets it.

    Args:
        root: the folder that contains `proc` and `sys`.
        cores: numbers of the cores that code will run on; None for all that this process may use.
    """
    processors = read_processors(root)
    usable = available_cores() if cores is None else {*cores}
    kinds = find_kinds(root, processors, usable)
    number = kinds[0].cores[0] if kinds else 0
    lead = processors.get(number, {})
    known = [p for n, p in processors.items() if cores is None or n in usable]
    cpu = root / f"sys/devices/system/cpu/cpu{number}"
    return DeviceFacts(
        model=_model(root, lead),
        architecture=platform.machine(),
        system=platform.system(),
        cores=len(usable),
        physical_cores=_physical_cores(known),
        memory_bytes=_memory_bytes(root),
        governor=read_text(cpu / "cpufreq/scaling_governor"),
        caches=tuple(filter(None, map(_cache, sorted((cpu / "cache").glob("index*"))))),
        processor=kinds[0].processor if kinds else "",
        features=_granted(_features(known)),
        microcode=lead.get("microcode", ""),
        vector_bits=8 * read_integer(root / "proc/sys/abi/sve_default_vector_length"),
    )


def available_cores() -> set[int]:
    """Return the logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _granted(features: tuple[str, ...]) -> tuple[str, ...]:
    family = family_of(platform.machine())
    if family is None:
        return features
    known = {theirs: ours for ours, theirs in family.linux_features.items()}
    refused = family.refused({known[name] for name in features if name in known})
    return tuple(name for name in features if known.get(name) not in refused)


def _features(processors: Sequence[Processor]) -> tuple[str, ...]:
    """Return the features that all processors have, by Linux's names."""
    found: set[str] | None = None
    for processor in processors:
        names = set(processor.get("flags", processor.get("features", "")).split())
        letters, *extensions = processor.get("isa", "").lower().split("_")
        names.update(letters.removeprefix("rv64").removeprefix("rv32"), filter(None, extensions))
        found = names if found is None else found & names
    return tuple(sorted(found or ()))


def _model(root: Path, processor: Processor) -> str:
    """Return the product name: from cpuinfo on x86, from the device tree on boards with Arm
    cores."""
    if "model name" in processor:
        return processor["model name"]
    board = read_text(root / "sys/firmware/devicetree/base/model").strip("\0")
    if "cpu part" in processor:
        part = f"implementer {processor.get('cpu implementer', '?')} part {processor['cpu part']}"
        return f"{board} ({part})" if board else part
    return board or processor.get("uarch", "") or platform.processor()


def _physical_cores(processors: Sequence[Processor]) -> int:
    """Count physical cores, without hyper-threads.

    If cpuinfo does not distinguish them, logical cores are counted.
    """
    cores = {
        (p["physical id"], p["core id"]) for p in processors if {"physical id", "core id"} <= {*p}
    }
    return len(cores) or len(processors) or os.cpu_count() or 1


def _memory_bytes(root: Path) -> int:
    for line in read_text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _cache(folder: Path) -> Cache | None:
    """Read a cache from its folder in /sys; return None if its size is unknown."""
    size = read_text(folder / "size")
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    if not size[:-1].isdecimal() or size[-1] not in units:
        return None
    return Cache(
        level=read_integer(folder / "level"),
        kind=read_text(folder / "type").lower(),
        bytes=int(size[:-1]) * units[size[-1]],
        ways=read_integer(folder / "ways_of_associativity"),
        line_bytes=read_integer(folder / "coherency_line_size"),
        shared_by=_listed(read_text(folder / "shared_cpu_list")),
    )


def _listed(ranges: str) -> int:
    """Return the number of elements in a list such as `0-3,8`."""
    count = 0
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
