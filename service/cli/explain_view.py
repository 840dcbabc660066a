"""What `tilewright explain` shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compiler.codegen.statistics import InnerLoop
from compiler.dtypes import DType
from compiler.runtime.ports import sizes_text
from service.cli.inspect_view import quantity, size
from service.cli.view import make_table
from service.jobs.explain import KernelReport, ModelReport
from service.units import microseconds, threads_text

LEGEND = (
    "us: one run of the kernel, in its place in the model; share: of the model's time, all runs. "
    "roofline: how near the kernel is to what the device allows, and what limits it - arithmetic "
    "at the peak rate, or the bytes it moves at the rate of the cache that holds them. "
    "spills: vector registers that the worst innermost loop keeps on the stack; 0 is good. "
    "from: whether the schedule was tuned or is the default."
)

SERVES = " serves: the sizes that the kernel is for, of those of the range; all if none is said."


def report_view(report: ModelReport, *, legend: bool = True) -> RenderableType:
    """One line a kernel, the most expensive first, and what the columns mean."""
    cut = any(kernel.serves for kernel in report.kernels)
    rows = make_table(
        "#",
        "<kernel",
        "count",
        "us",
        "share",
        "GFLOP/s",
        "<roofline",
        "spills",
        "<from",
        *(["<serves"] if cut else []),
        "<schedule",
    )
    order = sorted(report.kernels, key=lambda kernel: -(report.share(kernel) or 0.0))
    for kernel in order:
        share = report.share(kernel)
        rows.add_row(
            str(kernel.number),
            Text(kernel.name),
            str(kernel.count),
            microseconds(kernel.seconds),
            "-" if share is None else f"{100 * share:.1f} %",
            _rate(kernel),
            _roofline(kernel),
            str(kernel.spills),
            "tuning" if kernel.tuned else "default",
            *([Text(_serves(kernel))] if cut else []),
            Text(str(kernel.schedule)),
        )
    explained = [Text(), Text(LEGEND + SERVES * cut, style="dim")] if legend else []
    return Group(Text(_headline(report)), Text(), rows, *explained)


def kernel_view(reports: Sequence[ModelReport], kernel: KernelReport) -> RenderableType:
    """All facts of one kernel but its code; what depends on sizes at those of each report."""
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column()
    facts.add_column()
    lines = [
        ("schedule", f"{kernel.schedule}"),
        ("from", "the database" if kernel.tuned else "the untuned default"),
        ("workload", kernel.workload_key),
    ]
    if kernel.serves:
        lines.append(("serves", _serves(kernel)))
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
    """What there is to say of a kernel at the sizes of a report."""
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
                f"{100 * share:.1f} % of it, {_rate(kernel)} GFLOP/s",
            ),
            (
                "machine allows",
                f"{microseconds(kernel.bound.seconds)} us: "
                f"{microseconds(kernel.bound.compute_seconds)} us of arithmetic, "
                f"{microseconds(kernel.bound.memory_seconds)} us of memory; {_roofline(kernel)}",
            ),
        ]
    if report.sizes:
        lines.insert(0, ("at", sizes_text(tuple(report.sizes.items()))))
    return lines


def _serves(kernel: KernelReport) -> str:
    return ", ".join(f"{name} {sizes}" for name, sizes in kernel.serves.items())


def assembly_text(kernel: KernelReport) -> str:
    """The instructions of the innermost loops, under a line with their counts."""
    return "\n".join(line for loop in kernel.loops for line in _assembly(loop))


def _assembly(loop: InnerLoop) -> Iterator[str]:
    yield (
        f"# {loop.function}, loop {loop.label}: {len(loop.instructions)} instructions, "
        f"{loop.fmas} FMAs, {loop.spills} spills"
    )
    for instruction in loop.instructions:
        yield f"    {instruction}"


def _headline(report: ModelReport) -> str:
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


def _operations(kernel: KernelReport) -> str:
    text = quantity(kernel.flops)
    if kernel.executed_flops != kernel.flops:
        text += f" by definition, {quantity(kernel.executed_flops)} executed"
    return text


def _rate(kernel: KernelReport) -> str:
    """Operations of the definition a second: what comparisons between algorithms need."""
    return f"{kernel.flops / kernel.seconds / 1e9:.1f}" if kernel.seconds else "-"


def _roofline(kernel: KernelReport) -> str:
    if kernel.of_roofline is None or kernel.bound is None:
        return "-"
    return f"{100 * kernel.of_roofline:.0f} % {kernel.bound.limit}"
