"""Compare our tuner with TVM's MetaSchedule: `python -m benchmarks.metaschedule --tvm PYTHON`.

Both tune the same ONNX files from scratch, with the same seeds, trials and wall time. Their runs
alternate, in separate processes. Runs are stored in build/metaschedule/. A repeated command makes
only the missing runs, so an interrupted comparison can resume, and `--seeds` can be raised. The
tuners measure differently: TVM times kernels with weights in the cache, ours with the cache state
that a model leaves. Therefore the best results of both are raced against each other at the end.
Tables, all trials and plots go to benchmarks/results/metaschedule.{md,json.gz,csv.gz,png}.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from benchmarks import models
from benchmarks.metaschedule_report import Axis, Comparison, Raced, markdown, plot, write_samples
from benchmarks.metaschedule_runs import (
    ROOT,
    Budget,
    Engine,
    Run,
    defaults_of,
    kept_or_made,
    listen,
    samples_of,
)
from benchmarks.race import RESULTS_FOLDER, RaceOptions, fastest, race, round_ratio
from benchmarks.report import Origin, commit, write_data

FOLDER = ROOT / "build" / "metaschedule"

BUDGETS = {
    "matmul-1024": Budget(seeds=5, trials=64, seconds=60.0),
    "conv3x3-128x28": Budget(seeds=5, trials=64, seconds=60.0),
    "mobilenetv2": Budget(seeds=1, trials=256, seconds=300.0),
}

AT_TRIALS = (8, 16, 32, 64, 256)
AT_SECONDS = (10.0, 20.0, 40.0, 60.0, 120.0, 300.0)

DEFAULTS_SECONDS = 300.0
"""Time limit in seconds for TVM to compile and time all untuned tasks of a model."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Makes tuning runs of Tilewright and of TVM, and times the best programs of both in turns.

    Results are stored in `folder`. `tvm` is the Python interpreter that has TVM.
    """

    folder: Path
    tvm: str

    def run(self, name: str, engine: Engine, seed: int, budget: Budget) -> Run:
        """Return the tuning run of a model by one tuner (Tilewright or TVM); make it if necessary.

        A stored run is returned if it succeeded with this budget.

        Args:
            name: the name of the model.
            engine: the tuner.
            seed: the seed of the run.
            budget: the limits of the run in trials and seconds.
        """
        folder = self._of(name, engine, seed)

        def make() -> Run:
            return self._make(name, engine, seed, budget)

        def fits(run: Run) -> bool:
            same = (run.trials, run.seconds) == (budget.trials, budget.seconds)
            return same and not run.failure

        return kept_or_made(folder, make, fits)

    def _make(self, name: str, engine: Engine, seed: int, budget: Budget) -> Run:
        folder = self._of(name, engine, seed)
        what = [str(self._model(name)), str(folder), str(budget.trials), str(budget.seconds)]
        match engine:
            case Engine.OURS:
                command = [sys.executable, "-m", "benchmarks.metaschedule_ours"]
            case Engine.TVM:
                command = [self.tvm, "-m", "benchmarks.metaschedule_peer", "tune"]
        lines, failure = listen([*command, *what, str(seed)], folder, budget.seconds)
        weights = next((tuple(line["weights"]) for line in lines if line["kind"] == "tasks"), ())
        ends = [line["out_of_time"] for line in lines if line["kind"] == "end"]
        report = lines if engine is Engine.OURS else self._untuned(name)
        return Run(
            engine,
            name,
            seed,
            budget.trials,
            budget.seconds,
            commit(),
            weights,
            defaults_of(report, len(weights)),
            samples_of(lines),
            out_of_time=ends[0] if ends else True,
            failure=failure,
        )

    def _untuned(self, name: str) -> list[Any]:
        """TVM's times of its untuned tasks, measured once for all seeds and then stored."""
        path = self.folder / name / "tvm-untuned.json"
        if not path.exists():
            command = [self.tvm, "-m", "benchmarks.metaschedule_peer", "defaults"]
            command.append(str(self._model(name)))
            lines, failure = listen(command, path.parent, DEFAULTS_SECONDS)
            if failure:
                raise SystemExit(f"TVM did not compile {name} untuned: {failure}")
            path.write_text(json.dumps(lines) + "\n", encoding="utf-8")
        report: list[Any] = json.loads(path.read_text(encoding="utf-8"))
        return report

    def raced(self, name: str, runs: Sequence[Run]) -> Raced:
        """Time the fastest programs that Tilewright and TVM found for a model, in turns.

        If these two programs were compared before, return the stored result.

        Args:
            name: the name of the model.
            runs: all tuning runs of the model by both tuners.
        """
        ours, theirs = (_best([r for r in runs if r.engine is engine]) for engine in Engine)
        path = self.folder / name / "raced.json"
        what = [ours.seed, theirs.seed, ours.commit, theirs.commit, ours.trials, ours.seconds]
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["what"] == what:
                return Raced(**{**kept["raced"], "seeds": tuple(kept["raced"]["seeds"])})
        with tempfile.TemporaryDirectory() as temporary:
            schedules = Path(temporary) / "both"
            shutil.copytree(self._of(name, Engine.OURS, ours.seed), schedules)
            shutil.copytree(self._of(name, Engine.TVM, theirs.seed), schedules / "tvm")
            options = RaceOptions(schedules=str(schedules), pythons={"tvm": self.tvm})
            results = race(name, ["onnxruntime", "tuned", "tvm"], options)
        tuned, tvm = results["tuned"], results["tvm"]
        raced = Raced((ours.seed, theirs.seed), error=tuned.error or tvm.error)
        if not raced.error:
            ratio, least = round_ratio(tvm, tuned), fastest(tvm) / fastest(tuned)
            raced = replace(raced, ratio=ratio, minimum_ratio=least)
        path.write_text(json.dumps({"what": what, "raced": asdict(raced)}) + "\n", encoding="utf-8")
        return raced

    def _of(self, name: str, engine: Engine, seed: int) -> Path:
        return self.folder / name / f"{engine.value}-{seed}"

    def _model(self, name: str) -> Path:
        path = self.folder / name / "model.onnx"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            onnx.save(models.build(name), path)
        return path


def _best(runs: Sequence[Run]) -> Run:
    """The tuning run whose best program is fastest."""

    def seconds(run: Run) -> float:
        known = run.curve[-1].seconds
        return float("inf") if known is None else known

    return min(runs, key=seconds)


def compare(bench: Bench, budgets: Mapping[str, Budget]) -> list[Comparison]:
    """Make all tuning runs with Tilewright and TVM, and compare the best programs.

    The runs alternate between the two tuners. The best programs are then timed in turns. `budgets`
    has the limits of the runs for each model. Returns a comparison per model.
    """
    runs: dict[str, list[Run]] = {name: [] for name in budgets}
    for seed in range(max(budget.seeds for budget in budgets.values())):
        for name, budget in budgets.items():
            for engine in Engine:
                if seed < budget.seeds:
                    started = time.monotonic()
                    run = bench.run(name, engine, seed, budget)
                    runs[name].append(run)
                    print(f"{_line(run)} ({time.monotonic() - started:.0f} s)", flush=True)
    return [
        Comparison(name, budget.seconds, tuple(runs[name]), bench.raced(name, runs[name]))
        for name, budget in budgets.items()
    ]


def _line(run: Run) -> str:
    last = run.curve[-1]
    time_taken = "unknown" if last.seconds is None else f"{last.seconds * 1e3:.3g} ms"
    end = f"{last.trials} trials, {last.wall_seconds:.0f} s: {time_taken}"
    return f"{run.model} {run.engine} seed {run.seed}: {end} {run.failure}".rstrip()


def write(rows: Sequence[Comparison], folder: Path, origin: Origin) -> str:
    """Write the report, the summary, all trials and the plots; return the report's text."""
    text = markdown(rows, AT_TRIALS, AT_SECONDS, origin)
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / "metaschedule"
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    summary = [
        {
            "model": row.model,
            "raced": asdict(row.raced),
            **{axis.value: [asdict(factor) for factor in row.factors(axis)] for axis in Axis},
        }
        for row in rows
    ]
    data = {"origin": asdict(origin), "rows": summary}
    write_data(stem.with_suffix(".json.gz"), json.dumps(data) + "\n")
    write_samples(rows, stem.with_suffix(".csv.gz"))
    plot(rows, stem.with_suffix(".png"))
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: make the missing runs, and write the report of all runs."""
    parser = argparse.ArgumentParser(prog="benchmarks.metaschedule", description=__doc__)
    parser.add_argument("--tvm", required=True, help="the interpreter that has TVM and xgboost")
    parser.add_argument("--models", nargs="+", default=list(BUDGETS), choices=BUDGETS)
    parser.add_argument("--seeds", type=int, help="runs of each tuner")
    parser.add_argument("--trials", type=int, help="of a run")
    parser.add_argument("--seconds", type=float, help="wall time of a run")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where runs are kept")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER)
    chosen = parser.parse_args(arguments)
    given = {
        name: value
        for name in ("seeds", "trials", "seconds")
        if (value := getattr(chosen, name)) is not None
    }
    budgets = {name: replace(BUDGETS[name], **given) for name in chosen.models}
    rows = compare(Bench(chosen.folder.absolute(), chosen.tvm), budgets)
    print(write(rows, chosen.results, Origin.of(chosen)))


if __name__ == "__main__":
    main()
