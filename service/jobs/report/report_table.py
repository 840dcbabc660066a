"""Formats the report on a model's kernels as a table with a headline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.ports import sizes_text
from tilewright.service.show.table import CellKind, Column, Table, table
from tilewright.service.show.units import microseconds, percent, threads_text

if TYPE_CHECKING:
    from tilewright.service.jobs.report.explain import KernelReport, ModelReport


def report_table(report: ModelReport) -> Table:
    """Return a table with a row per kernel, sorted by time, longest first."""
    of_range = any(kernel.serves for kernel in report.kernels)
    columns: tuple[Column[KernelReport], ...] = (
        Column("#", lambda kernel: str(kernel.number)),
        Column("kernel", lambda kernel: kernel.name, CellKind.NAME),
        Column("count", lambda kernel: str(kernel.count)),
        Column("us", lambda kernel: microseconds(kernel.seconds)),
        Column("share", lambda kernel: percent(report.share(kernel))),
        Column("GFLOP/s", rate),
        Column("roofline", roofline, CellKind.TEXT),
        Column("spills", lambda kernel: str(kernel.spills)),
        Column("from", lambda kernel: "tuning" if kernel.tuned else "default", CellKind.TEXT),
        *([Column("serves", serves, CellKind.TEXT)] if of_range else []),
        Column("schedule", lambda kernel: str(kernel.schedule), CellKind.CODE),
    )
    return table(columns, sorted(report.kernels, key=lambda k: -(report.share(k) or 0.0)))


def headline(report: ModelReport) -> str:
    """Return the text above the table: the model, its target and mode, and the device's peaks.

    The text has two lines. The line with the peaks is missing if the model was not timed.
    """
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
    """Return the kernel's GFLOP/s as text, or "-" if it was not timed.

    The operations of the workload's operators are counted, whatever algorithm is used. So the rates
    of two algorithms are comparable.
    """
    return f"{kernel.flops / kernel.seconds / 1e9:.1f}" if kernel.seconds else "-"


def roofline(kernel: KernelReport) -> str:
    """Return the fraction of the device's peak that a kernel reaches, and the limiting resource.

    The result is a text, such as `85 % compute`; "-" if the kernel was not timed.
    """
    if kernel.of_roofline is None or kernel.bound is None:
        return "-"
    return f"{100 * kernel.of_roofline:.0f} % {kernel.bound.limit}"


def serves(kernel: KernelReport) -> str:
    """Return the ranges of sizes for which a kernel is used, as text such as "batch 17..128"."""
    return ", ".join(f"{name} {sizes}" for name, sizes in kernel.serves.items())
