"""Roofline plot of a job's kernels: operations per byte against speed, on logarithmic axes.

Each dot is a kernel. The mark above it is the highest speed that the device allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.service.dashboard.figures import percent, ratio
from tilewright.service.dashboard.job_figures import TaskLine
from tilewright.service.units import finite, microseconds

WIDTH, HEIGHT = 720.0, 300.0
SMALLEST, LARGEST = 3.5, 13.0
"""Smallest and largest radius of a dot. Its area grows with the share of the model's time."""

MOST_DOTS = 400


@dataclass(frozen=True, slots=True)
class RoofDot:
    """A kernel's dot. `roof` is the y coordinate of the device's limit, or None if unknown."""

    x: float
    y: float
    radius: float
    colour: int
    roof: float | None
    title: str
    workload: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """The plot. `across` and `up` are the ticks (place, number) of its axes: operations per byte,
    and GFLOP/s."""

    dots: tuple[RoofDot, ...]
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]

    @classmethod
    def of(cls, rows: Sequence[TaskLine]) -> Roofline | None:
        """Return the plot, or None without kernels that compute.

        Kernels that only move bytes are left out.
        """
        found = [each for row in rows if (each := _measured(row))]
        found = sorted(found, key=lambda each: -each.share)[:MOST_DOTS]
        if not found:
            return None
        across = _Axis.of([each.intensity for each in found], WIDTH)
        limits = [each.limit for each in found if each.limit is not None]
        up = _Axis.of([each.speed for each in found] + limits, HEIGHT)
        dots = tuple(_dot(each, across, up) for each in found)
        return cls(
            dots,
            tuple(across.marks()),
            tuple((HEIGHT - place, text) for place, text in up.marks()),
        )


@dataclass(frozen=True, slots=True)
class _Measured:
    """A kernel's operations per byte, its GFLOP/s, and the GFLOP/s that the device allows."""

    intensity: float
    speed: float
    limit: float | None
    share: float
    row: TaskLine


def _measured(row: TaskLine) -> _Measured | None:
    facts = row.task.facts
    flops = finite(facts.get("flops"))
    size = finite(facts.get("bytes"))
    seconds = finite(row.task.best_seconds or row.task.default_seconds)
    intensity, speed = ratio(flops, size), ratio(flops, seconds)
    if intensity is None or speed is None or min(intensity, speed) <= 0.0:
        return None
    limit = ratio(flops, finite(facts.get("bound_seconds")))
    allowed = None if limit is None or limit <= 0.0 else limit / 1e9
    return _Measured(intensity, speed / 1e9, allowed, row.best_share or 0.0, row)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis between two integer powers of ten."""

    low: int
    high: int
    length: float

    @classmethod
    def of(cls, values: Sequence[float], length: float) -> _Axis:
        low = math.floor(math.log10(min(values)))
        return cls(low, max(low + 1, math.ceil(math.log10(max(values)))), length)

    def place(self, value: float) -> float:
        return self.length * (math.log10(value) - self.low) / (self.high - self.low)

    def marks(self) -> Iterator[tuple[float, str]]:
        step = -(-(self.high - self.low) // 8)
        for power in range(self.low, self.high + 1, step):
            text = f"{10**power:,}" if 0 <= power < 7 else f"{10.0**power:.{max(0, -power)}f}"
            yield self.place(10.0**power), text if -5 < power < 7 else f"1e{power}"


def _dot(found: _Measured, across: _Axis, up: _Axis) -> RoofDot:
    task = found.row.task
    seconds = microseconds(task.best_seconds or task.default_seconds)
    title = f"{task.name}: {seconds} us, {found.speed:,.3g} GFLOP/s"
    if found.limit is not None:
        title += f" of {found.limit:,.3g} ({percent(found.speed / found.limit, 0)})"
    title += f", {found.intensity:,.3g} operations per byte"
    share = min(1.0, max(0.0, found.share))
    return RoofDot(
        x=across.place(found.intensity),
        y=HEIGHT - up.place(found.speed),
        radius=SMALLEST + (LARGEST - SMALLEST) * math.sqrt(share),
        colour=found.row.colour,
        roof=None if found.limit is None else HEIGHT - up.place(found.limit),
        title=title,
        workload=task.workload_key,
    )
