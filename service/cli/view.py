"""Tables and lines of text that several commands print."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright.compiler.timings import StageTime
from tilewright.service.api.schemas.jobs import JobView, TaskView
from tilewright.service.api.schemas.lookups import LookupEntry, LookupView, RecordView
from tilewright.service.api.schemas.workers import WorkerView
from tilewright.service.show.console import rich_table
from tilewright.service.show.messages import known_text, verdict_text
from tilewright.service.show.table import CellKind, Column, table
from tilewright.service.show.tables import jobs as columns
from tilewright.service.show.tables import tasks as task_columns
from tilewright.service.show.tables import workers
from tilewright.service.show.tables.tasks import comparison_text, task_lines
from tilewright.service.show.text import schedule_text
from tilewright.service.show.units import microseconds
from tilewright.tuner.events import Finished

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tilewright.service.jobs.evidence.end_to_end import SelectedSchedules


MOST_TASKS = 10
"""Default limit of the tasks in a table, the most expensive ones."""


def listed_tasks(tasks: Sequence[TaskView], verbose: bool) -> list[RenderableType]:
    """Return a table of a finished job's tasks, and lines of notes below it.

    The table has the tasks that take most time in one run of the model, at most `MOST_TASKS`. With
    `verbose` it has all tasks, even those without a measurement.
    """
    known = [task for task in tasks if task.best_seconds or task.default_seconds]
    shown = tasks if verbose else sorted(known, key=_cost, reverse=True)[:MOST_TASKS]
    parts: list[RenderableType] = [task_table(shown)] if shown else []
    if note := sizes_note([task.name for task in shown]):
        parts.append(note)
    if more := len(tasks) - len(shown):
        parts.append(f"and {more} more {'task' if more == 1 else 'tasks'}: -v shows all")
    if verbose and (suggested := origins_line(tasks)):
        parts.append(suggested)
    return parts


_OPEN = re.compile(r"(?<![a-jl-wyzA-Z])s\d+")
"""Matches a dynamic size in a workload's name, such as `s0` and `s1` in `matmul ks0 s1x64` and `add
s1xs0`, but not the end of an operator's name."""


def sizes_note(names: Sequence[str]) -> str:
    """Return a note that explains symbols of dynamic sizes in the names of workloads, such as `s0`.

    Returns "" if no name has such a symbol.
    """
    found = sorted({size for name in names for size in _OPEN.findall(name)})
    sizes = "a size of its workload" if len(found) == 1 else "sizes of their workload"
    return f"{', '.join(found)}: {sizes} that each run decides" if found else ""


def task_table(tasks: Sequence[TaskView]) -> Table:
    """Return a table of tasks.

    The task that takes most time in one run of the model comes first.
    """
    lines = sorted(task_lines(tasks), key=lambda line: -_cost(line.task))
    return rich_table(table(task_columns.TERMINAL, lines))


def job_table(jobs: Sequence[JobView]) -> Table:
    named = (columns.JOB, columns.STATE, columns.MODEL, columns.TARGET, columns.THREADS)
    counted = (columns.TASKS, columns.TRIALS, columns.BEST, columns.age(time.time()))
    return rich_table(table((*named, *counted), jobs))


def lookup_table(found: LookupView) -> Table:
    def of(text: Callable[[RecordView], str]) -> Callable[[LookupEntry], str]:
        return lambda entry: "-" if entry.record is None else text(entry.record)

    def error(record: RecordView) -> str:
        known = record.measurement.get("max_error")
        return "-" if known is None else f"{known:.1e}"

    described: tuple[Column[LookupEntry], ...] = (
        Column("workload", lambda entry: entry.name, CellKind.NAME),
        Column("key", lambda entry: entry.workload_key[:12], CellKind.TEXT),
        Column("count", lambda entry: str(entry.count)),
        Column("us", of(lambda record: microseconds(record.run_seconds))),
        Column("at least", of(lambda r: microseconds(r.interval.low if r.interval else None))),
        Column("vs incumbent", of(lambda r: comparison_text(r.measurement.get("comparison")))),
        Column("error", of(error)),
        Column("schedule", of(lambda record: schedule_text(record.schedule)), CellKind.CODE),
    )
    return rich_table(table(described, found.schedules))


def worker_table(listed: Sequence[WorkerView]) -> Table:
    """Return a table of workers, with each device's current speed relative to its best speed."""
    return rich_table(table(workers.TERMINAL, listed))


def selected_line(selected: SelectedSchedules) -> str:
    """Return a line that states which schedules a model uses, and why.

    The line also states how many of the model's workloads have a tuning record.
    """
    known = known_text(selected.known, selected.workloads, selected.related)
    if not (selected.known or selected.related):
        return f"end to end: {known}; the defaults are served"
    return f"end to end: {known}; {verdict_text(selected.verdict.to_json())}"


def timings_table(stages: Sequence[StageTime], title: str = "Time by stage") -> Table:
    """Return a table of compilation stages: the total milliseconds and executions of each."""
    described: tuple[Column[StageTime], ...] = (
        Column("stage", lambda stage: stage.stage, CellKind.TEXT),
        Column("ms", lambda stage: f"{stage.seconds * 1e3:.1f}"),
        Column("times", lambda stage: str(stage.count)),
    )
    return rich_table(table(described, stages, title))


def origins_line(tasks: Sequence[TaskView]) -> str:
    """Return a line that counts a job's candidates by origin, such as the search or the default.

    For each origin, the line also has the number of tasks whose fastest candidate came from it.
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
    """Return a line with the number and rate of screened candidates, and the seconds of the finals.

    Screening measures each candidate briefly. The finals then compare the fastest ones precisely.
    """
    screened = finished.screened
    if not screened.candidates:
        return "no candidates were measured"
    rate = screened.candidates / screened.seconds
    finals = finished.seconds_elapsed - screened.seconds
    return (
        f"{screened.candidates} candidates screened in {screened.seconds:.1f} s: {rate:.1f}/s; "
        f"finalists compared in {finals:.1f} s"
    )


def _cost(task: TaskView) -> float:
    return (task.best_seconds or task.default_seconds or 0.0) * task.count
