"""Columns of tables of a job's tasks. A multiply-add (MAC) counts as two operations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.service.api.schemas.jobs import TaskView
from tilewright.service.show.table import Cell, CellKind, Column
from tilewright.service.show.text import schedule_text
from tilewright.service.show.units import (
    count,
    finite,
    gain,
    microseconds,
    percent,
    ratio,
    speedups,
)

COLOURS = 8
"""Number of tasks with a separate colour on pages. All others share one colour."""


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task with facts that depend on the other tasks of its table.

    Attributes:
        task: the task.
        best_share: the task's fraction of the model's best time, from 0 to 1; None if the time is
            unknown.
        of_roofline: the shortest time that the device's roofline allows, divided by the task's best
            time; None if one of the times is unknown.
        colour: the number of the task's colour on pages, from 0. All tasks after the first
            `COLOURS` ones share the number `COLOURS`.
        namesake: whether another task has the same name, because names omit some properties.
    """

    task: TaskView
    best_share: float | None
    of_roofline: float | None
    colour: int
    namesake: bool


def task_lines(tasks: Sequence[TaskView]) -> tuple[TaskLine, ...]:
    """Return the rows of a table of tasks. The task with the largest untuned time comes first.

    The order does not change while the job runs.
    """
    before = [cost(task, task.default_seconds) for task in tasks]
    after = [cost(task, task.best_seconds) for task in tasks]
    whole_after = sum(after) or 1.0
    called = Counter(task.name for task in tasks)
    # ordered by untuned times, which do not change while the job runs: rows and colours stay
    order = sorted(range(len(tasks)), key=lambda n: (-before[n], n))
    return tuple(
        TaskLine(
            task=tasks[number],
            best_share=after[number] / whole_after if after[number] else None,
            of_roofline=ratio(tasks[number].facts.get("bound_seconds"), tasks[number].best_seconds),
            colour=min(place, COLOURS),
            namesake=called[tasks[number].name] > 1,
        )
        for place, number in enumerate(order)
    )


def cost(task: TaskView, seconds: float | None) -> float:
    """Return the time that a task contributes to one run of the model, in seconds.

    `seconds` is the time of one run of the task. If it is None, the task's best or else untuned
    time is used. The result is 0 without any time.
    """
    known = seconds or task.best_seconds or task.default_seconds or 0.0
    found = known * runs_of(task)
    return found if math.isfinite(found) and found > 0.0 else 0.0


def runs_of(task: TaskView) -> float:
    """Return how often one run of the model executes the task.

    It is computed from `weight`, which counts the operations of all these executions together.
    """
    runs = task.weight / max(1, finite(task.facts.get("flops")) or 0)
    return runs if math.isfinite(runs) and runs > 0.0 else 0.0


def comparison_text(comparison: Mapping[str, Any] | None) -> str:
    """Return the speed-up of a task's new schedule over the earlier one, with a confidence
    interval.

    Returns "kept" if `comparison` is None, because no new schedule replaced the earlier one.
    """
    return "kept" if comparison is None else speedups(comparison)


def _trials(line: TaskLine) -> str:
    """Return a task's number of trials, or the reason why it has none.

    The reason is "known" if the task's schedule was in the database. It is "relative's" if the
    schedule was borrowed from a task that differs only in numbers such as scales.
    """
    task = line.task
    if task.status == "cached":
        return "known"
    return "relative's" if task.facts.get("relative") and not task.trials else str(task.trials)


def _rate(operations: float | None, seconds: float | None) -> str:
    return f"{operations / seconds / 1e9:.1f}" if operations and seconds else "-"


def _incumbent(line: TaskLine) -> str:
    facts = line.task.facts
    return comparison_text(facts["comparison"]) if "comparison" in facts else "-"


def _workload(line: TaskLine) -> Cell:
    """Return a cell with the task's name and a link to its page.

    If other tasks have the same name, the cell also has the task's key.
    """
    task = line.task
    link = f"jobs/{task.job_id}/tasks/{task.workload_key}"
    return Cell(task.name, link, key=task.workload_key if line.namesake else "")


def _share(line: TaskLine) -> Cell:
    return Cell(percent(line.best_share), share=(line.best_share or 0.0, line.colour))


TaskColumn = Column[TaskLine]

WORKLOAD = TaskColumn("workload", _workload, CellKind.NAME)
COUNT = TaskColumn("count", lambda line: count(line.task.count))
SHARE = TaskColumn("share", _share)
DEFAULT = TaskColumn("default us", lambda line: microseconds(line.task.default_seconds))
BEST = TaskColumn("best us", lambda line: microseconds(line.task.best_seconds))
GAIN = TaskColumn(
    "vs default", lambda line: gain(line.task.default_seconds, line.task.best_seconds)
)
INCUMBENT = TaskColumn("vs incumbent", _incumbent)
RATE = TaskColumn(
    "GFLOP/s", lambda line: _rate(line.task.facts.get("flops"), line.task.best_seconds)
)
EXECUTED = TaskColumn(
    "executed", lambda line: _rate(line.task.facts.get("executed_flops"), line.task.best_seconds)
)
ROOFLINE = TaskColumn("of roofline", lambda line: percent(line.of_roofline, 0))
TRIALS = TaskColumn("trials", _trials)
FORECAST = TaskColumn(
    "a minute gains",
    lambda line: percent(line.task.facts.get("forecast_gain")),
    hint="Expected gain of a minute of trials of this task alone, of the model's time",
)
STATE = TaskColumn("state", lambda line: line.task.status, CellKind.STATE)
SCHEDULE = TaskColumn(
    "schedule", lambda line: schedule_text(line.task.facts.get("schedule")), CellKind.CODE
)

TERMINAL = (WORKLOAD, COUNT, DEFAULT, BEST, INCUMBENT, RATE, EXECUTED, TRIALS, SCHEDULE)
NOTEBOOK = (WORKLOAD, COUNT, DEFAULT, BEST, SHARE, TRIALS, SCHEDULE)
PAGE = (WORKLOAD, COUNT, SHARE, DEFAULT, BEST, GAIN, ROOFLINE, TRIALS, STATE)
RUNNING_PAGE = (*PAGE[:-1], FORECAST, STATE)
