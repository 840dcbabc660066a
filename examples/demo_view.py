"""What the demo shows: a job's progress while it runs, and its tables at the end.

Jobs and tasks are the JSON objects of the REST service (`JobView`, `TaskView`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Json = Mapping[str, Any]


def milliseconds(seconds: float | None) -> str:
    """Three significant digits, or a dash."""
    return "-" if seconds is None else f"{seconds * 1e3:.3g} ms"


def microseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:,.0f}"


def clock(seconds: float | None) -> str:
    """Minutes and seconds, or a dash."""
    if seconds is None:
        return "-"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def progress_view(job: Json, elapsed_seconds: float) -> RenderableType:
    """The live panel of a running job."""
    progress = job["progress"]
    budget = progress["trials_budget"] or 1
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("job", f"{job['id']}  {job['state']}  {progress['phase']}")
    facts.add_row("tasks", f"{progress['tasks_done']} of {progress['tasks_total']} done")
    facts.add_row(
        "trials",
        f"{progress['trials_done']} of {progress['trials_budget']}"
        f" ({progress['trials_failed']} failed)",
    )
    facts.add_row(
        "latency",
        f"{milliseconds(progress['default_seconds'])} untuned, "
        f"{milliseconds(progress['best_seconds'])} best so far (sum of the kernels)",
    )
    facts.add_row("time", f"{clock(elapsed_seconds)} gone, {clock(progress['seconds_left'])} left")
    bar = ProgressBar(total=budget, completed=min(progress["trials_done"], budget), width=60)
    return Group(facts, bar)


def progress_line(job: Json, elapsed_seconds: float) -> str:
    """The same on one line, for an output that is no terminal."""
    progress = job["progress"]
    return (
        f"{clock(elapsed_seconds)}  {job['state']} {progress['phase']}  "
        f"tasks {progress['tasks_done']}/{progress['tasks_total']}  "
        f"trials {progress['trials_done']}/{progress['trials_budget']}  "
        f"{milliseconds(progress['default_seconds'])} -> {milliseconds(progress['best_seconds'])}  "
        f"left {clock(progress['seconds_left'])}"
    )


def task_table(tasks: Sequence[Json], peak_flops: float | None) -> Table:
    """One row a workload, the most expensive first.

    peak_flops: fused multiply-adds of this machine's cores, in flop/s, as measured.
    """
    peak = "" if peak_flops is None else f", peak {peak_flops / 1e9:.0f} GFLOP/s"
    table = Table(title=f"Tasks{peak}", title_justify="left", header_style="bold")
    table.add_column("workload", overflow="fold")
    for name in ("count", "default us", "best us", "GFLOP/s", "executed", "% of peak", "trials"):
        table.add_column(name, justify="right")
    table.add_column("schedule", overflow="fold")
    for task in sorted(tasks, key=_cost, reverse=True):
        facts, best = task["facts"], task["best_seconds"]
        executed = _rate(facts.get("executed_flops"), best)
        share = executed / peak_flops if executed and peak_flops else None
        table.add_row(
            Text(task["name"]),
            str(task["count"]),
            microseconds(task["default_seconds"]),
            microseconds(best),
            _number(_rate(facts.get("flops"), best), 1e9),
            _number(executed, 1e9),
            _number(share, 0.01),
            str(task["trials"]) if task["status"] != "cached" else "known",
            Text(schedule_text(facts.get("schedule"))),
        )
    return table


def schedule_text(schedule: Json | None) -> str:
    """The algorithm and its knobs on one line."""
    if not schedule:
        return "-"
    choices = schedule.get("choices", {})
    pairs = choices.items() if isinstance(choices, Mapping) else choices
    return " ".join([str(schedule["algorithm"]), *(f"{name}={value}" for name, value in pairs)])


def race_table(rows: Sequence[tuple[str, float, float, float | None, float | None]]) -> Table:
    """Rows: engine, median and minimum in seconds, ratio to ONNX Runtime, largest error."""
    table = Table(title="End to end", title_justify="left", header_style="bold")
    table.add_column("engine")
    for name in ("median ms", "min ms", "x ONNX Runtime", "largest error"):
        table.add_column(name, justify="right")
    for engine, middle, least, ratio, error in rows:
        table.add_row(
            engine,
            f"{middle * 1e3:.2f}",
            f"{least * 1e3:.2f}",
            "-" if ratio is None else f"{ratio:.3f}",
            "-" if error is None else f"{error:.1e}",
        )
    return table


def _cost(task: Json) -> float:
    seconds = task["best_seconds"] or task["default_seconds"] or 0.0
    return float(seconds * task["count"])


def _rate(amount: float | None, seconds: float | None) -> float | None:
    return amount / seconds if amount and seconds else None


def _number(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:.1f}"
