"""Report on the runs of two tuners: speed-ups, tables, CSV and plots.

A factor is TVM's time over ours; above 1, ours is faster. Both times are medians over the seeds of
the best result after the same number of trials or of seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.curves import draw_quarters, figure, write_csv
from benchmarks.metaschedule_runs import Engine, Run
from benchmarks.report import Origin, markdown_table

UNTUNED = "°"
"""Marks a time that includes untuned kernels, because they were not measured yet."""


class Axis(StrEnum):
    """The budget in which the tuners are compared: equal numbers of trials, or equal seconds."""

    TRIALS = "trials"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Side:
    """One tuner's best model time in seconds after a number of trials or of seconds.

    The time is the median over the tuner's runs.
    """

    seconds: float
    untuned: bool
    """Whether any of the runs has a kernel without a measurement."""

    def cell(self) -> str:
        return f"{self.seconds * 1e3:.3g}{UNTUNED if self.untuned else ''}"


@dataclass(frozen=True, slots=True)
class Factor:
    """The times of both engines after the same number of trials or seconds (`at`).

    `value` is TVM's time over ours.
    """

    at: float
    ours: Side
    theirs: Side

    @property
    def value(self) -> float:
        return self.theirs.seconds / self.ours.seconds

    def cell(self) -> str:
        return f"{self.value:.2f} ({self.ours.cell()} / {self.theirs.cell()})"


@dataclass(frozen=True, slots=True)
class Raced:
    """Result of racing both tuners' best programs against each other.

    `ratio` is the median over the rounds of TVM's time over ours, and `minimum_ratio` the ratio of
    the fastest runs. `seeds` are the seeds of the best run of each engine.
    """

    seeds: tuple[int, int]
    ratio: float | None = None
    minimum_ratio: float | None = None
    error: str = ""

    def cell(self) -> str:
        if self.ratio is None or self.minimum_ratio is None:
            return f"cannot run: {' '.join(self.error.split())}".replace("|", "\\|")
        return f"{self.ratio:.2f} ({self.minimum_ratio:.2f})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs of one model, each at most `seconds` long, and the race of the two best results."""

    model: str
    seconds: float
    runs: tuple[Run, ...]
    raced: Raced

    def of(self, engine: Engine) -> list[Run]:
        return [run for run in self.runs if run.engine is engine]

    def factor(self, axis: Axis, at: float) -> Factor | None:
        """Compare the best times of Tilewright and TVM after the same number of trials or seconds.

        `at` is this number, and `axis` says whether it counts trials or seconds. The result is None
        if a run ended earlier, or has no time at that point.
        """
        ours, theirs = (_side(self.of(engine), axis, at) for engine in Engine)
        return None if ours is None or theirs is None else Factor(at, ours, theirs)

    def points(self, axis: Axis) -> list[float]:
        """The numbers of trials, or times in seconds, at which the best time of a run may change.

        For trials, these are 1, 2, and so on, up to the length of the longest run. For seconds,
        these are the times at which a candidate was measured within the time budget. `axis` selects
        trials or seconds.
        """
        match axis:
            case Axis.TRIALS:
                return [float(n) for n in range(1, max(len(run.samples) for run in self.runs) + 1)]
            case Axis.SECONDS:
                times = {sample.wall_seconds for run in self.runs for sample in run.samples}
                return sorted(time for time in times if time <= self.seconds)

    def factors(self, axis: Axis) -> list[Factor]:
        """Comparisons of Tilewright with TVM at every number of trials, or every time in seconds.

        Numbers and times that some run did not reach are omitted. `axis` selects trials or seconds.
        """
        found = (self.factor(axis, at) for at in self.points(axis))
        return [factor for factor in found if factor is not None]

    def passed(self, axis: Axis) -> float | None:
        """The number of trials, or time in seconds, at which Tilewright reaches TVM's final time.

        At this point, Tilewright's best time is at most TVM's best time at the end of its runs.
        `axis` selects trials or seconds. The result is None if Tilewright never reaches TVM's time.
        """
        last = _side(self.of(Engine.TVM), Axis.SECONDS, self.seconds)
        for at in [0.0, *self.points(axis)]:
            ours = _side(self.of(Engine.OURS), axis, at)
            if ours is not None and last is not None and ours.seconds <= last.seconds:
                return at
        return None


def _side(runs: Sequence[Run], axis: Axis, at: float) -> Side | None:
    points = _points(runs, axis, at)
    if not points:
        return None
    return Side(median(seconds for seconds, _ in points), any(untuned for _, untuned in points))


def _points(runs: Sequence[Run], axis: Axis, at: float) -> list[tuple[float, int]]:
    """Each run's best model time in seconds, and its number of untuned kernels.

    Both are taken after `at` trials or `at` seconds, as `axis` says. The list is empty unless every
    run got that far and has a time.
    """
    found = []
    for run in runs:
        point = run.after_trials(int(at)) if axis is Axis.TRIALS else run.after_seconds(at)
        if point is None or point.seconds is None:
            return []
        found.append((point.seconds, point.untuned))
    return found


def markdown(
    rows: Sequence[Comparison],
    at_trials: Sequence[int],
    at_seconds: Sequence[float],
    origin: Origin,
) -> str:
    """The benchmark's report in Markdown: an overview, tables, and the errors of failed runs.

    The tables compare both tuners at the given numbers of trials and of seconds.
    """
    commits = ", ".join(sorted({run.commit for row in rows for run in row.runs}))
    parts = [
        "# Beside TVM's MetaSchedule",
        f"{origin.sentence()} Runs of commit {commits}.",
        "Both tuners have the same trials and the same wall time, counted from when their imports "
        "are done; a time is the sum over a model's kernels of the best known, median over the "
        "seeds, by the CPU time of one thread. Factors are TVM's time over ours (ours / TVM's in "
        f"ms). {UNTUNED}: in some run a kernel was not measured yet, and counts with the time that "
        "it takes untuned: ours by the default schedule, TVM's as its pipeline for CPUs compiles "
        "it, which applies no schedule. -: in its time one of the two made fewer trials, or was "
        "given no more.",
        _overview(rows),
        "At equal trials:",
        _table(rows, Axis.TRIALS, at_trials),
        "At equal seconds:",
        _table(rows, Axis.SECONDS, at_seconds),
    ]
    for row in rows:
        parts += _failures(row)
    return "\n\n".join(parts) + "\n"


def _overview(rows: Sequence[Comparison]) -> str:
    header = [
        "model",
        "seeds, ours / TVM",
        "trials, ours / TVM",
        "seconds to the last, ours / TVM",
        "least factor at equal trials",
        "least factor at equal seconds",
        "ours passes TVM's last at trial",
        "at second",
        "raced, median (minima)",
    ]
    cells = []
    for row in rows:
        sides = [row.of(engine) for engine in Engine]
        line = [row.model, " / ".join(str(len(runs)) for runs in sides)]
        line.append(" / ".join(_median(runs, _trials) for runs in sides))
        line.append(" / ".join(_median(runs, _last) for runs in sides))
        for axis in Axis:
            least = min(row.factors(axis), key=lambda factor: factor.value, default=None)
            line.append("-" if least is None else f"{least.value:.2f} at {least.at:.0f}")
        for axis in Axis:
            passed = row.passed(axis)
            line.append("-" if passed is None else f"{passed:.0f}")
        line.append(row.raced.cell())
        cells.append(line)
    return markdown_table(header, cells, 1)


def _trials(run: Run) -> float:
    return len(run.samples)


def _last(run: Run) -> float:
    return run.samples[-1].wall_seconds if run.samples else 0.0


def _median(runs: Sequence[Run], value: Callable[[Run], float]) -> str:
    return f"{median(value(run) for run in runs):.0f}" if runs else "-"


def _table(rows: Sequence[Comparison], axis: Axis, at: Sequence[float]) -> str:
    cells = []
    for row in rows:
        line = [row.model]
        for point in at:
            inside = axis is Axis.TRIALS or point <= row.seconds
            factor = row.factor(axis, point) if inside else None
            line.append("-" if factor is None else factor.cell())
        cells.append(line)
    unit = "s" if axis is Axis.SECONDS else "trials"
    return markdown_table(["model", *(f"{point:g} {unit}" for point in at)], cells, 1)


def _failures(row: Comparison) -> Iterator[str]:
    """Yield paragraphs with the last error of TVM's candidates, and the errors of failed runs."""
    theirs = row.of(Engine.TVM)
    errors = [sample.error for run in theirs for sample in run.samples if sample.error]
    if errors:
        yield f"{row.model}: {len(errors)} candidates of TVM failed, the last with:"
        yield f"```\n{errors[-1]}\n```"
    for run in row.runs:
        if run.failure:
            yield f"{row.model}, {run.engine}, seed {run.seed} broke off:"
            yield f"```\n{run.failure}\n```"


def write_samples(rows: Sequence[Comparison], path: Path) -> None:
    """Write a gzip-compressed CSV file with a line per trial, and a line with trial 0 for the
    untuned kernels of each run.
    """
    header = ["model", "engine", "seed", "trial", "wall_seconds", "kernel", "kernel_seconds"]
    write_csv(path, [*header, "model_seconds", "untuned_kernels"], _lines(rows))


def _lines(rows: Sequence[Comparison]) -> Iterator[list[str]]:
    for row in rows:
        for run in row.runs:
            kernels = ["", *(str(sample.task) for sample in run.samples)]
            times = [None, *(sample.seconds for sample in run.samples)]
            for point, kernel, seconds in zip(run.curve, kernels, times, strict=True):
                yield [
                    run.model,
                    run.engine,
                    str(run.seed),
                    str(point.trials),
                    f"{point.wall_seconds:.3f}",
                    kernel,
                    _digits(seconds),
                    _digits(point.seconds),
                    str(point.untuned),
                ]


def _digits(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.6g}"


def plot(rows: Sequence[Comparison], path: Path) -> None:
    """Plot each model's best time so far over trials and over seconds, for both engines."""
    with figure(path, len(rows), 2) as axes:
        for number, row in enumerate(rows):
            for axis, drawn in zip(Axis, axes[2 * number : 2 * number + 2], strict=True):
                for engine in Engine:
                    _draw(drawn, row, axis, engine)
                unit = "trials" if axis is Axis.TRIALS else "seconds since the start"
                drawn.set(xlabel=unit, ylabel="ms, median and quarters", title=row.model)
                drawn.set_yscale("log")
                drawn.legend()


def _draw(drawn: Any, row: Comparison, axis: Axis, engine: Engine) -> None:
    steps: list[float] = []
    values: list[list[float]] = []
    for at in [0.0, *row.points(axis), *([row.seconds] if axis is Axis.SECONDS else [])]:
        points = _points(row.of(engine), axis, at)
        if points:
            if values:  # what was best stays so until the next step
                steps.append(at)
                values.append(values[-1])
            steps.append(at)
            values.append([seconds * 1e3 for seconds, _ in points])
    if steps:
        draw_quarters(drawn, steps, values, engine.value)
