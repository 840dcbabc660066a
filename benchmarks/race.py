"""Race models against other engines: `python -m benchmarks.race --models resnet50 mobilenetv2`.

One process an engine. The engines take turns, in an order that rotates from round to round; every
turn starts with one warm-up. What counts is the ratio to ONNX Runtime of the medians within one
round (then the median over the rounds), and the ratio of the minima; the outputs are compared.
With one thread the clock is the process's CPU time, with more the wall's. Results go to
benchmarks/results/ as JSON (with every sample) and Markdown, with date, CPU, commit and versions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np

from benchmarks import models
from benchmarks.report import RaceReport, write_report

REFERENCE = "onnxruntime"
RESULTS_FOLDER = Path(__file__).parent / "results"


class Racer:
    """The parent's end of one engine's process."""

    def __init__(self, name: str) -> None:
        self.name = name
        # one BLAS or OpenMP thread: what counts is the engine's own pool
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engines", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parent.parent,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to one request; {"error": text} also when the process died."""
        stdin, stdout = self._pipes()
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
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
    """One engine on one model. Seconds a run; one list a round."""

    version: str = ""
    load_seconds: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)
    error: str = ""
    largest_error: float | None = None  # against the reference, over the largest output


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """How long a race is, and on how many threads; `schedules` is where the tuned ones are."""

    threads: int = 1
    rounds: int = 7
    turn_seconds: float = 0.6
    least_runs: int = 3
    schedules: str = ""


def race(model: str, engines: Sequence[str], options: RaceOptions) -> dict[str, EngineResult]:
    """Race the engines on one model; an engine that fails has its error for a result."""
    results = {name: EngineResult() for name in engines}
    racers = {name: Racer(name) for name in engines}
    clock = "cpu" if options.threads == 1 else "wall"
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, racer in racers.items():
                answer = racer.ask(
                    do="load",
                    model=model,
                    threads=options.threads,
                    folder=folder,
                    schedules=options.schedules,
                )
                results[name].error = answer.get("error", "")
                results[name].version = answer.get("version", "")
                results[name].load_seconds = answer.get("load_seconds", 0.0)
            compare(results, Path(folder))
        for round_number in range(options.rounds):
            shift = round_number % len(engines)
            for name in [*engines[shift:], *engines[:shift]]:
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


def compare(results: dict[str, EngineResult], folder: Path) -> None:
    """Fill in the largest error of each engine against the reference's outputs."""
    if REFERENCE not in results or results[REFERENCE].error:
        return
    with np.load(folder / f"{REFERENCE}.npz") as archive:
        expected = [archive[name] for name in archive.files]
    models.check_spread(expected[-1])
    for name, result in results.items():
        if result.error or name == REFERENCE:
            continue
        with np.load(folder / f"{name}.npz") as archive:
            outputs = [archive[key] for key in archive.files]
        result.largest_error = max(
            float(np.max(np.abs(got - want)) / np.max(np.abs(want)))
            for got, want in zip(outputs, expected, strict=True)
        )


def round_ratio(result: EngineResult, reference: EngineResult) -> float:
    """Median over the rounds of this engine's median against the reference's."""
    pairs = zip(result.rounds, reference.rounds, strict=True)
    return median(median(mine) / median(theirs) for mine, theirs in pairs)


def fastest(result: EngineResult) -> float:
    """Seconds of the fastest run of all rounds."""
    return min(min(samples) for samples in result.rounds)


def available_engines() -> list[str]:
    """The engines that can run here without tuned schedules."""
    return [REFERENCE, *(["openvino"] if find_spec("openvino") else []), "untuned"]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.race", description=__doc__)
    default = ["resnet50", "mobilenetv2", "bert-base-128", "mlp"]
    parser.add_argument("--models", nargs="+", default=default, choices=[*models.MODELS, "all"])
    parser.add_argument("--engines", nargs="+", help="default: all that are installed")
    parser.add_argument(
        "--schedules", default="", help="race tuned too: an artifact's folder or a data folder"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn-seconds", type=float, default=0.6)
    parser.add_argument("--name", default="race", help="of the files in benchmarks/results/")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    engines = options.engines or available_engines() + (["tuned"] if options.schedules else [])
    names = list(models.MODELS) if "all" in options.models else options.models
    settings = RaceOptions(
        threads=options.threads,
        rounds=options.rounds,
        turn_seconds=options.turn_seconds,
        schedules=options.schedules,
    )
    report = RaceReport(threads=settings.threads, rounds=settings.rounds)
    for model in names:
        started = time.perf_counter()
        results = race(model, engines, settings)
        reference = results.get(REFERENCE)
        for name, result in results.items():
            if result.error or reference is None or reference.error:
                report.add_failure(model, name, result.error or "no reference to compare with")
                continue
            report.add(
                model,
                name,
                version=result.version,
                load_seconds=result.load_seconds,
                rounds=result.rounds,
                ratio=round_ratio(result, reference),
                minimum_ratio=fastest(result) / fastest(reference),
                largest_error=result.largest_error,
            )
        print(report.rows_of(model))
        print(f"  ({time.perf_counter() - started:.0f} s)\n", flush=True)
        write_report(report, options.results, options.name)


if __name__ == "__main__":
    main()
