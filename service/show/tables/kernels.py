"""Columns of tables of kernels: comparisons of two models, and the innermost loops of a kernel."""

from __future__ import annotations

from typing import Any

from tilewright.service.show.table import Cell, CellKind, Column
from tilewright.service.show.units import count, microseconds, speedup


def pairs(a: str = "", b: str = "") -> tuple[Column[Any], ...]:
    """Return the columns of a table that compares the kernels of two jobs or artifacts, A and B.

    Each row of the table shows one `difference.Pair`. If A is a job, each time in A's column links
    to the page of the job's task; likewise for B.

    Args:
        a: the id of job A; "" if A is an artifact.
        b: the id of job B; "" if B is an artifact.
    """

    def time(kernel: Any, job_id: str) -> Cell:
        if kernel is None:
            return Cell("-")
        link = f"jobs/{job_id}/tasks/{kernel.key}" if job_id else ""
        return Cell(microseconds(kernel.seconds), link)

    return (
        Column(
            "workload", lambda p: f"{p.name} (alike)" if p.alike else p.name, CellKind.NAME,
            hint="Alike are workloads that compute the same in other types or layouts",
        ),
        Column("count", lambda pair: pair.counts),
        Column("A us", lambda pair: time(pair.a, a)),
        Column("B us", lambda pair: time(pair.b, b)),
        Column("B vs A", lambda pair: speedup(pair.ratio)),
        Column("B gains us", lambda pair: microseconds(pair.gained), hint="Per run of the model"),
        Column("schedule", lambda pair: pair.schedules, CellKind.CODE),
    )  # fmt: skip


FACTS = (
    Column[tuple[str, str, str]]("property", lambda fact: fact[0], CellKind.NAME),
    Column[tuple[str, str, str]]("A", lambda fact: fact[1], CellKind.TEXT),
    Column[tuple[str, str, str]]("B", lambda fact: fact[2], CellKind.TEXT),
)
"""Columns of the table of properties in which two models are compared (`ModelDifference.facts`)."""

LOOPS = (
    Column[Any]("innermost loop", lambda loop: loop.label, CellKind.NAME),
    Column[Any]("instructions", lambda loop: count(loop.instructions)),
    Column[Any]("multiply-adds", lambda loop: count(loop.fmas)),
    Column[Any]("registers", lambda loop: str(loop.registers)),
    Column[Any]("spills", lambda loop: count(loop.spills)),
)
