"""Trials as they are stored, made into samples for training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from compiler.errors import CompilerError
from compiler.loops.nest import LoopNest
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import lower_schedule, schedule_space
from compiler.target import Target
from compiler.workload import Workload
from tuner.analysis.features import FeatureExtractor, target_facts
from tuner.cost_model.protocol import Sample
from tuner.measure.measurement import RecordKey, Trial


def samples_of(
    trials: Iterable[Trial],
    workload: Callable[[str], Workload | None],
    target: Callable[[str], Target | None],
) -> list[Sample]:
    """One sample for each schedule of each record key, its fastest time.

    `workload` and `target` give what a key stands for, None for one that is not known. Trials of
    unknown keys, of lost workers, and of schedules that no longer lower are left out.
    """
    best: dict[RecordKey, dict[Schedule, float | None]] = {}
    for trial in trials:
        if not trial.measurement.status.says_something_of_the_candidate:
            continue
        known = best.setdefault(trial.key, {})
        seconds, before = trial.measurement.run_seconds, known.get(trial.schedule)
        if before is None or (seconds is not None and seconds < before):
            known[trial.schedule] = seconds
    found: list[Sample] = []
    for key, measured in best.items():
        problem, device = workload(key.workload_key), target(key.target_key)
        if problem is None or device is None:
            continue
        try:
            space = schedule_space(problem, device, key.threads, key.numerics)
        except CompilerError:
            continue
        features = FeatureExtractor(
            partial(_nest, problem, device, key.threads),
            space.default(),
            target_facts(device, key.threads),
        )
        for schedule, seconds in measured.items():
            row = features.row(schedule)
            if row is not None:
                found.append(Sample(task_name(key), row, seconds))
    return found


def task_name(key: RecordKey) -> str:
    """What samples call the task of a record key."""
    return f"{key.workload_key} {key.target_key} {key.threads} {key.numerics}"


def _nest(workload: Workload, target: Target, threads: int, schedule: Schedule) -> LoopNest:
    return lower_schedule(workload, schedule, target, threads).nest
