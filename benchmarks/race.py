"""Race models against other engines: `python -m benchmarks.race --models resnet50 mobilenetv2`.

Each engine has its own process. The engines take turns, in an order that rotates from round to
round, and every turn starts with one warm-up run. Two ratios to ONNX Runtime are reported. The
first is computed from the median times within each round; the median over the rounds is reported.
The second is the ratio of the fastest runs. The outputs are compared as well. Times are the
process's CPU time with one thread, and wall time with more. `--scaling` also races each engine on
one thread. Results go to benchmarks/results/ as JSON (with every sample) and Markdown, with date,
CPU, commit and versions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import models
from benchmarks.engines import ENGINES
from benchmarks.report import Origin, RaceReport, write_report
from tilewright.compiler.runtime import verify

REFERENCE = "onnxruntime"
RESULTS_FOLDER = Path(__file__).parent / "results"
ALONE = " on 1"
"""Suffix of the name of an engine that runs on one thread in a race on several threads."""
LARGEST_ERROR = 1e-3
"""Accepted error, relative to the largest output. Engines differ by at most 1e-5 in float32, and by
1e-2 in 16 bits."""


class Racer:
    """Starts one engine in a child process, and exchanges requests and answers with it.

    `python` is the interpreter in which the engine is installed, and `module` the module that it
    runs.
    """

    def __init__(
        self, engine: str, python: str = sys.executable, module: str = "benchmarks.engines"
    ) -> None:
        # one BLAS or OpenMP thread: what counts is the engine's own pool
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [python, "-m", module, engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parent.parent,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request, and return its answer.

        The answer is {"error": text} after a failure, even if the process died.
        """
        self.begin(**request)
        return self.answer()

    def begin(self, **request: Any) -> None:
        """Send a request. Its answer must be read by `answer` before the next request."""
        stdin, _ = self._pipes()
        # of a process that died, the answer says so
        with suppress(BrokenPipeError):
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the request that `begin` sent."""
        _, stdout = self._pipes()
        line = stdout.readline()
        if not line:
            return {"error": f"the process ended with status {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        stdin, _ = self._pipes()
        stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


@dataclass(slots=True)
class EngineResult:
    """Measurements of one engine on one model.

    Each list in `rounds` has the seconds of all samples of a round.
    """

    version: str = ""
    load_seconds: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)
    error: str = ""
    largest_error: float | None = None  # against the reference, over the largest output


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """Settings of a race.

    `schedules` is the folder with tuned schedules. `pythons` maps engines that are not installed
    here to their interpreters. With `scaling`, each engine also runs on one thread, under its name
    plus ALONE. `at_once` starts all processes together. This is faster, but loading in parallel
    makes `load_seconds` less reliable.
    """

    threads: int = 1
    rounds: int = 7
    turn_seconds: float = 0.6
    least_runs: int = 3
    schedules: str = ""
    pythons: Mapping[str, str] = field(default_factory=dict)
    scaling: bool = False
    at_once: bool = False


def race(model: str, engines: Sequence[str], options: RaceOptions) -> dict[str, EngineResult]:
    """Race the engines on one model, and return their results by name.

    The result of an engine that fails has its `error`.
    """
    threads = dict.fromkeys(engines, options.threads)
    if options.scaling and options.threads > 1:
        threads |= {name + ALONE: 1 for name in engines}
    results = {name: EngineResult() for name in threads}
    clock = "cpu" if options.threads == 1 else "wall"
    racers: dict[str, Racer] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in threads:
                for each in threads if options.at_once else (name,):
                    if each in racers:
                        continue
                    engine = each.removesuffix(ALONE)
                    racers[each] = Racer(engine, options.pythons.get(engine, sys.executable))
                    racers[each].begin(
                        do="load",
                        model=model,
                        threads=threads[each],
                        outputs=str(Path(folder) / f"{each}.npz"),
                        schedules=options.schedules,
                    )
                answer = racers[name].answer()
                results[name].error = answer.get("error", "")
                results[name].version = answer.get("version", "")
                results[name].load_seconds = answer.get("load_seconds", 0.0)
            compare(results, Path(folder), models.case(model).largest_error)
        order = list(threads)
        for round_number in range(options.rounds):
            shift = round_number % len(order)
            for name in [*order[shift:], *order[:shift]]:
                if results[name].error:
                    continue
                answer = racers[name].ask(
                    do="turn", seconds=options.turn_seconds, least=options.least_runs
                )
                results[name].error = answer.get("error", "")
                results[name].rounds.append(answer.get(clock, []))
    finally:
        for racer in racers.values():
            racer.close()
    return results


def compare(
    results: dict[str, EngineResult], folder: Path, largest_error: float = LARGEST_ERROR
) -> None:
    """Set the largest error of each engine relative to the reference's outputs.

    An engine whose error exceeds `largest_error` (or its own limit, if that is larger) gets an
    `error`, and does not race.
    """
    if REFERENCE not in results or results[REFERENCE].error:
        return
    expected = _outputs(folder, REFERENCE)
    models.check_spread(expected[-1])
    for name, result in results.items():
        if result.error or name == REFERENCE:
            continue
        outputs = _outputs(folder, name)
        if [output.shape for output in outputs] != [output.shape for output in expected]:
            result.error = f"outputs of shape {[output.shape for output in outputs]}"
            continue
        result.largest_error = max(map(verify.compare, outputs, expected))
        allowed = max(largest_error, ENGINES[name.removesuffix(ALONE)].largest_error)
        if not result.largest_error <= allowed:
            result.error = f"its outputs differ by {result.largest_error:.1e} of the largest"


def _outputs(folder: Path, name: str) -> list[NDArray[Any]]:
    with np.load(folder / f"{name}.npz") as archive:
        return [archive[key] for key in archive.files]


def round_ratios(result: EngineResult, reference: EngineResult) -> list[float]:
    """For each round, the engine's median time over the reference's."""
    pairs = zip(result.rounds, reference.rounds, strict=True)
    return [median(mine) / median(theirs) for mine, theirs in pairs]


def round_ratio(result: EngineResult, reference: EngineResult) -> float:
    """The median over the rounds of the engine's median time over the reference's."""
    return median(round_ratios(result, reference))


def fastest(result: EngineResult) -> float:
    """Seconds of the fastest run of all rounds."""
    return min(min(samples) for samples in result.rounds)


def available_engines(pythons: Mapping[str, str]) -> list[str]:
    """The float32 engines that can be timed without tuned schedules.

    An engine is included if it is installed here, or if `pythons` has an interpreter for it.
    """
    return [
        name
        for name, engine in ENGINES.items()
        if name != "tuned"
        and not engine.largest_error
        and (name in pythons or engine.is_installed())
    ]


def interpreter_among(engines: Collection[str], text: str) -> tuple[str, str]:
    """Parse `ENGINE=PATH` into an engine's name and an absolute path.

    Raises argparse.ArgumentTypeError if the engine is not in `engines` or the file does not exist.
    """
    engine, _, path = text.partition("=")
    if engine not in engines:
        raise argparse.ArgumentTypeError(f"no engine {engine!r}: {', '.join(engines)}")
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{engine}: no file {path!r}")
    return engine, str(Path(path).absolute())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.race", description=__doc__)
    default = ["resnet50", "mobilenetv2", "bert-base-128", "mlp"]
    parser.add_argument("--models", nargs="+", default=default, choices=[*models.MODELS, "all"])
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=list(ENGINES),
        help="default: all that are installed or have a --python",
    )
    parser.add_argument(
        "--python",
        dest="pythons",
        action="append",
        type=partial(interpreter_among, ENGINES),
        default=[],
        metavar="ENGINE=PATH",
        help="the interpreter that has an engine installed; may be repeated",
    )
    parser.add_argument(
        "--schedules", default="", help="race tuned too: an artifact's folder or a data folder"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scaling", action="store_true", help="race on one thread beside several")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn-seconds", type=float, default=0.6)
    parser.add_argument("--name", default="race", help="of the files in benchmarks/results/")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER)
    options = parser.parse_args(arguments)
    if options.scaling and options.threads < 2:
        parser.error("--scaling compares with one thread: --threads must be 2 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    pythons = dict(options.pythons)
    engines = options.engines or available_engines(pythons)
    if options.schedules and "tuned" not in engines:
        engines.append("tuned")
    names = list(models.MODELS) if "all" in options.models else options.models
    settings = RaceOptions(
        threads=options.threads,
        rounds=options.rounds,
        turn_seconds=options.turn_seconds,
        schedules=options.schedules,
        pythons=pythons,
        scaling=options.scaling,
    )
    report = RaceReport(
        threads=settings.threads,
        rounds=settings.rounds,
        scaling=settings.scaling,
        origin=Origin.of(options),
    )
    for model in names:
        started = time.perf_counter()
        results = race(model, engines, settings)
        add_results(report, model, results)
        print(report.rows_of(model))
        print(f"  ({time.perf_counter() - started:.0f} s)\n", flush=True)
        write_report(report, options.results, options.name)
    print(report.summary())


def add_results(report: RaceReport, model: str, results: Mapping[str, EngineResult]) -> None:
    """Add the results of one model to a report, with ratios to the reference and to one thread."""
    reference = results.get(REFERENCE)
    for name, result in results.items():
        if result.error or reference is None or reference.error:
            report.add_failure(model, name, result.error or "no reference to compare with")
            continue
        alone = results.get(name + ALONE)
        report.add(
            model,
            name,
            version=result.version,
            load_seconds=result.load_seconds,
            rounds=result.rounds,
            ratio=round_ratio(result, reference),
            minimum_ratio=fastest(result) / fastest(reference),
            largest_error=result.largest_error,
            speedup=None if alone is None or alone.error else round_ratio(alone, result),
        )


if __name__ == "__main__":
    main()
