"""Roofline plot of a job's kernels: speed over arithmetic intensity, on logarithmic axes.

Arithmetic intensity is the number of operations per byte of memory traffic. Each dot is a kernel. A
mark above the dot shows the highest speed that the device allows at this intensity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.service.show.chart import Chart, ChartAxis, ChartPoint, Series
from tilewright.service.show.tables.tasks import TaskLine
from tilewright.service.show.units import finite, microseconds, percent, ratio

SMALLEST, LARGEST = 3.5, 13.0
"""Smallest and largest radius of a dot. The area of a dot grows with its fraction of the model's
time."""

MOST_DOTS = 400


def roofline(rows: Sequence[TaskLine]) -> Chart | None:
    """Return the roofline plot of a job's kernels; None if no kernel has a measured speed.

    Kernels without arithmetic, such as copies, are left out.
    """
    dots = [dot for row in rows if (dot := _dot(row))]
    dots = sorted(dots, key=lambda dot: -dot.radius)[:MOST_DOTS]
    if not dots:
        return None
    speeds = [speed for dot in dots for speed in (dot.y, dot.limit) if speed is not None]
    return Chart(
        f"Speed of {len(dots)} kernels over their operations per byte",
        ChartAxis.decades("operations per byte", "", [dot.x for dot in dots if dot.x is not None]),
        ChartAxis.decades("speed", "GFLOP/s", speeds),
        (Series("kernel", tuple(dots)),),
    )


def _dot(row: TaskLine) -> ChartPoint | None:
    """Return the dot of a kernel: x is its operations per byte, y is its speed in GFLOP/s.

    Returns None for a kernel without arithmetic or without a measurement.
    """
    facts = row.task.facts
    flops = finite(facts.get("flops"))
    taken = finite(row.task.best_seconds or row.task.default_seconds)
    intensity, rate = ratio(flops, finite(facts.get("bytes"))), ratio(flops, taken)
    if intensity is None or rate is None or min(intensity, rate) <= 0.0:
        return None
    speed, limit = rate / 1e9, ratio(flops, finite(facts.get("bound_seconds")))
    allowed = None if limit is None or limit <= 0.0 else limit / 1e9
    text = f"{row.task.name}: {microseconds(taken)} us, {speed:,.3g} GFLOP/s"
    if allowed is not None:
        text += f" of {allowed:,.3g} ({percent(speed / allowed, 0)})"
    share = min(1.0, max(0.0, row.best_share or 0.0))
    return ChartPoint(
        intensity,
        speed,
        f"{text}, {intensity:,.3g} operations per byte",
        f"jobs/{row.task.job_id}/tasks/{row.task.workload_key}",
        SMALLEST + (LARGEST - SMALLEST) * math.sqrt(share),
        f"c{row.colour}",
        allowed,
    )
