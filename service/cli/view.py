"""Tables and progress lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from compiler.ranges import default_ranges_text
from compiler.runtime.ports import ranges_text
from compiler.timings import StageTime
from db.standing import Backing
from service.api.schemas.jobs import JobView, ProgressView, TaskView
from service.api.schemas.lookups import LookupView
from service.api.schemas.workers import WorkerCondition, WorkerView
from service.cli.common import duration, milliseconds
from service.sentences import one_sentence
from tuner.events import Ended, Finished
from tuner.forecast import Forecast

if TYPE_CHECKING:
    from service.jobs.no_regret import Settled
    from service.jobs.planning import Planned


def make_table(*columns: str, title: str | None = None) -> Table:
    """A table whose columns are to the right but for those that start with '<'."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for name in columns:
        left = name.startswith("<")
        table.add_column(name.lstrip("<"), justify="left" if left else "right", no_wrap=not left)
    return table


def microseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:,.1f}"


def schedule_text(schedule: Mapping[str, Any] | None) -> str:
    """The algorithm and its knobs on one line."""
    if not schedule:
        return "-"
    choices = schedule.get("choices", {})
    return " ".join([str(schedule["algorithm"]), *(f"{k}={v}" for k, v in choices.items())])


def task_table(tasks: Sequence[TaskView]) -> Table:
    """The tasks of a job, the most expensive first; rates count a MAC as two operations."""
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
    for task in sorted(tasks, key=_cost, reverse=True):
        table.add_row(
            Text(task.name),
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
            job.id,
            job.state.replace("_", " "),
            job.model[:12],
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


def comparison_text(comparison: Mapping[str, Any] | None) -> str:
    """The ratio to the incumbent with its interval; the incumbent itself has none."""
    if comparison is None:
        return "kept"
    return f"{comparison['ratio']:.3f} ({comparison['low']:.3f}-{comparison['high']:.3f})"


def worker_table(workers: Sequence[WorkerView]) -> Table:
    """The workers, and how fast their devices are just now compared with their best."""
    table = make_table(
        "<worker", "<name", "<health", "in hand", "targets", "arithmetic", "memory", "<state"
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
            str(len(worker.target_keys)),
            "-" if speed is None else f"{speed.arithmetic_ratio:.2f}",
            "-" if speed is None else f"{speed.memory_ratio:.2f}",
            Text(state),
            Text(condition_text(worker.condition)),
        )
    return table


def condition_text(condition: WorkerCondition | None) -> str:
    """`61 °C, load 3.2, clock 85 %, powersave`: what the system of a device says of it."""
    if condition is None:
        return "-"
    parts = []
    if condition.temperature_celsius is not None:
        parts.append(f"{condition.temperature_celsius:.0f} °C")
    if condition.load is not None:
        parts.append(f"load {condition.load:.1f}")
    if condition.clock_ratio is not None:
        parts.append(f"clock {100 * condition.clock_ratio:.0f} %")
    return one_sentence(", ".join([*parts, *filter(None, [condition.governor])])) or "-"


def verdict_text(verdict: Mapping[str, Any]) -> str:
    """What is served, and how the tuned program did against the untuned one."""
    served = {
        "tuned": "the tuned schedules are served",
        "partly": f"{len(verdict['dropped'])} tasks fall back to their defaults",
        "default": "the defaults are served",
    }[verdict["served"]]
    comparison = verdict["comparison"]
    if comparison is None:
        return f"{served}; {verdict['reason']}"
    backing = verdict.get("backing")
    return (
        f"{served}; tuned / untuned {comparison['ratio']:.3f} "
        f"({comparison['low']:.3f} to {comparison['high']:.3f}, {verdict['outcome']})"
        + (f"; {verdict['reason']}" if verdict["reason"] else "")
        + (f"; {Backing(backing).sentence}" if backing and Backing(backing).weak else "")
    )


def failures_text(failures: Mapping[str, int]) -> str:
    """Trials that failed, by kind: "2 crash, 1 build error"; "none" where none did."""
    kinds = (f"{count} {kind.replace('_', ' ')}" for kind, count in failures.items())
    return ", ".join(kinds) or "none"


def settled_line(settled: Settled) -> str:
    """How many schedules of a model are known, which of them are served, and why."""
    known = known_text(settled.known, settled.workloads, settled.related)
    return f"end to end: {known}; {verdict_text(settled.verdict.to_json())}"


def known_text(known: int, workloads: int, related: int) -> str:
    """How many workloads have a record, of their own or of a relative."""
    return f"{known} of {workloads} workloads known" + (
        f", {related} by relatives" if related else ""
    )


def range_lines(planned: Sequence[Planned]) -> list[str]:
    """What ranges of sizes an artifact serves, and which of them nobody gave."""
    if planned[0].stages is not None:
        return [f"the data decide sizes: {len(planned)} programs, run in stages"]
    lines = []
    for each in planned:
        if each.open is not None:
            lines.append(f"one program for {ranges_text(each.open.ranges)}")
            ranges = [d for d in each.open.ranges if d.name in each.open.defaults]
            lines.append(default_ranges_text(ranges))
    return [line for line in lines if line]


def timings_table(stages: Sequence[StageTime], title: str = "Time by stage") -> Table:
    """Milliseconds and runs of every stage, in their order."""
    table = make_table("<stage", "ms", "times", title=title)
    for stage in stages:
        table.add_row(stage.stage, f"{stage.seconds * 1e3:.1f}", str(stage.count))
    return table


def origins_line(tasks: Sequence[TaskView]) -> str:
    """Where a job's candidates and the fastest one of each task came from; "" without trials."""
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
    """How fast candidates came, from the first proposal to the last one screened."""
    screened = finished.screened
    if not screened.candidates:
        return "no candidates were measured"
    rate = screened.candidates / screened.seconds
    finals = finished.seconds_elapsed - screened.seconds
    return (
        f"{screened.candidates} candidates screened in {screened.seconds:.1f} s: {rate:.1f}/s; "
        f"finalists compared in {finals:.1f} s"
    )


def ending_text(
    ended: str, forecast: Mapping[str, Any] | None, error: Mapping[str, Any] | None
) -> str:
    """Why a run ended, what going on was expected to gain, and how well forecasts came true."""
    line = {
        Ended.KNOWN: "everything was known",
        Ended.TRIALS: "the trials are spent",
        Ended.TIME: "the time is over",
        Ended.GAIN: "little is left to gain",
        Ended.TARGET: "the target is met",
        Ended.SPACES: "there is nothing left to try",
        Ended.DEVICE: "the device was lost",
        Ended.CANCELLED: "cancelled",
    }[Ended(ended)]
    if forecast is not None:
        line += f"; {Forecast(**forecast)}"
    if error is not None:
        line += (
            f" (forecasts so far: {100 * error['expected']:.1f} % on average, "
            f"{100 * error['gained']:.1f} % came)"
        )
    return line


def progress_line(progress: ProgressView, more: Mapping[str, Any]) -> str:
    """Phase, tasks, trials, best latency so far, time left."""
    parts = [
        f"{progress.phase or 'waiting'}",
        f"tasks {progress.tasks_done}/{progress.tasks_total}",
        f"trials {progress.trials_done}/{progress.trials_budget}",
        f"best {milliseconds(progress.best_seconds)} "
        f"(untuned {milliseconds(progress.default_seconds)})",
    ]
    rate = more.get("candidates_per_second")
    if isinstance(rate, float):
        parts.append(f"{rate:.1f}/s")
    if progress.forecast_gain is not None:
        parts.append(f"next minute -{100 * progress.forecast_gain:.1f} %")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    if more.get("workers") == 0:
        parts.append("no worker yet")
    return "  ".join(parts)


def _trials(task: TaskView) -> str:
    """Its trials; or why it has none: it was known, or searched as one that does the same."""
    if task.status == "cached":
        return "known"
    return "relative's" if task.facts.get("relative") and not task.trials else str(task.trials)


def _cost(task: TaskView) -> float:
    return (task.best_seconds or task.default_seconds or 0.0) * task.count


def _rate(operations: float | None, seconds: float | None) -> str:
    return f"{operations / seconds / 1e9:.1f}" if operations and seconds else "-"
