"""Detects throttling caused by heat or a weak power supply, as the operating system reports it.

The harness, which runs candidates on the device, checks for the same causes before each request,
and waits until they end (heat.c).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from tilewright.compiler.targets.core_kinds import read_integer, read_text

FULL_CLOCK = 0.95
"""Fraction of the highest clock rate below which a processor counts as throttled, if it is set to
its highest clock rate."""

_COOLING = re.compile(r"^(thermal-cpufreq|cpufreq-|thermal-idle)|^Processor$")
"""Matches the kinds of cooling devices that slow a processor down, by their names in Linux."""

_OWN_CLOCK = ("pstate", "cppc")
"""Substrings of the names of drivers with which processors choose their clock rates themselves.
Idle cores of such processors are slow with any governor."""

_FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"
"""File with the throttling bits of a Raspberry Pi. Bits 0 to 15 are the present state, the bits
from 16 on are past events."""

_FIRMWARE_BITS = (
    "its power supply is too weak",
    "its firmware limits the clock",
    "its firmware throttles it",
    "it is near its highest temperature",
)


class Heat:
    """Detects whether a device is throttled, and why.

    Args:
        root: the folder that contains `sys`.
        cores: the cores on which candidates run; empty for all.
    """

    def __init__(self, root: Path = Path("/"), cores: Collection[int] = ()) -> None:
        self._root = root
        self._cores = frozenset(cores)
        self._throttled = self._count()

    def reason(self) -> str:
        """Return the cause of throttling as a clause, such as "its firmware throttles it".

        Return "" if the device is not throttled and was not throttled since the previous call.
        """
        count, before = self._count(), self._throttled
        self._throttled = count
        counted = "its throttling was counted since the last look" if count > before else ""
        return self._cooling() or self._firmware() or self._clock() or counted

    def _cooling(self) -> str:
        for folder in sorted((self._root / "sys/class/thermal").glob("cooling_device*")):
            kind = read_text(folder / "type")
            step, most = (read_integer(folder / f"{name}_state") for name in ("cur", "max"))
            if _COOLING.search(kind) and 0 < step <= most:
                return f"'{kind[:40]}' slows it down, step {step} of {most}"
        return ""

    def _firmware(self) -> str:
        text = read_text(self._root / _FIRMWARE).removeprefix("0x")
        if not re.fullmatch("[0-9a-f]{1,8}", text):
            return ""
        bits = int(text, 16)
        return next((said for bit, said in enumerate(_FIRMWARE_BITS) if bits >> bit & 1), "")

    def _clock(self) -> str:
        for folder in self._folders("cpufreq"):
            own = any(name in read_text(folder / "scaling_driver") for name in _OWN_CLOCK)
            if own or read_text(folder / "scaling_governor") != "performance":
                continue
            names = ("scaling_cur_freq", "cpuinfo_max_freq")
            now, highest = (read_integer(folder / name) for name in names)
            if 0 < now < FULL_CLOCK * highest:
                return f"{folder.parent.name} runs at {now / 1e6:.2f} of {highest / 1e6:.2f} GHz"
        return ""

    def _count(self) -> int:
        names = ("core_throttle_count", "package_throttle_count")
        folders = self._folders("thermal_throttle")
        return sum(read_integer(folder / name) for folder in folders for name in names)

    def _folders(self, name: str) -> list[Path]:
        """Return the paths `sys/devices/system/cpu/cpuN/NAME` of the cores N, ordered by N.

        NAME is the argument `name`. Cores without such a folder are left out.
        """
        found = {}
        for folder in (self._root / "sys/devices/system/cpu").glob(f"cpu[0-9]*/{name}"):
            number = folder.parent.name.removeprefix("cpu")
            if number.isdecimal() and (not self._cores or int(number) in self._cores):
                found[int(number)] = folder
        return [found[number] for number in sorted(found)]
