"""Output of `tilewright show kernels`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.compiler.codegen.statistics import InnerLoop
from tilewright.compiler.runtime.ports import sizes_text
from tilewright.service.cli.inspect_view import quantity, size
from tilewright.service.cli.view import make_table
from tilewright.service.jobs.report.explain import KernelReport, ModelReport
from tilewright.service.jobs.report.report_table import ReportTable, rate, roofline, serves
from tilewright.service.units import microseconds

LEGEND = (
    "us: one run of the kernel, in its place in the model; share: of the model's time, all runs. "
    "roofline: how near the kernel is to what the device allows, and what limits it - arithmetic "
    "at the peak rate, or the bytes it moves at the rate of the cache that holds them. "
    "spills: vector registers that the worst innermost loop keeps on the stack; 0 is good. "
    "from: whether the schedule was tuned or is the default."
)

SERVES = " serves: the sizes that the kernel is for, of those of the range; all if none is said."


def report_view(report: ModelReport, *, legend: bool = True) -> RenderableType:
    """Return a table with a line per kernel, slowest first, and a legend of its columns."""
    table = ReportTable.of(report)
    rows = make_table(*table.columns)
    for row in table.rows:
        rows.add_row(*map(Text, row))
    explained = [Text(), Text(LEGEND + SERVES * table.cut, style="dim")] if legend else []
    return Group(Text(table.headline), Text(), rows, *explained)


def kernel_view(reports: Sequence[ModelReport], kernel: KernelReport) -> RenderableType:
    """Return all facts of a kernel without its code.

    Facts that depend on sizes are listed at the sizes of each report.
    """
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column()
    facts.add_column()
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
    for name, value in lines:
        facts.add_row(Text(name, style="bold"), Text(value))
    loops = make_table("<innermost loop", "instructions", "FMAs", "registers", "spills")
    for loop in kernel.loops:
        loops.add_row(
            f"{loop.function} {loop.label}",
            str(len(loop.instructions)),
            str(loop.fmas),
            str(loop.registers),
            str(loop.spills),
        )
    title = Text(f"{kernel.number}: {kernel.name}", style="bold")
    graph = Text(kernel.operators.rstrip())
    return Group(title, facts, Text(), graph, Text(), loops if kernel.loops else Text("no loop"))


def _facts_at(report: ModelReport, kernel: KernelReport) -> list[tuple[str, str]]:
    """Return the facts (name, text) of a kernel at the sizes of a report."""
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
    """Return the instructions of the innermost loops, below a line with their counts."""
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
