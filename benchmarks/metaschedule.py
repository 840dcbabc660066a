"""Our tuner beside TVM's MetaSchedule: `python -m benchmarks.metaschedule --tvm PYTHON`.

Both tune the same ONNX files on this machine, one after the other, within the same trials and the
same wall time, and report the best time known after each batch: a kernel's, or the sum over a
model's kernels. Each measures in its own way (TVM's kernels are timed with warm weights, ours with
what a model leaves in the caches), so what both made is raced in turns at the end. Results go to
benchmarks/results/metaschedule.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import onnx

from benchmarks import models
from benchmarks.paired import versions
from benchmarks.race import RESULTS_FOLDER, RaceOptions, fastest, race, round_ratio
from benchmarks.report import Origin
from compiler import driver
from compiler.build import CODEGEN_VERSION
from compiler.target import host_target
from service.settings import Settings
from service.storage import Storage
from tuner.loop import tune
from tuner.measure.builder import ProcessBuilder
from tuner.measure.local_runner import LocalRunner
from tuner.measure.measurement import Phase, RecordKey, Trial
from tuner.options import TuneOptions
from tuner.tasks import make_task

NAMES = ("matmul-1024", "conv3x3-128x28", "mobilenetv2")


@dataclass(frozen=True, slots=True)
class Point:
    """The best known after so many trials and seconds of wall time."""

    trials: int
    wall_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two curves of one model, and the race of what they ended with.

    `ratio` is TVM's time over ours, median of rounds; `minimum_ratio` that of the fastest runs.
    """

    model: str
    ours: tuple[Point, ...]
    theirs: tuple[Point, ...]
    failures: tuple[str, ...] = ()
    ratio: float | None = None
    minimum_ratio: float | None = None
    race_error: str = ""

    def factors(self, axis: str) -> list[float]:
        """TVM's best over ours at each of TVM's points, along `trials` or `wall_seconds`.

        Points at which we know nothing yet are infinite to our disfavour: 0.
        """
        found = []
        for point in self.theirs:
            limit = getattr(point, axis)
            known = [p.seconds for p in self.ours if getattr(p, axis) <= limit]
            found.append(point.seconds / min(known) if known else 0.0)
        return found


def ours(model: Any, folder: Path, trials: int, seconds: float, seed: int) -> tuple[Point, ...]:
    """The curve of our tuner from an empty database in `folder`, planning included."""
    started = time.time()
    storage = Storage.open(Settings(data_folder=folder))
    builder, runner = ProcessBuilder(), LocalRunner()
    try:
        target = host_target()
        plan = driver.make_plan(driver.optimise(driver.load_graph(model)), target)
        tasks = [make_task(workload, target, count=count) for workload, count in plan.tasks()]
        options = TuneOptions(
            trials=trials, seconds=seconds, seed=seed, codegen_version=CODEGEN_VERSION
        )
        tune(tasks, builder, runner, storage.records, options)
        found = [trial for task in tasks for trial in storage.records.trials(task.key)]
    finally:
        runner.close()
        builder.close()
        storage.close()
    counts = {task.key: task.count for task in tasks}
    best: dict[RecordKey, float] = {}
    points: list[Point] = []
    for number, (at, trial) in enumerate(_in_order(found), 1):
        seconds_now = trial.measurement.run_seconds
        if seconds_now is not None:
            best[trial.key] = min(seconds_now, best.get(trial.key, seconds_now))
        if len(best) == len(tasks):
            total = sum(best[key] * counts[key] for key in counts)
            points.append(Point(number, at - started, total))
    return tuple(points)


def _in_order(stored: Sequence[Trial]) -> list[tuple[float, Trial]]:
    """Screened trials by the time at which they were measured, in Unix seconds.

    Candidates that were not measured, which stand before the others of their batch in the store,
    come after the first of these.
    """
    timed: list[tuple[float, int, Trial]] = []
    batch = time.time()
    for trial in reversed([trial for trial in stored if trial.phase is Phase.SCREEN]):
        measured = trial.measurement.measured_at
        batch = measured or batch
        timed.append((batch, 0 if measured else 1, trial))
    timed.sort(key=lambda entry: entry[:2])
    return [(at, trial) for at, _, trial in timed]


def theirs(
    python: str, model: Any, folder: Path, trials: int, seconds: float, seed: int
) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """MetaSchedule's curve, and the texts of its candidates that failed."""
    folder.mkdir(parents=True)
    path = folder / "model.onnx"
    onnx.save(model, path)
    command = [python, "-m", "benchmarks.metaschedule_peer", str(path), str(folder)]
    done = subprocess.run(
        [*command, str(trials), str(seconds), str(seed)],
        cwd=Path(__file__).parent.parent,
        env=dict(os.environ, TVM_NUM_THREADS="1", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"trials"')]
    failures = [line["error"] for line in lines if line["error"]]
    if done.returncode:
        failures.append(f"exit status {done.returncode}: {done.stderr[-300:]}")
    points = [
        Point(line["trials"], line["wall_seconds"], line["seconds"])
        for line, following in pairwise([*lines, {"wall_seconds": None}])
        if line["seconds"] is not None and line["wall_seconds"] != following["wall_seconds"]
    ]
    return tuple(points), tuple(failures)


def compare(name: str, python: str, trials: int, seconds: float, seed: int) -> Comparison:
    """Tune with both, then race both."""
    model = models.build(name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        mine = ours(model, folder, trials, seconds, seed)
        curve, failures = theirs(python, model, folder / "tvm", trials, seconds, seed)
        options = RaceOptions(schedules=str(folder), pythons={"tvm": python})
        results = race(name, ["onnxruntime", "tuned", "tvm"], options)
    tuned, tvm = results["tuned"], results["tvm"]
    error = tuned.error or tvm.error
    return Comparison(
        name,
        mine,
        curve,
        failures,
        None if error else round_ratio(tvm, tuned),
        None if error else fastest(tvm) / fastest(tuned),
        error,
    )


def markdown(origin: Origin, found: Sequence[Comparison], note: str = "") -> str:
    """One table; factors are TVM's time over ours. `note` says what else there is to know."""
    lines = [
        "# Beside TVM's MetaSchedule",
        "",
        f"{origin.sentence()} {versions(('numpy', 'llvmlite', 'onnxruntime'))}. {note}".rstrip(),
        "",
        "Factors are TVM's best over ours at the points of TVM's curve: least, median, last; 0",
        "where not each of our kernels was measured yet, - where not each of TVM's was by the end.",
        "",
        "| model | trials, ours / TVM | seconds, ours / TVM | at equal trials | at equal seconds | "
        "raced, median (minima) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        cells = [row.model]
        for axis, text in (("trials", "{:d}"), ("wall_seconds", "{:.0f}")):
            ends = [text.format(getattr(c[-1], axis)) if c else "-" for c in (row.ours, row.theirs)]
            cells.append(" / ".join(ends))
        for axis in ("trials", "wall_seconds"):
            factors = row.factors(axis)
            numbers = (min(factors), median(factors), factors[-1]) if factors else ()
            cells.append(", ".join(f"{number:.2f}" for number in numbers) or "-")
        raced = f"{row.ratio:.2f} ({row.minimum_ratio:.2f})" if row.ratio else row.race_error
        cells.append(raced)
        lines.append(f"| {' | '.join(cells)} |")
    for row in found:
        if row.failures:
            lines += ["", f"{row.model}: {len(row.failures)} candidates of TVM failed, the last:"]
            lines += ["", "```", row.failures[-1], "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tvm", required=True, help="the interpreter that has TVM and xgboost")
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--trials", type=int, default=192)
    parser.add_argument("--seconds", type=float, default=240.0, help="wall time for each tuner")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="", help="a sentence for the table")
    options = parser.parse_args()
    origin, found = Origin(), []
    for name in options.models:
        found.append(compare(name, options.tvm, options.trials, options.seconds, options.seed))
        text = markdown(origin, found, options.note)
        print(text, flush=True)
        (RESULTS_FOLDER / "metaschedule.md").write_text(text)
        data = {"origin": asdict(origin), "rows": [asdict(row) for row in found]}
        (RESULTS_FOLDER / "metaschedule.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
