"""Quality of the schedule that a cost model chooses before any measurement of a workload.

The cost model (the base model) is trained on measurements of other tasks, which
`benchmarks.cost_model collect` made. A task is a workload to tune. Tasks whose number of operations
is similar to that of a tested task are excluded from training: for a cost model, a convolution with
another activation is the same task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cost_model import read_samples
from benchmarks.cost_model_tasks import families
from benchmarks.search_tables import Table
from tilewright.compiler.plan import costs
from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.host import resolve_target
from tilewright.tuner.analysis.features import FeatureExtractor, target_facts
from tilewright.tuner.cost_model.protocol import Sample
from tilewright.tuner.cost_model.xgboost import XGBoostModel
from tilewright.tuner.protocol.measurement import Status
from tilewright.tuner.replay import restricted

SAME_WORK = 0.02
"""Tasks count as the same if their numbers of operations differ by a smaller fraction."""

STOPPING = 5
"""One in this many tasks is used for early stopping."""


def base_model(folder: Path, unseen: Sequence[Table]) -> bytes:
    """Train a cost model on all collected tasks that are unlike the `unseen` tasks.

    A task is a workload to tune. Two tasks are alike if their numbers of operations are similar.
    Returns the model in XGBoost's JSON format.

    Raises:
        SystemExit: if too few tasks were collected.
    """
    work = [costs.flops(table.task.workload) for table in unseen]
    left_out = {
        workload.key
        for workloads in families(folder, resolve_target("host")).values()
        for workload in workloads
        if any(abs(costs.flops(workload) - each) < SAME_WORK * each for each in work)
    }
    found: dict[str, list[Sample]] = {}
    for unconstrained in (True, False):
        for samples in read_samples(folder, unconstrained).values():
            for sample in samples:
                if sample.task.split(" ")[0] not in left_out:
                    found.setdefault(sample.task, []).append(sample)
    if len(found) < STOPPING:
        raise SystemExit(f"{folder} has too few tasks: collect them first")
    learning: list[Sample] = []
    stopping: list[Sample] = []
    for number, task in enumerate(sorted(found)):
        (learning if number % STOPPING else stopping).extend(found[task])
    model = XGBoostModel(0)
    model.train_base(learning, stopping)
    print(f"base model: {len(found)} tasks without {len(left_out)}, {model.rounds} rounds")
    return model.save()


REFUSED = frozenset({Status.BUILD_ERROR, Status.BUILD_TIMEOUT, Status.SPILLS})
"""Failures that the builder detects. They use up no trial, and the next choice is taken instead."""


@dataclass(frozen=True, slots=True)
class FirstPicks:
    """Regrets of the schedules that are chosen before any trial.

    The regret of a schedule is its time over the best time, minus 1.

    Attributes:
        model: the regret of the schedule that the base model (a cost model trained on other tasks)
            ranks first, among those that can be built.
        refused: the number of schedules that the base model ranks higher, but that cannot be built.
        estimate: the regret of the schedule with the shortest estimated time.
        default: the regret of the default schedule.
    """

    model: float
    refused: int
    estimate: float
    default: float


def first_picks(table: Table, base: bytes) -> FirstPicks:
    """Compute the regrets of the schedules that are chosen for a workload before any trial.

    `table` has the times of the workload's candidates, and `base` is a serialised cost model that
    was trained on other workloads. The regret of a schedule is its time over the best time, minus
    1. A chosen schedule that fails on the device has an infinite regret.
    """
    task = restricted(table.task, list(table.known))
    features = FeatureExtractor(
        task.lower,
        task.space.default(),
        target_facts(task.mode.target, task.mode.threads, this_device()),
    )
    model = XGBoostModel(0)
    model.load(base)
    schedules, rows = features.rows(list(table.known))
    estimates = [features.estimated_seconds(schedule) or float("inf") for schedule in schedules]

    def first(costs: Sequence[float] | np.ndarray) -> tuple[float, int]:
        """The regret of the candidate with the lowest cost, among those that can be built.

        Also returns the number of candidates with lower costs that failed to build.
        """
        order = [table.known[schedules[n]] for n in np.argsort(costs, kind="stable")]
        built = [measured for measured in order if measured.status not in REFUSED]
        seconds = built[0].run_seconds
        found = float("inf") if seconds is None else seconds / table.best_seconds - 1
        return found, order.index(built[0])

    chosen, refused = first(-model.predict(rows))
    estimated, _ = first(estimates)
    default, _ = first([float(schedule != task.space.default()) for schedule in schedules])
    return FirstPicks(chosen, refused, estimated, default)
