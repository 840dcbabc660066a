"""Times and counts as people read them. What is no number, or no finite one, is not known: `-`.

A store keeps infinities in JSON as text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any


def finite(value: object) -> float | None:
    """The number that a value is; None of anything else."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def milliseconds(seconds: float | None) -> str:
    """To a microsecond, and below ten of them to three digits: no model takes no time."""
    known = finite(seconds)
    if known is None:
        return "-"
    shown = known * 1e3
    return f"{shown:.3f} ms" if shown == 0.0 or abs(shown) >= 0.01 else f"{shown:.3g} ms"


def microseconds(seconds: float | None) -> str:
    """To a tenth, and below a microsecond to a nanosecond: no kernel takes no time."""
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
    """Minutes and seconds."""
    known = finite(seconds)
    return "-" if known is None else f"{int(known) // 60}:{int(known) % 60:02d}"


def speedup(ratio: float | None) -> str:
    """`1.05x`: how many times as fast as a baseline something is that takes `ratio` of its time."""
    known = finite(ratio)
    return "-" if not known or not math.isfinite(1 / known) else f"{1 / known:.2f}x"


def speedups(comparison: Mapping[str, Any], baseline: str) -> str:
    """`1.05x untuned (1.02x to 1.08x)`: the speed-up over a baseline, with its interval.

    Args:
        comparison: `ratio`, `low` and `high`: our time over that of the baseline.
    """
    low, high = speedup(comparison["high"]), speedup(comparison["low"])
    return f"{speedup(comparison['ratio'])} {baseline} ({low} to {high})"
