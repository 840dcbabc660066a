"""Tables and lines of text that several commands print."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tilewright.compiler.timings import StageTime
from tilewright.service.api.schemas.jobs import JobView, TaskView
from tilewright.service.api.schemas.lookups import LookupView
from tilewright.service.api.schemas.workers import WorkerView
from tilewright.service.messages import (
    comparison_text,
    condition_text,
    failed_text,
    known_text,
    schedule_text,
    verdict_text,
)
from tilewright.service.sentences import one_sentence
from tilewright.service.units import duration, microseconds, milliseconds, speedup
from tilewright.tuner.events import Finished

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilewright.service.jobs.evidence.end_to_end import Settled


def make_table(*columns: str, title: str | None = None) -> Table:
    """Return a table. Columns are right-aligned, except columns whose names begin with '<'."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for name in columns:
        left = name.startswith("<")
        table.add_column(name.lstrip("<"), justify="left" if left else "right", no_wrap=not left)
    return table


MOST_TASKS = 10
"""Default limit of the tasks in a table."""


def told_tasks(tasks: Sequence[TaskView], verbose: bool) -> list[RenderableType]:
    """Return the tasks of a finished job: the most expensive ones, or all of them.

    Only `verbose` shows tasks without a known time.
    """
    known = [task for task in tasks if task.best_seconds or task.default_seconds]
    shown = tasks if verbose else sorted(known, key=_cost, reverse=True)[:MOST_TASKS]
    told: list[RenderableType] = [task_table(shown)] if shown else []
    if note := sizes_note([task.name for task in shown]):
        told.append(note)
    if more := len(tasks) - len(shown):
        told.append(f"and {more} more {'task' if more == 1 else 'tasks'}: -v shows all")
    if verbose and (suggested := origins_line(tasks)):
        told.append(suggested)
    return told


_OPEN = re.compile(r"(?<![a-jl-wyzA-Z])s\d+")
"""Matches `s0` and `s1` in `matmul ks0 s1x64` and `add s1xs0`, but not the end of an operator."""


def sizes_note(names: Sequence[str]) -> str:
    """Return a note that explains `s0` in names of workloads, or "" if no name contains it."""
    found = sorted({size for name in names for size in _OPEN.findall(name)})
    sizes = "a size of its workload" if len(found) == 1 else "sizes of their workload"
    return f"{', '.join(found)}: {sizes} that each run decides" if found else ""


def _told_apart(task: TaskView, names: Counter[str]) -> str:
    """Return a task's name, with the start of its key if several tasks have the name."""
    return f"{task.name} {task.workload_key[:6]}" if names[task.name] > 1 else task.name


def task_table(tasks: Sequence[TaskView]) -> Table:
    """Return a table of tasks, the most expensive first. A MAC counts as two operations."""
    table = make_table(
        "<workload",
        "count",
        "default us",
        "best us",
        "vs incumbent",
        "GFLOP/s",
        "executed",
        "trials",
        "<schedule",
    )
    names = Counter(task.name for task in tasks)
    for task in sorted(tasks, key=_cost, reverse=True):
        table.add_row(
            Text(_told_apart(task, names)),
            str(task.count),
            microseconds(task.default_seconds),
            microseconds(task.best_seconds),
            comparison_text(task.facts["comparison"]) if "comparison" in task.facts else "-",
            _rate(task.facts.get("flops"), task.best_seconds),
            _rate(task.facts.get("executed_flops"), task.best_seconds),
            _trials(task),
            Text(schedule_text(task.facts.get("schedule"))),
        )
    return table


def job_table(jobs: Sequence[JobView]) -> Table:
    table = make_table(
        "<job", "<state", "<model", "<target", "threads", "tasks", "trials", "best", "age"
    )
    now = time.time()
    for job in jobs:
        progress = job.progress
        table.add_row(
            job.id[:12],
            job.state.replace("_", " "),
            Text(one_sentence(job.model_name or job.model[:12], 30)),
            Text(job.target),
            str(job.threads),
            f"{progress.tasks_done}/{progress.tasks_total}",
            f"{progress.trials_done}/{progress.trials_budget}",
            milliseconds(progress.best_seconds),
            duration(now - job.created_at),
        )
    return table


def lookup_table(found: LookupView) -> Table:
    table = make_table(
        "<workload", "<key", "count", "us", "at least", "vs incumbent", "error", "<schedule"
    )
    for entry in found.schedules:
        record = entry.record
        error = None if record is None else record.measurement.get("max_error")
        table.add_row(
            Text(entry.name),
            entry.workload_key[:12],
            str(entry.count),
            microseconds(record.run_seconds if record else None),
            microseconds(record.interval.low if record and record.interval else None),
            "-" if record is None else comparison_text(record.measurement.get("comparison")),
            "-" if error is None else f"{error:.1e}",
            Text(schedule_text(record.schedule if record else None)),
        )
    return table


def worker_table(workers: Sequence[WorkerView]) -> Table:
    """Return a table of workers, with each device's current speed relative to its best speed."""
    table = make_table(
        "<worker",
        "<name",
        "<health",
        "in hand",
        "failed",
        "targets",
        "arithmetic",
        "memory",
        "<state",
    )
    table.add_column("device just now", no_wrap=False)
    for worker in workers:
        speed = worker.speed
        state = "-" if speed is None else "steady"
        if speed is not None and speed.disturbed:
            state = "throttled" if speed.throttled else "disturbed"
        if worker.quarantine is not None:
            state = one_sentence(worker.quarantine.reason)
        table.add_row(
            worker.id[:12],
            Text(worker.name),
            worker.health
            + (", drained" if worker.draining and worker.health != "draining" else ""),
            str(worker.in_hand),
            failed_text(worker.trials),
            str(len(worker.target_keys)),
            speedup(None if speed is None else speed.arithmetic_ratio),
            speedup(None if speed is None else speed.memory_ratio),
            Text(state),
            Text(condition_text(worker.condition)),
        )
    return table


def settled_line(settled: Settled) -> str:
    """Return how many schedules of a model are known, which are served, and why."""
    known = known_text(settled.known, settled.workloads, settled.related)
    if not (settled.known or settled.related):
        return f"end to end: {known}; the defaults are served"
    return f"end to end: {known}; {verdict_text(settled.verdict.to_json())}"


def timings_table(stages: Sequence[StageTime], title: str = "Time by stage") -> Table:
    """Return a table with the milliseconds and runs of each stage, in order."""
    table = make_table("<stage", "ms", "times", title=title)
    for stage in stages:
        table.add_row(stage.stage, f"{stage.seconds * 1e3:.1f}", str(stage.count))
    return table


def origins_line(tasks: Sequence[TaskView]) -> str:
    """Return the origins of a job's candidates and of each task's fastest candidate.

    Returns "" without trials.
    """
    counts: Counter[str] = Counter()
    for task in tasks:
        counts.update(task.facts.get("origins", {}))
    best = Counter(task.facts.get("best_origin") for task in tasks)
    found = [
        f"{origin or 'unknown'} {count}" + (f" (best of {best[origin]})" if best[origin] else "")
        for origin, count in counts.most_common()
    ]
    return f"suggested by {', '.join(found)}" if found else ""


def rate_line(finished: Finished) -> str:
    """Return the rate of candidates, from the first proposal to the end of screening."""
    screened = finished.screened
    if not screened.candidates:
        return "no candidates were measured"
    rate = screened.candidates / screened.seconds
    finals = finished.seconds_elapsed - screened.seconds
    return (
        f"{screened.candidates} candidates screened in {screened.seconds:.1f} s: {rate:.1f}/s; "
        f"finalists compared in {finals:.1f} s"
    )


def _trials(task: TaskView) -> str:
    """Return a task's number of trials, or why it has none.

    Its schedule was known, or an equivalent task was searched instead.
    """
    if task.status == "cached":
        return "known"
    return "relative's" if task.facts.get("relative") and not task.trials else str(task.trials)


def _cost(task: TaskView) -> float:
    return (task.best_seconds or task.default_seconds or 0.0) * task.count


def _rate(operations: float | None, seconds: float | None) -> str:
    return f"{operations / seconds / 1e9:.1f}" if operations and seconds else "-"
