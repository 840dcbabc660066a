"""Tables of measured candidates, by which search strategies are compared without a device.

A table is a compressed file of JSON lines: a header, then one trial per line. Trials are appended
as they are measured, so that an interrupted recording can resume. At the end, the fastest
candidates are measured again in pairs with the default; these comparisons determine their order.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import operators
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.costs import cost
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.target import Target
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.tuner.loop import tune
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.measure.runner import Runner
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    Trial,
    trial_id,
)
from tilewright.tuner.store import MemoryStore
from tilewright.tuner.tasks import Task, make_task

FOLDER = Path(__file__).parent / "data" / "search"

FINALISTS = 30
"""Number of the fastest candidates of a table that are measured again in pairs."""

JOB = "table"
"""Job id of all trials of a table. Trial ids are computed from it."""

KEPT_SAMPLES = 3
DIGEST_DIGITS = 16

WORKLOADS: dict[str, Callable[[], Any]] = {
    "matmul 128x768x768": lambda: operators.matmul(128, 768, 768),
    "matmul 97x131x65": lambda: operators.matmul(97, 131, 65),
    "matmul 1x1000x1280": lambda: operators.matmul(1, 1000, 1280),
    "batch matmul 12x128x128x64": lambda: operators.matmul(128, 128, 64, batch=12),
    "conv 3x3 64@56": lambda: operators.conv(64, 64, (56, 56)),
    "conv 3x3 256@14": lambda: operators.conv(256, 256, (14, 14)),
    "conv 3x3 stride 2 40-72@37": lambda: operators.conv(40, 72, (37, 37), stride=(2, 2)),
    "conv 1x1 256-64@56": lambda: operators.conv(256, 64, (56, 56), kernel=(1, 1)),
    "conv 7x7 stride 2 3-64@112": lambda: operators.conv(
        3, 64, (112, 112), kernel=(7, 7), stride=(2, 2)
    ),
    "depthwise 3x3 96@56": lambda: operators.conv(96, 96, (56, 56), group=96),
    "depthwise 5x5 stride 2 72@35": lambda: operators.conv(
        72, 72, (35, 35), kernel=(5, 5), stride=(2, 2), group=72
    ),
    "mean 384x1030": lambda: operators.reduction("ReduceMean", (384, 1030)),
}
"""Functions that make models of one operator. The table is about the most expensive workload of
each."""


@dataclass(frozen=True, slots=True)
class Table:
    """Measurements of one workload's candidates, scaled so that their times are comparable."""

    name: str
    task: Task
    known: dict[Schedule, Measurement]

    @property
    def key(self) -> RecordKey:
        return self.task.key

    @property
    def best_seconds(self) -> float:
        return min(m.run_seconds for m in self.known.values() if m.run_seconds is not None)


def workload_of(name: str) -> Workload:
    """The most expensive workload of a model in WORKLOADS, as the compiler partitions it."""
    return heaviest_workload(WORKLOADS[name]())


def heaviest_workload(model: Any) -> Workload:
    """The most expensive workload (fused subgraph) of a model.

    Kernels that only convert the layout of a tensor are not considered.
    """
    planned = plan_model(ModelRequest(model.SerializeToString()))
    kernels = [w for w, _ in planned.workloads if w.operators != ("identity",)]  # no relayouts
    return max(kernels, key=cost)


def path_of(folder: Path, name: str, unconstrained: bool) -> Path:
    """The path of a table's file in `folder`."""
    stem = name.replace(" ", "-")
    return folder / f"{stem}{'-unconstrained' if unconstrained else ''}.jsonl.gz"


class TableFile(MemoryStore):
    """An in-memory record store that also appends its trials to a table's file."""

    def __init__(self, path: Path, task: Task) -> None:
        super().__init__()
        self._path = path
        if path.exists():
            head, trials = read_trials(path)
            ours = CODEGEN_VERSION, task.workload.text()
            if (head["codegen_version"], head["workload"]) != ours:
                raise SystemExit(f"{path} is of other code: move it away to record it anew")
            super().add_trials(trials)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            head = {
                "key": task.key.to_json(),
                "workload": task.workload.text(),
                "target": task.mode.target.to_json(),
                "codegen_version": CODEGEN_VERSION,
                "schedules": len(task.space),
            }
            _append(path, [head])

    def add_trials(self, trials: Sequence[Trial]) -> None:
        super().add_trials(trials)
        _append(self._path, [_to_json(trial) for trial in trials])


def record(
    path: Path, task: Task, builder: Builder, runner: Runner, trials: int, seed: int = 0
) -> int:
    """Measure a task's default and random candidates, and append the results to a table's file.

    `trials` is the number of candidates. At the end, the fastest candidates are measured again in
    pairs with the default. A table that is complete is not changed. Returns the number of
    measurements in the table.
    """
    store = TableFile(path, task)
    if not any(trial.phase is Phase.FINAL for trial in store.trials(task.key)):
        options = TuneOptions(
            trials=trials,
            batch_size=16,
            strategy="random",
            model="none",
            seed=seed,
            finalists=FINALISTS,
            job_id=JOB,
            codegen_version=CODEGEN_VERSION,
        )
        tune([task], builder, runner, store, options)
    return len(store.trials(task.key))


def make_tables_task(name: str, target: Target, unconstrained: bool) -> Task:
    """The task (workload to tune) whose candidates are measured for the table `name` in WORKLOADS.

    `unconstrained` removes the constraints of the schedule space that depend on the machine.
    """
    task = make_task(workload_of(name), Mode(target), name=name)
    return replace(task, space=task.space.unconstrained()) if unconstrained else task


def read_table(path: Path, name: str) -> Table:
    """Read the measurements of a table.

    All candidates have a time from the first measurement (screening). The fastest were measured
    again in pairs with the default, and their times from the pairs are used. Other times are scaled
    by the median ratio of paired to screening times.
    """
    head, trials = read_trials(path)
    task = make_task(Workload.parse(head["workload"]), Mode(), name=name)
    screened = {t.schedule: t.measurement for t in trials if t.phase is Phase.SCREEN}
    finals = {t.schedule: t.measurement for t in trials if t.phase is Phase.FINAL}
    ratios = [
        seconds / before
        for schedule, measurement in finals.items()
        if (seconds := measurement.run_seconds) is not None
        and schedule in screened
        and (before := screened[schedule].run_seconds) is not None
    ]
    scale = median(ratios) if ratios else 1.0
    known = {}
    for schedule, measurement in screened.items():
        final = finals.get(schedule)
        if final is not None and final.run_seconds is not None:
            known[schedule] = final
        else:
            samples = tuple(scale * s for s in measurement.samples_seconds)
            known[schedule] = Measurement(
                measurement.status,
                measurement.error,
                samples,
                object_digest=measurement.object_digest,
            )
    return Table(name, task, known)


def read_trials(path: Path) -> tuple[dict[str, Any], list[Trial]]:
    """Read the header and the trials of a table. An incompletely written last line is ignored."""
    lines: list[dict[str, Any]] = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines += (json.loads(line) for line in file)
    except (EOFError, json.JSONDecodeError):
        print(f"{path}: its end is missing")
    key = RecordKey.from_json(lines[0]["key"])
    return lines[0], [_from_json(key, data) for data in lines[1:]]


def _append(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    with gzip.open(path, "at", encoding="utf-8") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def _to_json(trial: Trial) -> dict[str, Any]:
    """Compact JSON of a trial, with only the fastest samples, rounded to six digits."""
    measurement = trial.measurement
    return {
        "schedule": trial.schedule.to_json(),
        "phase": trial.phase.value,
        "status": measurement.status.value,
        "error": measurement.error,
        "samples": [float(f"{s:.6g}") for s in sorted(measurement.samples_seconds)[:KEPT_SAMPLES]],
        "object": measurement.object_digest[:DIGEST_DIGITS],
    }


def _from_json(key: RecordKey, data: dict[str, Any]) -> Trial:
    schedule, phase = Schedule.from_json(data["schedule"]), Phase(data["phase"])
    measurement = Measurement(
        Status(data["status"]),
        data["error"],
        tuple(data["samples"]),
        object_digest=data["object"],
    )
    name = trial_id(key, schedule.digest, phase, JOB)
    return Trial(name, key, schedule, measurement, phase, JOB, CODEGEN_VERSION)
