"""Output of `tilewright show graph`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.compiler.plan.costs import PlanSummary
from tilewright.compiler.runtime.ports import ModelPorts, dims_text


def summary_view(summary: PlanSummary, names: Mapping[str, str]) -> RenderableType:
    """Return a model's figures, operators and workloads. `names` maps workload keys to names."""
    head = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    head.add_column()
    head.add_column()
    rows = [
        ("model", summary.name),
        ("inputs", ", ".join(f"{name}: {kind}" for name, kind in summary.inputs)),
        ("outputs", ", ".join(f"{name}: {kind}" for name, kind in summary.outputs)),
        ("parameters", f"{quantity(summary.parameters)} ({size(summary.parameter_bytes)})"),
        ("MACs", quantity(summary.macs)),
        *(("" if number else "of these", text) for number, text in enumerate(_products(summary))),
        ("operations", quantity(summary.flops)),
        (
            "memory traffic",
            f"{size(summary.bytes_read)} read, {size(summary.bytes_written)} written",
        ),
        (
            "plan",
            f"{summary.kernels} kernels of {len(summary.tasks)} workloads, {summary.views} views, "
            f"{summary.relayouts} relayouts"
            + (f", {summary.natives} native steps" if summary.natives else "")
            + (f", {summary.controls} loops and branches" if summary.controls else ""),
        ),
        ("arena", f"{size(summary.arena_bytes)} for the values between kernels"),
        ("operators", ", ".join(f"{count} {name}" for name, count in summary.operators)),
    ]
    for name, value in rows:
        head.add_row(Text(name, style="bold"), Text(value))
    table = Table(box=None, header_style="bold", title="Workloads", title_justify="left")
    table.add_column("workload")
    table.add_column("key")
    for name in ("count", "share", "MACs", "read", "written"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in summary.tasks:
        table.add_row(
            Text(names.get(task.key, " ".join(task.operators))),
            task.key[:12],
            str(task.count),
            f"{100 * task.share:.1f} %",
            quantity(task.macs),
            size(task.bytes_read),
            size(task.bytes_written),
        )
    return Group(head, Text(), table)


def open_inputs(ports: ModelPorts) -> list[str]:
    """Return one line about inputs with dynamic dimensions, by the dimensions' names in --dim."""
    listed = [
        f"{name} {dims_text(dims)}"
        for name, dims in ports.inputs.items()
        if any(isinstance(dim, str) for dim in dims)
    ]
    return [f"open dimensions: {', '.join(listed)}"] if listed else []


def _products(summary: PlanSummary) -> list[str]:
    """Return the share of multiplications per data type, or nothing for a single type."""
    total = sum(share.macs for share in summary.products)
    if len(summary.products) < 2 and not any(share.reason for share in summary.products):
        return []
    return [
        f"{100 * share.macs / total:.1f} % {share.types}"
        + (f": {share.reason}" * bool(share.reason))
        for share in summary.products
    ]


def quantity(number: float) -> str:
    """Format a number with three significant digits and a decimal prefix."""
    for factor, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= factor:
            return f"{number / factor:.3g}{suffix}"
    return f"{number:g}"


def size(count: float) -> str:
    """Format a number of bytes with a binary prefix."""
    for factor, suffix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor:
            return f"{count / factor:.3g} {suffix}"
    return f"{count:g} B"
