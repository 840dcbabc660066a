"""Core kinds: the sets of equal cores of a machine, such as the fast and the slow ones of a phone.

Only the standard library is used. The operating system's information may be missing or wrong. If it
lacks the speed of any core, cores are distinguished only by their identifiers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ALIKE = 15 / 16
"""Minimum capacity of a core, as a fraction of the strongest core's, for which the two cores of a
processor count as equal. The favoured cores of a desktop differ by less, and the kinds of cores of
a phone by more."""

_LONGEST_NUMBER = 18
"""Maximum number of digits of a text that is parsed as a number."""

Processor = Mapping[str, str]
"""The fields of one paragraph of /proc/cpuinfo, by name in lower case."""


@dataclass(frozen=True, slots=True)
class CoreKind:
    """The logical cores of a machine that have the same model and about the same speed.

    A desktop usually has one kind of cores, and a phone two or three.

    Attributes:
        processor: identifier of the cores' model (`DeviceFacts.processor`); "" if unknown.
        hertz: the maximum clock in Hz of the fastest of the cores; 0 if unknown.
        cores: Linux's numbers of the cores, ascending.
    """

    processor: str
    hertz: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Core:
    number: int
    processor: str
    capacity: int
    hertz: int


def read_processors(root: Path) -> dict[int, Processor]:
    """Read /proc/cpuinfo: the fields of each logical core, by its number."""
    found: dict[int, Processor] = {}
    for paragraph in read_text(root / "proc/cpuinfo").split("\n\n"):
        pairs = (line.partition(":") for line in paragraph.splitlines())
        fields = {key.strip().lower(): value.strip() for key, _, value in pairs}
        number = fields.get("processor", "")
        if number.isdecimal() and len(number) <= _LONGEST_NUMBER:
            found[int(number)] = fields
    return found


def find_kinds(
    root: Path, processors: Mapping[int, Processor], usable: Collection[int]
) -> tuple[CoreKind, ...]:
    """Group the usable cores by kind; return the kinds, the fastest first.

    The result is empty if /proc/cpuinfo lists no core.

    Args:
        root: the folder that contains `sys`.
        processors: the result of `read_processors`.
        usable: numbers of the usable cores. If none of them is in `processors`, all cores of
            `processors` are grouped.
    """
    numbers = [number for number in sorted(processors) if number in usable] or sorted(processors)
    cores = [_core(root, number, processors[number]) for number in numbers]
    measures = [[core.capacity for core in cores], [core.hertz for core in cores]]
    whole = next((measure for measure in measures if all(measure)), [1] * len(cores))
    ranked = sorted(zip(whole, cores, strict=True), key=lambda one: (-one[0], one[1].number))
    kinds: list[tuple[int, list[_Core]]] = []
    for measure, core in ranked:
        for strongest, members in kinds:
            if members[0].processor == core.processor and measure >= ALIKE * strongest:
                members.append(core)
                break
        else:
            kinds.append((measure, [core]))
    return tuple(
        CoreKind(
            members[0].processor,
            max(core.hertz for core in members),
            tuple(sorted(core.number for core in members)),
        )
        for _, members in kinds
    )


def _core(root: Path, number: int, processor: Processor) -> _Core:
    folder = root / f"sys/devices/system/cpu/cpu{number}"
    return _Core(
        number,
        _registered(folder) or identity(processor),
        read_integer(folder / "cpu_capacity"),
        1000 * read_integer(folder / "cpufreq/cpuinfo_max_freq"),
    )


def _registered(folder: Path) -> str:
    """Read the implementer and part of an Arm core from its identification register MIDR_EL1.

    The result has the form `0x41-0xd0c`; it is empty if the register is not readable. The register
    is necessary, because 32-bit and old Linux kernels list only one of several kinds in
    /proc/cpuinfo.
    """
    text = read_text(folder / "regs/identification/midr_el1").removeprefix("0x")
    if not 0 < len(text) <= 16 or not {*text.lower()} <= {*"0123456789abcdef"}:
        return ""
    value = int(text, 16)
    implementer, part = value >> 24 & 0xFF, value >> 4 & 0xFFF
    return f"0x{implementer:02x}-0x{part:03x}" if implementer else ""


def identity(processor: Processor) -> str:
    """Return the identifier of a core (`DeviceFacts.processor`) from its fields in /proc/cpuinfo.

    The result is "" if the fields do not identify the core.
    """
    keys: Sequence[tuple[str, ...]] = (
        ("vendor_id", "cpu family", "model", "stepping"),
        ("cpu implementer", "cpu part"),
        ("mvendorid", "marchid"),
    )
    numbers = next((k for k in keys if processor.keys() >= {*k}), ())
    parts = (processor.get("uarch", ""), "-".join(processor[key] for key in numbers))
    return " ".join(filter(None, parts))


def read_integer(path: Path) -> int:
    """Return the integer in a file; 0 if the file does not contain one."""
    text = read_text(path)
    return int(text) if text.isdecimal() and len(text) <= _LONGEST_NUMBER else 0


def read_text(path: Path) -> str:
    """Return the text of a file; empty if the file does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def ranges_text(cores: Collection[int]) -> str:
    """Format numbers of cores in Linux's list notation, such as `0-3,6`."""
    found: list[list[int]] = []
    for core in sorted(cores):
        if found and found[-1][-1] == core - 1:
            found[-1] = [found[-1][0], core]
        else:
            found.append([core])
    return ",".join("-".join(map(str, part)) for part in found)
