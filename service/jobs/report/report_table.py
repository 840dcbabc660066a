"""A model's report as a table of texts: for a terminal, and for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.ports import sizes_text
from tilewright.service.units import microseconds, threads_text

if TYPE_CHECKING:
    from tilewright.service.jobs.report.explain import KernelReport, ModelReport


@dataclass(frozen=True, slots=True)
class ReportTable:
    """One row per kernel, the most expensive first. Columns whose names start with '<' are
    left-aligned."""

    headline: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: bool
    """Whether a column states the sizes of a range that each kernel serves."""

    @classmethod
    def of(cls, report: ModelReport) -> ReportTable:
        cut = any(kernel.serves for kernel in report.kernels)
        columns = (
            *("#", "<kernel", "count", "us", "share", "GFLOP/s", "<roofline", "spills", "<from"),
            *(("<serves",) if cut else ()),
            "<schedule",
        )
        order = sorted(report.kernels, key=lambda kernel: -(report.share(kernel) or 0.0))
        rows = tuple(tuple(_row(report, kernel, cut)) for kernel in order)
        return cls(headline(report), columns, rows, cut)


def _row(report: ModelReport, kernel: KernelReport, cut: bool) -> Sequence[str]:
    share = report.share(kernel)
    return [
        str(kernel.number),
        kernel.name,
        str(kernel.count),
        microseconds(kernel.seconds),
        "-" if share is None else f"{100 * share:.1f} %",
        rate(kernel),
        roofline(kernel),
        str(kernel.spills),
        "tuning" if kernel.tuned else "default",
        *([serves(kernel)] if cut else []),
        str(kernel.schedule),
    ]


def headline(report: ModelReport) -> str:
    """Two lines: the subject of the report, and the peaks of the device."""
    runs = sum(kernel.count for kernel in report.kernels)
    at = f" at {sizes_text(tuple(report.sizes.items()))}" if report.sizes else ""
    precision = "" if report.precision == DType.FLOAT32 else f", {report.precision} precision"
    text = (
        f"{report.name}{at}: {runs} kernels of {len(report.kernels)} workloads, {report.target}, "
        f"{threads_text(report.threads)}, {report.numerics} numerics{precision}"
    )
    if report.seconds is None or report.speeds is None:
        return f"{text}. The device does not run its code: nothing is timed."
    tuned = sum(kernel.tuned for kernel in report.kernels)
    levels = ", ".join(
        f"{level.name} {level.bytes_per_second / 1e9:.0f}" for level in report.speeds.levels
    )
    dots = report.speeds.dots.items()
    narrow = "".join(f", {rate / 1e9:.0f} of {name}" for name, rate in dots)
    core = report.device or "the device"
    return (
        f"{text}, {tuned} tuned. All kernels: {report.seconds * 1e3:.3f} ms.\n"
        f"A core of {core}: {report.speeds.flops_per_second / 1e9:.0f} GFLOP/s{narrow}; "
        f"reads GB/s: {levels}."
    )


def rate(kernel: KernelReport) -> str:
    """Operations of the definition per second, which are comparable between algorithms."""
    return f"{kernel.flops / kernel.seconds / 1e9:.1f}" if kernel.seconds else "-"


def roofline(kernel: KernelReport) -> str:
    """The kernel's time relative to the device's roofline, and the limiting resource."""
    if kernel.of_roofline is None or kernel.bound is None:
        return "-"
    return f"{100 * kernel.of_roofline:.0f} % {kernel.bound.limit}"


def serves(kernel: KernelReport) -> str:
    """The sizes of a range that the kernel is for."""
    return ", ".join(f"{name} {sizes}" for name, sizes in kernel.serves.items())
