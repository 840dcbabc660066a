"""Formatting of times and counts. A value that is not a finite number is unknown: `-`.

The database stores infinities in JSON as text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    """Format a time in ms, to 1 us; below 10 us to three digits, so that it is never zero."""
    known = finite(seconds)
    if known is None:
        return "-"
    shown = known * 1e3
    return f"{shown:.3f} ms" if shown == 0.0 or abs(shown) >= 0.01 else f"{shown:.3g} ms"


def microseconds(seconds: float | None) -> str:
    """Format a time in us, to 0.1 us; below 1 us to 1 ns, so that it is never zero."""
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
    """Format a time in minutes and seconds."""
    known = finite(seconds)
    return "-" if known is None else f"{int(known) // 60}:{int(known) % 60:02d}"


def speedup(ratio: float | None) -> str:
    """Return the speed-up over a baseline, `1.05x`, from the ratio of our time to its time."""
    known = finite(ratio)
    return "-" if not known or not math.isfinite(1 / known) else f"{1 / known:.2f}x"


def speedups(comparison: Mapping[str, Any], baseline: str) -> str:
    """Return the speed-up over a baseline with its interval: `1.05x untuned (1.02x to 1.08x)`.

    Args:
        comparison: `ratio`, `low` and `high` of our time divided by the baseline's time.
        baseline: the baseline's name.
    """
    low, high = speedup(comparison["high"]), speedup(comparison["low"])
    return f"{speedup(comparison['ratio'])} {baseline} ({low} to {high})"
