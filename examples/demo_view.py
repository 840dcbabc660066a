"""Formatting of the demo's output: the progress of a job, and tables of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tilewright.service.api.schemas.jobs import ProgressView, TaskView
from tilewright.service.show.console import rich_table
from tilewright.service.show.progress import progress_line
from tilewright.service.show.table import Column, table
from tilewright.service.show.tables.tasks import INCUMBENT, TERMINAL, TaskLine, task_lines
from tilewright.service.show.units import duration, milliseconds

NUMERICS = {
    "strict": "no algorithm that rounds differently",
    "fast": "Winograd and Strassen where they are faster",
    "loose": "Winograd's F(6), too, which loses more than a digit",
}
"""For each kind of numerics, a description of the algorithms that it adds or excludes."""


def progress_view(progress: ProgressView, more: Mapping[str, Any]) -> RenderableType:
    """Format the progress of a running job as text with a progress bar of its trials.

    `more` has further data of the progress event.
    """
    budget = progress.trials_budget or 1
    bar = ProgressBar(total=budget, completed=min(progress.trials_done, budget), width=60)
    return Group(Text(progress_line(progress, more)), bar)


def task_table(tasks: Sequence[TaskView], peak_flops: float) -> Table:
    """Return a table of the job's tasks that have been measured, slowest first.

    The caption states the number of other tasks. The column `% of peak` counts the operations that
    a kernel executes, which may be fewer than those of the workload's arithmetic (Winograd).

    Args:
        tasks: the tasks of the job.
        peak_flops: the measured peak of the cores in use, in FLOP/s.
    """
    timed = sorted((each for each in task_lines(tasks) if cost(each.task) > 0), key=_dearest)

    def share(line: TaskLine) -> str:
        rate = _rate(line.task.facts.get("executed_flops"), line.task.best_seconds)
        return "-" if rate is None else f"{100 * rate / peak_flops:.1f}"

    *known, trials, schedule = (each for each in TERMINAL if each is not INCUMBENT)
    columns = (*known, Column[TaskLine]("% of peak", share), trials, schedule)
    title = f"Tasks (this machine's peak: {peak_flops / 1e9:.0f} GFLOP/s)"
    made = rich_table(table(columns, timed, title))
    if len(timed) < len(tasks):
        made.caption = f"{len(tasks) - len(timed)} smaller ones keep their defaults: no time left"
        made.caption_justify = "left"
    return made


def _dearest(line: TaskLine) -> float:
    return -cost(line.task)


def summary(tasks: Sequence[TaskView], progress: ProgressView, seconds: float) -> str:
    """Return a sentence with the trials, the time of the job, and the total time of its kernels."""
    known = sum(task.status == "cached" for task in tasks)
    if known == len(tasks) and progress.trials_done == 0:
        return "every task was answered from the database, no trial was spent"
    both = [task for task in tasks if task.default_seconds and task.best_seconds]
    untuned = sum((task.default_seconds or 0.0) * task.count for task in both)
    return (
        f"{progress.trials_done} trials ({progress.trials_failed} failed) in a job of "
        f"{duration(seconds)}; kernels that were measured: {milliseconds(untuned)} untuned, "
        f"{milliseconds(sum(map(cost, both)))} tuned; "
        f"{known} of {len(tasks)} tasks answered from the database"
    )


def race_table(rows: Sequence[tuple[str, float, float, float | None, float | None]]) -> Table:
    """Return a table that compares engines.

    Each row has the engine's name, its median and minimum time in seconds, the ratio of its time to
    ONNX Runtime's, and its largest error.
    """
    table = Table(title="End to end", title_justify="left", header_style="bold", box=None)
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


def differs(found: Mapping[str, Any] | None) -> bool:
    """Whether a job's artifact uses tuned schedules, because they were faster in the whole model.

    `found` is `end_to_end` of the job's result.
    """
    return found is not None and found["served"] != "default" and found["comparison"] is not None


def verdict(
    name: str,
    found: Mapping[str, Any] | None,
    numerics: str,
    ratio: float | None,
    error: float | None,
    again: float | None = None,
) -> str:
    """Return a sentence about the gain of tuning, the speed, and the error.

    Both the job and the demo may have compared the tuned program with the untuned one. Only the
    job's comparison has a confidence interval; the demo's has too few rounds.

    Args:
        name: the model and the target.
        found: the job's comparison: the entry `end_to_end` of the job's result; None without one.
        numerics: how freely the job may use algorithms that round differently: "strict", "fast" or
            "loose".
        ratio: the time of the artifact's program, divided by ONNX Runtime's time.
        error: the largest difference from ONNX Runtime, divided by the largest output.
        again: the demo's comparison: the time of the tuned program divided by that of the untuned
            one; None if the demo did not measure both.
    """
    compared = None if found is None else found["comparison"]
    if compared is None:
        brought = "in this time tuning found no schedule that is faster than the untuned ones"
    else:
        low, high = 1.0 - compared["high"], 1.0 - compared["low"]
        here = "" if again is None else f"; {1.0 - again:.1%} in this one"
        between = f"({low:.1%} to {high:.1%} by the job's own race{here})"
        brought = (
            f"tuning took {1.0 - compared['ratio']:.1%} off the untuned time {between}"
            if differs(found)
            else f"tuning did not show that it gains anything as a whole {between}, so the untuned "
            "code is served"
        )
    times = "" if ratio is None else f"; it is {1.0 / ratio:.2f} times as fast as ONNX Runtime"
    far = "unknown" if error is None else f"{error:.0e} of the largest output"
    return (
        f"{name}: {brought}{times}. Numerics '{numerics}' ({NUMERICS[numerics]}); largest "
        f"difference from ONNX Runtime: {far}"
    )


def cost(task: TaskView) -> float:
    """Return the total time of a task's kernels in one run of the model, in seconds."""
    return (task.best_seconds or task.default_seconds or 0.0) * task.count


def _rate(amount: float | None, seconds: float | None) -> float | None:
    return amount / seconds if amount and seconds else None
