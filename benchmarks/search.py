"""Measure how many trials a search for a schedule needs, on recorded measurements with many seeds.

`python -m benchmarks.search record --trials 1000` measures random schedules of twelve workloads
(fused subgraphs) once. It stores them in a table per workload; if repeated, it resumes. After
`--seconds` it starts no further workload. `--unconstrained` uses schedule spaces without the
constraints that depend on the machine.

`python -m benchmarks.search compare` runs the tuning loop with times from the tables, without a
device. For every method, seed and workload it reports the simple regret after each trial: the
relative difference between the best time so far and the best in the table. A method is
STRATEGY+MODEL. STRATEGY+MODEL-estimate disables estimated times and relies on the learned model, as
on a device without a machine description.

Results go to benchmarks/results/search.csv.gz, .md and .png. They include the error of the gains
that the tuning loop forecast before its trials.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median

from benchmarks import curves
from benchmarks.report import Origin, markdown_table
from benchmarks.search_tables import (
    FOLDER,
    WORKLOADS,
    Table,
    make_tables_task,
    path_of,
    read_table,
    record,
)
from benchmarks.warm import FirstPicks, base_model, first_picks
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.host import resolve_target
from tilewright.service.worker.facts import device_facts
from tilewright.tuner.forecast import ForecastError
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.measurement import Phase
from tilewright.tuner.replay import TableAnswers, restricted, tune_from
from tilewright.tuner.store import MemoryStore

RESULTS_FOLDER = Path(__file__).parent / "results"

DEFAULT = f"{TuneOptions().strategy}+{TuneOptions().model}"
RANDOM = "random+none"
WITHOUT_ESTIMATES = "-estimate"
WARM = f"{DEFAULT}+warm"
"""The default method, starting from the base model of a warm database."""


@dataclass(frozen=True, slots=True)
class Question:
    """Settings of a comparison of searches in one kind of schedule space.

    The report shows regrets (how much slower the best schedule so far is than the optimum).

    Attributes:
        at: the numbers of trials after which the regret is shown.
        near: a regret; the report shows how many trials are needed to reach it.
        methods: the search methods that are compared by default.
    """

    at: tuple[int, ...]
    near: float
    methods: tuple[str, ...]


CONSTRAINED = Question((8, 24), 0.01, (DEFAULT, RANDOM))
UNCONSTRAINED = Question(
    (8, 24, 64),
    0.02,
    (
        f"{DEFAULT}{WITHOUT_ESTIMATES}",
        f"evolutionary+xgboost{WITHOUT_ESTIMATES}",
        DEFAULT,
        RANDOM,
    ),
)
"""Compares the learned model alone, as on a device without a machine description, with the default
method."""


@dataclass(frozen=True, slots=True)
class Run:
    """One search for the best schedule of a workload whose candidates were all measured before.

    `regrets` has, for each trial, the best time so far over the best of all candidates, minus 1.
    """

    method: str
    workload: str
    seed: int
    regrets: tuple[float, ...]
    forecast_error: ForecastError | None

    def at(self, trials: int) -> float:
        """The regret after this many trials; the last regret if the search ended earlier."""
        return self.regrets[min(trials, len(self.regrets)) - 1]

    def until(self, regret: float) -> float:
        """The number of trials until the regret is at most `regret`; infinite if it never is."""
        for number, value in enumerate(self.regrets, 1):
            if value <= regret:
                return number
        return float("inf")


def search(table: Table, method: str, seed: int, trials: int, base: bytes = b"") -> Run:
    """Search for the best schedule in a table of recorded measurements, without a device.

    `method` is STRATEGY+MODEL, STRATEGY+MODEL-estimate (without estimated times), or WARM. The
    method WARM is the default method, with a cost model that starts as `base`. This is a serialised
    model that was trained on other workloads.
    """
    strategy, model = method.removesuffix(WITHOUT_ESTIMATES).split("+")[:2]
    task = restricted(table.task, list(table.known))
    store = MemoryStore()
    options = TuneOptions(
        trials=trials,
        device=this_device().brief(),
        strategy=strategy,
        model=model,
        estimates=not method.endswith(WITHOUT_ESTIMATES),
        base_model=base if method == WARM else b"",
        seed=seed,
        finalists=0,
        codegen_version=CODEGEN_VERSION,
    )
    finished = tune_from(TableAnswers({table.key: table.known}), [task], store, options)
    best = float("inf")
    regrets = []
    for trial in store.trials(task.key):
        if trial.phase is Phase.SCREEN:
            best = min(best, trial.measurement.run_seconds or best)
            regrets.append(best / table.best_seconds - 1)
    return Run(method, table.name, seed, tuple(regrets), finished.forecast_error)


def _search(job: tuple[Path, str, str, int, int, bytes]) -> Run:
    path, name, method, seed, trials, base = job
    return search(read_table(path, name), method, seed, trials, base)


def compare(
    paths: dict[str, Path],
    methods: Sequence[str],
    seeds: int,
    trials: int,
    processes: int,
    base: bytes = b"",
) -> Iterator[Run]:
    """Run every method on every table with every seed in parallel processes, and yield the runs."""
    jobs = [
        (path, name, method, seed, trials, base)
        for name, path in paths.items()
        for seed in range(seeds)
        for method in methods
    ]
    # a process that has trained a model cannot be forked: OpenMP's threads stay behind
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_search, jobs)


def report(runs: Sequence[Run], origin: Origin, how: str, question: Question) -> str:
    """The benchmark's report in Markdown: regrets of the search methods after numbers of trials.

    A regret is how much slower the best schedule so far is than the optimum. The report has medians
    per workload and over all workloads, and mean regrets. `how` is a sentence that describes the
    runs. `question` selects the numbers of trials.
    """
    methods = list(dict.fromkeys(run.method for run in runs))
    workloads = list(dict.fromkeys(run.workload for run in runs))
    at, near = question.at, question.near
    header = ["workload", *(f"{m} at {n}" for m in methods for n in at)]
    header += [f"{m} to {near:.0%}" for m in methods]
    rows = []
    for name in [*workloads, "all"]:
        of = [run for run in runs if name in (run.workload, "all")]
        cells = [name]
        for method in methods:
            mine = [run for run in of if run.method == method]
            cells += [f"{median(run.at(n) for run in mine):.1%}" for n in at]
        for method in methods:
            cells.append(_count(_needed(of, method, near)))
        rows.append(cells)
    lines = ["# Search", "", origin.sentence(), "", how, "", markdown_table(header, rows, 1)]
    if RANDOM in methods:
        chance = {n: fmean(r.at(n) for r in runs if r.method == RANDOM) for n in at}
        for method in methods:
            if method != RANDOM:
                found = {n: fmean(r.at(n) for r in runs if r.method == method) for n in at}
                shares = ", ".join(f"{found[n] / chance[n]:.2f} at {n}" for n in at if chance[n])
                lines += ["", f"Mean regret of {method} over that of {RANDOM}: {shares} trials."]
        lines += ["", *_to_near(runs, methods, near)]
    errors = [r.forecast_error for r in runs if r.forecast_error and r.method != RANDOM]
    if errors:
        lines += [
            "",
            "Forecasts, from each batch to the end of its run: "
            f"{fmean(e.expected for e in errors):.2%} expected on average, "
            f"{fmean(e.gained for e in errors):.2%} came; mean distance "
            f"{fmean(e.absolute_error for e in errors):.2%}.",
        ]
    return "\n".join(lines) + "\n"


def _without_trials(picks: Mapping[str, FirstPicks]) -> str:
    """Table of the schedules that a search chooses before any measurement, per workload.

    The cells are regrets: how much slower a schedule is than the optimum. The table is empty
    without a base model (a cost model trained on other workloads).
    """
    if not picks:
        return ""
    header = [
        "workload, 0 trials",
        "the base model's pick",
        "refused by the builder before it",
        "the estimate's pick",
        "the default",
    ]
    rows = [
        [
            name,
            _share(pick.model),
            str(pick.refused or ""),
            _share(pick.estimate),
            _share(pick.default),
        ]
        for name, pick in picks.items()
    ]
    middle = [
        median(getattr(p, of) for p in picks.values()) for of in ("model", "estimate", "default")
    ]
    model, *others = map(_share, middle)
    rows.append(["median", model, "", *others])
    return "\n" + markdown_table(header, rows, 1) + "\n"


def _share(regret: float) -> str:
    return "fails" if regret == float("inf") else f"{regret:.1%}"


def _to_near(runs: Sequence[Run], methods: Sequence[str], near: float) -> list[str]:
    """A sentence that says how many trials each method needs to reach the regret `near`.

    The regret is how much slower the best schedule so far is than the optimum. The numbers are
    medians over the seeds, averaged over the workloads. A median above the length of the runs
    counts as this length. A slow method such as `random` may therefore look better than it is.
    """
    lines = [f"Trials to within {near:.0%}, median of the seeds, mean over the workloads:"]
    names = list(dict.fromkeys(run.workload for run in runs))
    for method in methods:
        of = [run for run in runs if run.method == method]
        end = max(len(run.regrets) for run in of)
        needed = [_needed([r for r in of if r.workload == n], method, near) for n in names]
        mean = fmean(min(each, end) for each in needed)
        late = sum(each > end for each in needed)
        lines.append(f"{method} {mean:.1f} ({late} of {len(names)} not in {end} trials);")
    return [" ".join(lines).removesuffix(";") + "."]


def _needed(runs: Sequence[Run], method: str, regret: float) -> float:
    """The median over a method's runs of the trials to reach a regret.

    The result is infinite if most runs never reached it.
    """
    return median(run.until(regret) for run in runs if run.method == method)


def _count(trials: float) -> str:
    return "-" if trials == float("inf") else f"{trials:.0f}"


def write_csv(runs: Sequence[Run], path: Path) -> None:
    """Write a compressed CSV file with a line per trial: method, workload, seed, trial, regret."""
    rows = (
        [run.method, run.workload, run.seed, number, f"{regret:.6f}"]
        for run in runs
        for number, regret in enumerate(run.regrets, 1)
    )
    curves.write_csv(path, ["method", "workload", "seed", "trial", "regret"], rows)


def plot(runs: Sequence[Run], trials: int, path: Path) -> None:
    """Plot the median regret of each method over the trials, as PNG.

    The range between the quartiles is shaded.
    """
    steps = range(1, trials + 1)
    with curves.figure(path) as (axes,):
        for method in dict.fromkeys(run.method for run in runs):
            mine = [run for run in runs if run.method == method]
            values = [[100 * run.at(n) for run in mine] for n in steps]
            curves.draw_quarters(axes, steps, values, method)
        axes.set(xlabel="trials", ylabel="regret in %, median and quarters", ylim=(0, None))
        axes.legend()


def _record(chosen: argparse.Namespace) -> None:
    stop = time.monotonic() + chosen.seconds
    target = resolve_target("host")
    builder, runner = ProcessBuilder(2), LocalRunner("local", device_facts())
    try:
        for name in chosen.workloads:
            if time.monotonic() >= stop:
                print("time is over; run again to go on")
                return
            task = make_tables_task(name, target, chosen.unconstrained)
            path = path_of(chosen.folder, name, chosen.unconstrained)
            started = time.monotonic()
            found = record(path, task, builder, runner, min(chosen.trials, len(task.space)))
            seconds = time.monotonic() - started
            print(f"{name}: {found} trials of {len(task.space)}, {seconds:.0f} s", flush=True)
    finally:
        runner.close()
        builder.close()


def _compare(chosen: argparse.Namespace) -> None:
    paths = {
        name: path
        for name in chosen.workloads
        if (path := path_of(chosen.folder, name, chosen.unconstrained)).exists()
    }
    if not paths:
        raise SystemExit(f"no table in {chosen.folder}: record them first")
    question = UNCONSTRAINED if chosen.unconstrained else CONSTRAINED
    methods = list(chosen.methods or question.methods)
    base, picks = b"", {}
    if chosen.warm is not None:
        tables = [read_table(path, name) for name, path in paths.items()]
        base = base_model(chosen.warm, tables)
        picks = {table.name: first_picks(table, base) for table in tables}
        methods = list(dict.fromkeys([*methods, WARM]))
    runs = []
    for run in compare(paths, methods, chosen.seeds, chosen.trials, chosen.processes, base):
        runs.append(run)
        near = ", ".join(f"{run.at(n):.1%} at {n}" for n in question.at)
        print(f"{run.workload} {run.method} seed {run.seed}: {near}", flush=True)
    how = (
        f"{chosen.seeds} seeds, {chosen.trials} trials each, on tables of measured candidates; "
        f"regret is over the best of the table, medians over the seeds; the last columns count "
        f"trials to within {question.near:.0%}."
    )
    text = report(runs, Origin.of(chosen), how, question) + _without_trials(picks)
    stem = RESULTS_FOLDER / ("search-unconstrained" if chosen.unconstrained else "search")
    RESULTS_FOLDER.mkdir(exist_ok=True)
    stem.with_suffix(".md").write_text(text)
    write_csv(runs, stem.with_suffix(".csv.gz"))
    plot(runs, chosen.trials, stem.with_suffix(".png"))
    print(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: `record` tables, or `compare` methods on them."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="measure candidates; needs a quiet machine")
    recording.add_argument("--trials", type=int, default=1000)
    recording.add_argument("--seconds", type=float, default=float("inf"))
    comparing = commands.add_parser("compare", help="search the tables")
    comparing.add_argument("--methods", nargs="+", help="STRATEGY+MODEL or STRATEGY+MODEL-estimate")
    comparing.add_argument(
        "--warm", type=Path, help="folder of benchmarks.cost_model: also start from a base model"
    )
    comparing.add_argument("--seeds", type=int, default=5)
    comparing.add_argument("--trials", type=int, default=64)
    comparing.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    for command in (recording, comparing):
        command.add_argument("--folder", type=Path, default=FOLDER)
        command.add_argument("--unconstrained", action="store_true")
        command.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    chosen = parser.parse_args(arguments)
    _record(chosen) if chosen.command == "record" else _compare(chosen)


if __name__ == "__main__":
    main()
