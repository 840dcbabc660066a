"""Implements `tilewright-worker --check`: checks whether a device measures reliably.

For each problem found, a remedy is printed. A reference kernel in the sandbox measures the noise of
timings; all other properties are read from the operating system.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from tilewright.compiler.errors import UnknownTargetError
from tilewright.compiler.runtime.memory import available_bytes
from tilewright.compiler.targets.core_kinds import ranges_text, read_integer, read_text
from tilewright.compiler.targets.detection import best_target, core_kinds, core_label, named_device
from tilewright.compiler.targets.device import DeviceFacts, available_cores
from tilewright.service.show.text import one_sentence
from tilewright.service.worker.condition import device_condition
from tilewright.service.worker.heat import Heat
from tilewright.tuner.measure.harness.build import HarnessError
from tilewright.tuner.measure.speed import ARITHMETIC_LIMIT, MEMORY_LIMIT, Speed

LEAST_BYTES = 128 << 20
"""Free memory in bytes below which a worker cannot work. A worker and its sandbox with NumPy take
90 MB; candidates and their buffers need additional memory."""

ENOUGH_BYTES = 512 << 20
"""Free memory in bytes that suffices for most models that phones run, with their weights and
expected outputs."""

PROBES = 40
QUIET_LOAD = 0.5
"""Largest average number of other runnable processes at which a device counts as idle."""

HOT_CELSIUS = 75.0
"""Temperature in degrees Celsius from which a device counts as hot. Many boards slow down from 80
degrees on."""

CPUS = "sys/devices/system/cpu"


class Grade(StrEnum):
    """The severity of a finding."""

    FINE = "fine"
    UNKNOWN = "unknown"
    """The operating system does not report the property."""
    POOR = "poor"
    """The worker can run, but its times are less reliable."""
    WRONG = "wrong"
    """The worker cannot run."""


@dataclass(frozen=True, slots=True)
class DeviceFinding:
    """The result of one check of a device or an installation.

    Attributes:
        name: the property that was checked.
        grade: the severity.
        found: the state of the property, as text.
        do: the remedy, with commands; "" if none is needed.
    """

    name: str
    grade: Grade
    found: str
    do: str = ""


Probe = Callable[[int], Sequence[Speed]]
"""A function that times the reference kernel the given number of times, in the process that runs
candidates. It raises HarnessError, OSError or RuntimeError."""


def check_device(root: Path, cores: Sequence[int], probe: Probe) -> list[DeviceFinding]:
    """Run all checks of a device, and return a finding for each.

    Args:
        root: the folder that contains `proc` and `sys`.
        cores: the cores on which candidates run; empty for all that this process may use.
        probe: times the reference kernel in the sandbox.
    """
    used = sorted(cores or available_cores())
    facts = named_device(root, used)
    heat, load = Heat(root, used), _load(root)
    noise = _noise(probe)
    return [
        _cores(root, used),
        _features(facts),
        _governor(root, used),
        _clock(root, used),
        _heat(root, heat),
        _memory(root, facts),
        load,
        noise,
    ]


def report(findings: Sequence[DeviceFinding], as_json: bool) -> str:
    """Format the findings as text for users, or as JSON."""
    if as_json:
        return json.dumps([asdict(each) for each in findings], indent=2)
    lines = []
    for each in findings:
        lines.append(f"{each.grade:<7}  {each.name:<8}  {one_sentence(each.found)}")
        lines += [f"{'':<9}{'':<10}-> {line}" for line in each.do.splitlines()]
    return "\n".join(lines)


def exit_status(findings: Sequence[DeviceFinding]) -> int:
    """Return the exit status of the check.

    0: no problem was found. 1: the worker cannot work. 3: the worker works, but its times are less
    reliable.
    """
    grades = {each.grade for each in findings}
    if Grade.WRONG in grades:
        return 1
    return 3 if Grade.POOR in grades else 0


def _cores(root: Path, used: Sequence[int]) -> DeviceFinding:
    kinds = core_kinds(root, used)
    if not kinds:
        return DeviceFinding("cores", Grade.UNKNOWN, f"{ranges_text(used)}, of unknown kind")
    names = ", ".join(
        f"{core_label(kind) or 'unnamed'} ({ranges_text(kind.cores)})" for kind in kinds
    )
    if len(kinds) > 1:
        do = f"tilewright-worker ... --cores {ranges_text(kinds[0].cores)}"
        return DeviceFinding("cores", Grade.POOR, f"candidates run on different kinds: {names}", do)
    siblings = {read_text(root / CPUS / f"cpu{n}/topology/thread_siblings_list") for n in used}
    if "" not in siblings and len(siblings) < len(used):
        first = sorted({_first(text) for text in siblings})
        do = f"tilewright-worker ... --cores {ranges_text(first)}"
        found = f"{names}: threads of the same cores get into each other's way"
        return DeviceFinding("cores", Grade.POOR, found, do)
    return DeviceFinding("cores", Grade.FINE, names)


def _first(listed: str) -> int:
    """Return the first core in a list as Linux writes it: 3 for "3,7" and "3-4"; 0 if invalid."""
    digits = listed.replace("-", ",").split(",")[0]
    return int(digits) if digits.isdecimal() and len(digits) <= 5 else 0


def _features(facts: DeviceFacts) -> DeviceFinding:
    try:
        target, why = best_target(facts)
    except UnknownTargetError as error:
        do = "say which target it runs: tilewright-worker ... --target NAME"
        return DeviceFinding("features", Grade.WRONG, str(error), do)
    if not facts.features:
        return DeviceFinding("features", Grade.UNKNOWN, "the system names none")
    return DeviceFinding("features", Grade.FINE, f"{why}; code is made for '{target.name}'")


def _governor(root: Path, used: Sequence[int]) -> DeviceFinding:
    found = {n: read_text(root / CPUS / f"cpu{n}/cpufreq/scaling_governor") for n in used}
    found = {number: name for number, name in found.items() if name}
    if not found:
        return DeviceFinding("governor", Grade.UNKNOWN, "none, as in most virtual machines")
    names = ", ".join(sorted({*found.values()}))
    slow = [number for number, name in found.items() if name != "performance"]
    if not slow:
        return DeviceFinding("governor", Grade.FINE, names)
    do = (
        f"for n in {' '.join(map(str, slow))}; do echo performance | "
        f"sudo tee /{CPUS}/cpu$n/cpufreq/scaling_governor; done"
    )
    return DeviceFinding("governor", Grade.POOR, f"{names}: clocks change with the load", do)


def _clock(root: Path, used: Sequence[int]) -> DeviceFinding:
    found: set[str] = set()
    limited: list[int] = []
    for number in used:
        folder = root / CPUS / f"cpu{number}/cpufreq"
        now, most, highest = (
            read_integer(folder / f"{name}_freq")
            for name in ("scaling_cur", "scaling_max", "cpuinfo_max")
        )
        if highest:
            found.add(f"{now / 1e6:.2f} of {highest / 1e6:.2f} GHz")
        if 0 < most < highest:
            limited.append(number)
    if not found:
        return DeviceFinding("clock", Grade.UNKNOWN, "the system does not report it")
    text = ", ".join(sorted(found))
    boost = {"cpufreq/boost": "0", "intel_pstate/no_turbo": "1"}
    for name, off in boost.items():
        said = read_text(root / CPUS / name)
        if said in ("0", "1") and said != off:
            do = f"echo {off} | sudo tee /{CPUS}/{name}"
            return DeviceFinding("clock", Grade.POOR, f"{text}, and more while the heat allows", do)
    if limited:
        text += f"; limited on {ranges_text(limited)}, which is fine if it is meant"
    return DeviceFinding("clock", Grade.FINE, text)


def _heat(root: Path, heat: Heat) -> DeviceFinding:
    """Check whether the device is too hot or throttled.

    Call this function after the noise was measured, because that measurement warms the device.
    """
    condition, reason = device_condition(root), heat.reason()
    warmth = condition["temperature_celsius"]
    found = "no sensor" if warmth is None else f"{warmth:.0f} °C"
    if reason:
        do = "give it a fan or a larger power supply; the worker waits while it is slowed down"
        return DeviceFinding("heat", Grade.POOR, f"{found}: {reason}", do)
    if warmth is not None and warmth >= HOT_CELSIUS:
        do = f"give it a fan, or less: echo KHZ | sudo tee /{CPUS}/cpu*/cpufreq/scaling_max_freq"
        return DeviceFinding("heat", Grade.POOR, found, do)
    return DeviceFinding("heat", Grade.UNKNOWN if warmth is None else Grade.FINE, found)


def _memory(root: Path, facts: DeviceFacts) -> DeviceFinding:
    free = available_bytes(root)
    if free is None:
        return DeviceFinding("memory", Grade.UNKNOWN, "the system does not report how much is free")
    found = f"{free >> 20} of {facts.memory_bytes >> 20} MiB are free"
    do = "end other programs (ps aux --sort=-rss | head)"
    if free < LEAST_BYTES:
        return DeviceFinding("memory", Grade.WRONG, f"{found}, {LEAST_BYTES >> 20} are needed", do)
    if free < ENOUGH_BYTES:
        do = f"only small models fit; {do}"
        return DeviceFinding("memory", Grade.POOR, found, do)
    return DeviceFinding("memory", Grade.FINE, found)


def _load(root: Path) -> DeviceFinding:
    load = device_condition(root)["load"]
    if load is None:
        return DeviceFinding("load", Grade.UNKNOWN, "the system does not report it")
    found = f"{load:.2f} processes wanted to run in the last minute"
    if load > QUIET_LOAD:
        return DeviceFinding("load", Grade.POOR, found, "end other programs (top)")
    return DeviceFinding("load", Grade.FINE, found)


def _noise(probe: Probe) -> DeviceFinding:
    try:
        speeds = probe(PROBES)
    except HarnessError as error:
        return DeviceFinding("noise", Grade.WRONG, str(error))
    except (OSError, RuntimeError) as error:
        do = "install the release of the service on this device: pip install tilewright"
        return DeviceFinding("noise", Grade.WRONG, f"the sandbox does not start: {error}", do)
    if len(speeds) < 2:
        return DeviceFinding("noise", Grade.WRONG, "the sandbox measured nothing")
    spreads = []
    for part in ("arithmetic_seconds", "memory_seconds"):
        times = sorted(getattr(speed, part) for speed in speeds)
        least = times[0]
        usual, worst = statistics.median(times), times[int(0.9 * len(times))]
        spreads.append((usual / least, worst / least) if least > 0.0 else (1.0, 1.0))
    found = "of the fastest time, the median and the slowest tenth take " + " and ".join(
        f"{usual:.2f}, {worst:.2f} ({name})"
        for (usual, worst), name in zip(spreads, ("arithmetic", "memory"), strict=True)
    )
    limits = (ARITHMETIC_LIMIT, MEMORY_LIMIT)
    if any(usual > limit for (usual, _), limit in zip(spreads, limits, strict=True)):
        do = "end other programs; a neighbour on a shared machine can be the cause"
        return DeviceFinding("noise", Grade.POOR, found, do)
    return DeviceFinding("noise", Grade.FINE, found)
