"""Reads the present condition of a device, such as its temperature, which may explain slow runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

Reading = float | None

MOST_CELSIUS, MOST_LOAD, MOST_CLOCK_RATIO = 300.0, 1e6, 10.0
"""Limits above which readings of temperature, load and clock ratio are dropped, since they come
from broken sensors. `service.api.schemas.workers` has the same limits."""

LONGEST_GOVERNOR = 100


def device_condition(root: Path = Path("/")) -> dict[str, Any]:
    """Read temperature, load, clock and governor from the operating system.

    Args:
        root: the folder that contains `proc` and `sys`.

    Returns:
        `temperature_celsius`, the reading of the hottest sensor; `load`, the average number of
        runnable processes in the last minute; `clock_ratio`, the largest ratio of a core's clock to
        its maximal clock; `governor`, the names of the cores' frequency governors. A value that the
        system does not report is None or "".
    """
    sensors = [
        *(root / "sys/class/thermal").glob("thermal_zone*/temp"),
        *(root / "sys/class/hwmon").glob("hwmon*/temp*_input"),
    ]
    cores = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq"))
    clocks = []
    for core in cores:
        now, highest = _number(core / "scaling_cur_freq"), _number(core / "cpuinfo_max_freq")
        if now is not None and highest:
            clocks.append(now / highest)
    governors = sorted({_text(core / "scaling_governor") for core in cores} - {""})
    return {
        "temperature_celsius": _largest(
            (n / 1000 for path in sensors if (n := _number(path)) is not None),
            -MOST_CELSIUS,
            MOST_CELSIUS,
        ),
        "load": _largest(_load(root), 0.0, MOST_LOAD),
        "clock_ratio": _largest(clocks, 0.0, MOST_CLOCK_RATIO),
        "governor": ", ".join(governors)[:LONGEST_GOVERNOR],
    }


def _load(root: Path) -> Iterable[float]:
    first = _text(root / "proc/loadavg").split(" ")[0]
    try:
        yield float(first)
    except ValueError:
        return


def _largest(readings: Iterable[float], least: float, most: float) -> Reading:
    """Return the largest reading in `least..most`; None if there is no such reading."""
    return max((n for n in readings if least <= n <= most), default=None)


def _number(path: Path) -> Reading:
    try:
        return float(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    """Return the text of a file; "" if it is missing or unreadable, or its sensor fails."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return text if text.isprintable() else ""
