"""Formatting of numbers on pages. A device may report values that make no sense."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from tilewright.service.units import finite


def moment(at: float | None) -> str:
    """Format a time as `2026-11-23 02:40:07` in UTC."""
    if at is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # a clock may be wrong by a million years
        return "-"


def ratio(default: float | None, best: float | None) -> float | None:
    """Return the speed-up of the best time over the default, or None without both times."""
    before, after = finite(default), finite(best)
    return before / after if before and after else None


def gain(default: float | None, best: float | None) -> str:
    """Format the speed-up of the best time over the default: `1.32x`."""
    found = ratio(default, best)
    return "-" if found is None else f"{found:.2f}x"


def percent(share: float | None, digits: int = 1) -> str:
    """Format a share: `12.3 %`."""
    if share is None or not math.isfinite(share):
        return "-"
    return f"{100 * share:.{digits}f} %"


def count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def ago(now: float, then: float) -> str:
    """Format the age of a moment: `12 s ago`. A moment in the future counts as now."""
    seconds = max(0.0, now - then)
    if not math.isfinite(seconds):
        return "-"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
