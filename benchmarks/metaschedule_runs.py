"""Tuning runs of two engines as data: when each candidate was measured, and the best time so far.

This module imports only the standard library, because TVM's interpreter imports it too. A run is
made by a child process that prints JSON objects, one per line: `start` when its imports are done
and the clock starts, `tasks` with the weights of its tasks, `default` with the time of an untuned
task, a `sample` for each candidate, and, unless it was killed, `end` with whether it ran out of
time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RUN_FILE = "run.json"
GRACE_SECONDS = 120.0
"""A child that runs this much longer than its budget is killed. TVM first finishes its present
batch."""


class Engine(StrEnum):
    """The tuner that made a run."""

    OURS = "tilewright"
    TVM = "tvm"


@dataclass(frozen=True, slots=True)
class Budget:
    """The number of runs per model (`seeds`), and the limits of each run.

    A run ends at the first limit that it reaches.
    """

    seeds: int
    trials: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured candidate of a task, whose result was known `wall_seconds` after the start.

    `seconds` is the kernel's time; None if the candidate failed, with the reason in `error`.
    """

    task: int
    wall_seconds: float
    seconds: float | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """Best time of a model after a number of trials: the sum over its kernels, in seconds.

    A kernel without a measurement, or without a faster candidate, counts with its untuned time.
    `seconds` is None if an untuned time is unknown. `untuned` is the number of kernels without a
    measurement.
    """

    trials: int
    wall_seconds: float
    seconds: float | None
    untuned: int


@dataclass(frozen=True)  # no slots: they have no room for a curve that is kept
class Run:
    """One tuning run.

    `weights` has the number of times that the model executes each task, and `defaults` the task's
    untuned time in seconds. `out_of_time` is true if the time ended the run, rather than the number
    of trials.
    """

    engine: Engine
    model: str
    seed: int
    trials: int
    seconds: float
    commit: str
    weights: tuple[int, ...]
    defaults: tuple[float | None, ...]
    samples: tuple[Sample, ...]
    out_of_time: bool
    failure: str = ""

    @cached_property
    def curve(self) -> tuple[Point, ...]:
        """The best time of the model before any trial and after each trial."""
        best = list(self.defaults)
        measured = [False] * len(best)
        points = [self._point(0, 0.0, best, measured)]
        for number, sample in enumerate(self.samples, 1):
            if sample.seconds is not None:
                known = best[sample.task]
                best[sample.task] = min(sample.seconds, sample.seconds if known is None else known)
                measured[sample.task] = True
            points.append(self._point(number, sample.wall_seconds, best, measured))
        return tuple(points)

    def _point(
        self, number: int, at: float, best: Sequence[float | None], measured: Sequence[bool]
    ) -> Point:
        pairs = zip(best, self.weights, strict=True)
        known = [seconds * weight for seconds, weight in pairs if seconds is not None]
        total = sum(known) if known and len(known) == len(best) else None
        return Point(number, at, total, measured.count(False))

    def after_trials(self, trials: int) -> Point | None:
        """The best time after this many trials.

        The result is None if the run ended before, for lack of time or trials. If a run had time
        and trials left, it had exhausted its schedule spaces, and its last value is returned.
        """
        points = self.curve
        if trials >= len(points) and (self.out_of_time or trials > self.trials):
            return None
        return points[min(trials, len(points) - 1)]

    def after_seconds(self, seconds: float) -> Point:
        """The best time of the model at `seconds` of wall time after the start of the run."""
        return [point for point in self.curve if point.wall_seconds <= seconds][-1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        fields = dict(data)
        for name in ("weights", "defaults"):
            fields[name] = tuple(fields[name])
        fields["engine"] = Engine(data["engine"])
        fields["samples"] = tuple(Sample(**sample) for sample in data["samples"])
        return cls(**fields)


def tell(kind: str, **fields: Any) -> None:
    """Print a JSON line of this kind for the parent process."""
    print(json.dumps({"kind": kind, **fields}), flush=True)


def listen(command: Sequence[str], folder: Path, seconds: float) -> tuple[list[Any], str]:
    """Run a child process; returns its JSON lines, and the error text if it failed.

    The child is killed if it is still running GRACE_SECONDS after its budget of `seconds`. Its
    standard error is stored in `folder`.
    """
    with (
        open(folder / "stderr.txt", "w", encoding="utf-8") as errors,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(os.environ, TVM_NUM_THREADS="1", OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        lines = []
        guard = threading.Timer(seconds + GRACE_SECONDS, child.kill)
        for line in child.stdout:
            if line.startswith('{"kind"'):
                lines.append(json.loads(line))
                if lines[-1]["kind"] == "start":
                    guard.start()
        status = child.wait()
        guard.cancel()
    if status == 0:
        return lines, ""
    text = (folder / "stderr.txt").read_text(encoding="utf-8", errors="replace").strip()
    return lines, f"exit status {status}: {text[-600:]}"


def kept_or_made(folder: Path, make: Callable[[], Run], fits: Callable[[Run], bool]) -> Run:
    """Return the run stored in `folder` if it `fits`; otherwise make a new run and store it.

    The remains of an interrupted run are removed first.
    """
    path = folder / RUN_FILE
    if path.exists():
        run = Run.from_json(json.loads(path.read_text(encoding="utf-8")))
        if fits(run):
            return run
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run = make()
    # complete or not there: the name comes last
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(run.to_json()) + "\n", encoding="utf-8")
    unfinished.replace(path)
    return run


def samples_of(lines: Iterable[Mapping[str, Any]]) -> tuple[Sample, ...]:
    """The samples among a child's JSON lines, in the order in which they became known."""
    found = [
        Sample(line["task"], line["wall_seconds"], line["seconds"], line["error"])
        for line in lines
        if line["kind"] == "sample"
    ]
    return tuple(sorted(found, key=lambda sample: sample.wall_seconds))


def defaults_of(lines: Iterable[Mapping[str, Any]], tasks: int) -> tuple[float | None, ...]:
    """The untuned time of each task from a child's JSON lines.

    Tasks that the child did not report have None.
    """
    found: dict[int, float | None] = {
        line["task"]: line["seconds"] for line in lines if line["kind"] == "default"
    }
    return tuple(found.get(number) for number in range(tasks))
