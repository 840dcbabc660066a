"""Formats the output of `tilewright show graph` for a model."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.compiler.plan.costs import PlanSummary, TaskSummary
from tilewright.compiler.runtime.ports import ModelPorts, dims_text
from tilewright.service.show.console import rich_facts, rich_table
from tilewright.service.show.table import CellKind, Column, table
from tilewright.service.show.units import percent, quantity, size


def summary_view(summary: PlanSummary, names: Mapping[str, str]) -> RenderableType:
    """Return a printable summary of a model: inputs, outputs, operations, memory and workloads.

    `names` has the name of each workload by its workload key; workloads without a name show their
    operators.
    """
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
    described: tuple[Column[TaskSummary], ...] = (
        Column(
            "workload", lambda task: names.get(task.key, " ".join(task.operators)), CellKind.NAME
        ),
        Column("key", lambda task: task.key[:12], CellKind.TEXT),
        Column("count", lambda task: str(task.count)),
        Column("share", lambda task: percent(task.share)),
        Column("MACs", lambda task: quantity(task.macs)),
        Column("read", lambda task: size(task.bytes_read)),
        Column("written", lambda task: size(task.bytes_written)),
    )
    tasks = rich_table(table(described, summary.tasks, "Workloads"))
    return Group(rich_facts(rows), Text(), tasks)


def open_inputs(ports: ModelPorts) -> list[str]:
    """Return one line that names the inputs with dynamic dimensions, as a list of one element.

    Each dimension has the name that --dim uses. The list is empty if all dimensions are fixed.
    """
    listed = [
        f"{name} {dims_text(dims)}"
        for name, dims in ports.inputs.items()
        if any(isinstance(dim, str) for dim in dims)
    ]
    return [f"open dimensions: {', '.join(listed)}"] if listed else []


def _products(summary: PlanSummary) -> list[str]:
    """Return lines such as "75.0 % int8 x int8", one per pair of types that the model multiplies.

    The percentage is the share of all multiplications. A line may end with the reason why quantised
    values are multiplied as floats. If the model multiplies only one pair of types, without such a
    reason, the list is empty.
    """
    total = sum(share.macs for share in summary.products)
    if len(summary.products) < 2 and not any(share.reason for share in summary.products):
        return []
    return [
        f"{100 * share.macs / total:.1f} % {share.types}"
        + (f": {share.reason}" * bool(share.reason))
        for share in summary.products
    ]
