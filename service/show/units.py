"""Formats times, sizes and counts for users. A value that is unknown or not finite becomes `-`.

Values may be texts, because the database stores infinities in JSON as text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from numbers import Real
from typing import Any


def finite(value: object) -> float | None:
    """Return a value as a float, or None if it is not a finite number."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # an integer with hundreds of digits
        return None
    return number if math.isfinite(number) else None


def milliseconds(seconds: float | None) -> str:
    """Format a time in seconds as milliseconds with three decimals: `2.100 ms`.

    A time below 10 us gets three significant digits, so that it never appears as zero.
    """
    known = finite(seconds)
    if known is None:
        return "-"
    shown = known * 1e3
    return f"{shown:.3f} ms" if shown == 0.0 or abs(shown) >= 0.01 else f"{shown:.3g} ms"


def microseconds(seconds: float | None) -> str:
    """Format a time in seconds as microseconds with one decimal and without the unit: `12.3`.

    A time below 1 us gets three decimals, and a time below 0.5 ns an exponent, so that neither
    appears as zero.
    """
    known = finite(seconds)
    if known is None:
        return "-"
    shown = known * 1e6
    if shown == 0.0 or abs(shown) >= 0.9995:
        return f"{shown:,.1f}"
    return f"{shown:.3f}" if abs(shown) >= 0.0005 else f"{shown:.1e}"


def threads_text(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def duration(seconds: float | None) -> str:
    """Format a time in seconds as minutes and seconds: `2:05`."""
    known = finite(seconds)
    return "-" if known is None else f"{int(known) // 60}:{int(known) % 60:02d}"


def speedup(ratio: float | None) -> str:
    """Format a speed-up: `1.05x` for a `ratio` of 0.95, our time divided by the baseline's."""
    known = finite(ratio)
    return "-" if not known or not math.isfinite(1 / known) else f"{1 / known:.2f}x"


def speedups(comparison: Mapping[str, Any], baseline: str = "") -> str:
    """Format a speed-up with its confidence interval: `1.05x untuned (1.02x to 1.08x)`.

    Args:
        comparison: our time divided by the baseline's time (`ratio`), and the ends `low` and `high`
            of its confidence interval.
        baseline: the name of the baseline; "" if the context names it.
    """
    low, high = speedup(comparison["high"]), speedup(comparison["low"])
    ours = " ".join(filter(None, (speedup(comparison["ratio"]), baseline)))
    return f"{ours} ({low} to {high})"


def moment(at: float | None) -> str:
    """Format a time in Unix seconds as date and time in UTC: `2026-11-23 02:40:07`."""
    if at is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # a clock may be wrong by a million years
        return "-"


def ratio(default: float | None, best: float | None) -> float | None:
    """Return the speed-up `default / best`; None if one of the times is unknown or zero."""
    before, after = finite(default), finite(best)
    return before / after if before and after else None


def gain(default: float | None, best: float | None) -> str:
    """Format the speed-up `default / best` of two times: `1.32x`."""
    found = ratio(default, best)
    return "-" if found is None else f"{found:.2f}x"


def percent(share: float | None, digits: int = 1) -> str:
    """Format a fraction from 0 to 1 as a percentage with `digits` decimals: `12.3 %`."""
    if share is None or not math.isfinite(share):
        return "-"
    return f"{100 * share:.{digits}f} %"


def count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def ago(now: float, then: float) -> str:
    """Format the time from `then` to `now`, both in Unix seconds: `12 s ago`.

    A time in the future is shown as `0 s ago`.
    """
    seconds = max(0.0, now - then)
    if not math.isfinite(seconds):
        return "-"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def quantity(number: float) -> str:
    """Format a number: `999`, or from 1,000 on with an SI prefix and three digits: `1.23 M`."""
    for factor, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= factor:
            return f"{number / factor:.3g}{suffix}"
    return f"{number:g}"


def size(count: float) -> str:
    """Format a number of bytes: `999 B`, or a larger unit with up to three digits: `1.5 MiB`."""
    for factor, suffix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor:
            return f"{count / factor:.3g} {suffix}"
    return f"{count:g} B"
