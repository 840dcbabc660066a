"""Data of a job's page, computed from REST results: tasks, bars of times, and the latency curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.service.api.schemas.jobs import CurveView, JobView, TaskView
from tilewright.service.show.chart import Chart
from tilewright.service.show.job_charts import OVER, curve_chart
from tilewright.service.show.messages import result_lines
from tilewright.service.show.tables.tasks import COLOURS, TaskLine, cost, task_lines
from tilewright.service.show.units import finite


@dataclass(frozen=True, slots=True)
class BarPart:
    """The part of a bar for one task. The length of the part shows the task's time.

    Attributes:
        left: the start of the part, in thousandths of the longest bar.
        width: the length of the part, in thousandths of the longest bar.
        colour: the number of the task's colour.
        title: the name, time and share of the task.
    """

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
    """The data of a job's page.

    Attributes:
        rows: the tasks in the page's table, the largest untuned time first.
        more: whether the job has further tasks.
        bars: a bar for the model's untuned time and one for its best time, divided into tasks.
        outcomes: the number of trials by outcome, such as "ok".
        lines: the lines of the job's report.
        race: the confidence interval (low, high) of tuned over untuned time of the whole model, or
            None before this comparison.
        untuned: the untuned time of the model, in seconds, or None.
        best: the best time of the model so far, in seconds, or None.
        measured: the number of tasks that `untuned` and `best` cover, if some tasks have no
            measurement; otherwise None.
        took: the time from the job's start to its end, in seconds, or None before the end.
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
        rows = task_lines(tasks)
        progress = job.progress
        worked = max(0, progress.trials_done - progress.trials_failed)
        untuned, best, measured = progress.default_seconds, progress.best_seconds, None
        known = [row.task for row in rows if finite(row.task.best_seconds)]
        if finite(best) is None and known and not more:
            untuned = math.fsum(cost(task, task.default_seconds) for task in known)
            best = math.fsum(cost(task, task.best_seconds) for task in known)
            measured = len(known)
        return cls(
            rows=rows,
            more=more,
            bars=_bars(rows, job.final),
            outcomes=(("ok", worked), *job.failures.items()) if progress.trials_done else (),
            lines=tuple(result_lines(job.result)) if job.result else (),
            race=race_interval(job),
            untuned=untuned,
            best=best,
            measured=measured,
            took=_took(job),
        )


def job_curves(job: JobView, curve: CurveView) -> dict[str, Chart]:
    """Return charts of the job's latency by x axis: over "trials" and over "seconds".

    Returns an empty dictionary before the first measurement.
    """
    target, race = finite(job.options.get("target_ms")), race_interval(job)
    charts = {over: curve_chart(curve, over, job.started_at, target, race) for over in OVER}
    return {over: chart for over, chart in charts.items() if chart is not None}


def _took(job: JobView) -> float | None:
    if job.started_at is None or job.finished_at is None:
        return None
    return max(0.0, job.finished_at - job.started_at)


def _bars(rows: Sequence[TaskLine], final: bool) -> tuple[TimeBar, ...]:
    """Return a bar for the model's untuned time and one for its best time, divided into tasks.

    A bar without any known time is left out. `final` is whether the job has ended.
    """
    best = "best" if final else "best so far"
    times = [
        ("untuned", [cost(row.task, row.task.default_seconds) for row in rows]),
        (best, [cost(row.task, row.task.best_seconds) for row in rows]),
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
    """Return the confidence interval (low, high) of tuned over untuned time of the whole model.

    The device measures both programs in turn. Returns None without this comparison.
    """
    verdict = (job.result or {}).get("end_to_end") or {}
    comparison = verdict.get("comparison")
    return (comparison["low"], comparison["high"]) if comparison else None
