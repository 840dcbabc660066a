"""Figures of a job's page: numbers and bars, computed from REST answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.service.api.schemas.jobs import CurveView, JobView, TaskView
from tilewright.service.dashboard.figures import ratio
from tilewright.service.difference import runs_of
from tilewright.service.messages import result_lines
from tilewright.service.units import finite

COLOURS = 8
"""Number of tasks with a separate colour in the bars. All others share one colour."""


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A row of the table of tasks.

    Attributes:
        task: the task.
        best_share: its share of the model's best time, 0 to 1; None before a measurement.
        of_roofline: its bound by the device's roofline divided by its best time.
        colour: its colour in the bars, from 0; `COLOURS` for all tasks that share one.
        namesake: whether another task has the same name. They differ in something that names omit.
    """

    task: TaskView
    best_share: float | None
    of_roofline: float | None
    colour: int
    namesake: bool


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar. `left` and `width` are in thousandths of the longest bar."""

    left: float
    width: float
    colour: int
    title: str


@dataclass(frozen=True, slots=True)
class TimeBar:
    name: str
    seconds: float
    segments: tuple[BarPart, ...]


@dataclass(frozen=True, slots=True)
class JobFigures:
    """The figures of a job.

    `rows` are tasks, the most expensive first; `more` is whether the job has others. `untuned` and
    `best` are times of the model in seconds. If only some tasks have a measurement, both cover
    these tasks, and `measured` is their number; otherwise `measured` is None. `took` is the time
    from the job's start to its end, in seconds.
    """

    rows: tuple[TaskLine, ...]
    more: bool
    bars: tuple[TimeBar, ...]
    outcomes: tuple[tuple[str, int], ...]
    lines: tuple[str, ...]
    race: tuple[float, float] | None
    untuned: float | None
    best: float | None
    measured: int | None
    took: float | None

    @classmethod
    def of(cls, job: JobView, tasks: Sequence[TaskView], more: bool) -> JobFigures:
        rows = _rows(tasks)
        progress = job.progress
        worked = max(0, progress.trials_done - progress.trials_failed)
        untuned, best, measured = progress.default_seconds, progress.best_seconds, None
        known = [row.task for row in rows if finite(row.task.best_seconds)]
        if finite(best) is None and known and not more:
            untuned = math.fsum(_cost(task, task.default_seconds) for task in known)
            best = math.fsum(_cost(task, task.best_seconds) for task in known)
            measured = len(known)
        return cls(
            rows=rows,
            more=more,
            bars=_bars(rows),
            outcomes=(("ok", worked), *job.failures.items()) if progress.trials_done else (),
            lines=tuple(result_lines(job.result)) if job.result else (),
            race=race_interval(job),
            untuned=untuned,
            best=best,
            measured=measured,
            took=_took(job),
        )


def drawn_curve(curve: CurveView) -> dict[str, Any]:
    """Return the curve as compact JSON data: points (time, trials, untuned and best seconds)."""
    points = [
        [p.at, p.trials, finite(p.default_seconds), finite(p.best_seconds)] for p in curve.points
    ]
    known = any(untuned is not None or best is not None for _, _, untuned, best in points)
    return {"sequence": curve.sequence, "points": points, "drawn": known}


def frame(job: JobView) -> dict[str, Any]:
    """Return the curve's annotations: its start, the target latency, the end-to-end interval."""
    target = job.options.get("target_ms")
    return {"start": job.started_at, "target": target, "race": race_interval(job)}


def _took(job: JobView) -> float | None:
    if job.started_at is None or job.finished_at is None:
        return None
    return max(0.0, job.finished_at - job.started_at)


def _rows(tasks: Sequence[TaskView]) -> tuple[TaskLine, ...]:
    before = [_cost(task, task.default_seconds) for task in tasks]
    after = [_cost(task, task.best_seconds) for task in tasks]
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


def _cost(task: TaskView, seconds: float | None) -> float:
    """Return the time of all runs of a task in one inference, in seconds.

    If `seconds` is unknown, the task's best or default time takes its place.
    """
    known = seconds or task.best_seconds or task.default_seconds or 0.0
    cost = known * runs_of(task)
    return cost if math.isfinite(cost) and cost > 0.0 else 0.0


def _bars(rows: Sequence[TaskLine]) -> tuple[TimeBar, ...]:
    """Return bars of the model's untuned and best time, divided into tasks."""
    times = [
        ("untuned", [_cost(row.task, row.task.default_seconds) for row in rows]),
        ("best so far", [_cost(row.task, row.task.best_seconds) for row in rows]),
    ]
    known = [(name, seconds) for name, seconds in times if 0.0 < sum(seconds) < math.inf]
    longest = max((sum(seconds) for _, seconds in known), default=0.0)
    return tuple(_bar(name, seconds, rows, longest) for name, seconds in known)


def _bar(name: str, seconds: Sequence[float], rows: Sequence[TaskLine], longest: float) -> TimeBar:
    segments, left, whole = [], 0.0, sum(seconds)
    shown = [(s, row.colour, row.task.name) for s, row in zip(seconds, rows, strict=True)]
    rest = sum(s for s, colour, _ in shown if colour == COLOURS)
    shown = [each for each in shown if each[1] < COLOURS and each[0]]
    if rest:
        shown.append((rest, COLOURS, "all others"))
    for each, colour, title in shown:
        width = 1000.0 * each / longest
        said = f"{title}: {each * 1e3:.3f} ms, {100 * each / whole:.1f} %"
        segments.append(BarPart(left, width, colour, said))
        left += width
    return TimeBar(name, whole, tuple(segments))


def race_interval(job: JobView) -> tuple[float, float] | None:
    """Return the interval of tuned / untuned time of the whole model, measured on the device."""
    verdict = (job.result or {}).get("end_to_end") or {}
    comparison = verdict.get("comparison")
    return (comparison["low"], comparison["high"]) if comparison else None
