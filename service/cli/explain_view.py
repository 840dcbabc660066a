"""Formats the output of `tilewright show kernels`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.compiler.codegen.statistics import InnerLoop
from tilewright.compiler.runtime.ports import sizes_text
from tilewright.service.jobs.report.explain import KernelReport, ModelReport
from tilewright.service.jobs.report.report_table import (
    headline,
    rate,
    report_table,
    roofline,
    serves,
)
from tilewright.service.show.console import rich_facts, rich_table
from tilewright.service.show.table import CellKind, Column, table
from tilewright.service.show.units import microseconds, quantity, size

LEGEND = (
    "us: one run of the kernel, in its place in the model; share: of the model's time, all runs. "
    "roofline: how near the kernel is to what the device allows, and what limits it - arithmetic "
    "at the peak rate, or the bytes it moves at the rate of the cache that holds them. "
    "spills: vector registers that the worst innermost loop keeps on the stack; 0 is good. "
    "from: whether the schedule was tuned or is the default."
)

_LOOPS: tuple[Column[InnerLoop], ...] = (
    Column("innermost loop", lambda loop: f"{loop.function} {loop.label}", CellKind.NAME),
    Column("instructions", lambda loop: str(len(loop.instructions))),
    Column("FMAs", lambda loop: str(loop.fmas)),
    Column("registers", lambda loop: str(loop.registers)),
    Column("spills", lambda loop: str(loop.spills)),
)

SERVES = " serves: the sizes that the kernel is for, of those of the range; all if none is said."


def report_view(report: ModelReport, *, legend: bool = True) -> RenderableType:
    """Return a table with a line per kernel, slowest first, and a legend of its columns."""
    described = report_table(report)
    more = SERVES if any(kernel.serves for kernel in report.kernels) else ""
    explained = [Text(), Text(LEGEND + more, style="dim")] if legend else []
    return Group(Text(headline(report)), Text(), rich_table(described), *explained)


def kernel_view(reports: Sequence[ModelReport], kernel: KernelReport) -> RenderableType:
    """Return a printable description of a kernel: schedule, operators, times and loops, not code.

    Times and other values that depend on sizes are repeated for each report that contains the
    kernel. There is one report per size at which the model was measured.
    """
    lines = [
        ("schedule", f"{kernel.schedule}"),
        ("from", "the database" if kernel.tuned else "the untuned default"),
        ("workload", kernel.workload_key),
    ]
    if kernel.serves:
        lines.append(("serves", serves(kernel)))
    for report in reports:
        for one in report.kernels:
            if one.number == kernel.number:
                lines += _facts_at(report, one)
    loops = rich_table(table(_LOOPS, kernel.loops))
    title = Text(f"{kernel.number}: {kernel.name}", style="bold")
    body = (title, rich_facts(lines), Text(), Text(kernel.operators.rstrip()), Text())
    return Group(*body, loops if kernel.loops else Text("no loop"))


def _facts_at(report: ModelReport, kernel: KernelReport) -> list[tuple[str, str]]:
    """Return lines about a kernel's operations, bytes and time at the sizes of a report.

    Each line is a (label, text) pair.
    """
    share = report.share(kernel)
    lines = [
        ("operations", _operations(kernel)),
        (
            "bytes",
            f"{size(kernel.weight_bytes)} of packed weights, {size(kernel.value_bytes)} of inputs "
            "and outputs",
        ),
    ]
    if kernel.seconds is not None and kernel.bound is not None and share is not None:
        lines += [
            (
                "time",
                f"{microseconds(kernel.seconds)} us, {kernel.count} a run of the model: "
                f"{100 * share:.1f} % of it, {rate(kernel)} GFLOP/s",
            ),
            (
                "machine allows",
                f"{microseconds(kernel.bound.seconds)} us: "
                f"{microseconds(kernel.bound.compute_seconds)} us of arithmetic, "
                f"{microseconds(kernel.bound.memory_seconds)} us of memory; {roofline(kernel)}",
            ),
        ]
    if report.sizes:
        lines.insert(0, ("at", sizes_text(tuple(report.sizes.items()))))
    return lines


def assembly_text(kernel: KernelReport) -> str:
    """Return the assembly of a kernel's innermost loops, below a line with instruction counts."""
    return "\n".join(line for loop in kernel.loops for line in _assembly(loop))


def _assembly(loop: InnerLoop) -> Iterator[str]:
    yield (
        f"# {loop.function}, loop {loop.label}: {len(loop.instructions)} instructions, "
        f"{loop.fmas} FMAs, {loop.spills} spills"
    )
    for instruction in loop.instructions:
        yield f"    {instruction}"


def _operations(kernel: KernelReport) -> str:
    text = quantity(kernel.flops)
    if kernel.executed_flops != kernel.flops:
        text += f" by definition, {quantity(kernel.executed_flops)} executed"
    return text
