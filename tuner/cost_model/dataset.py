"""Makes samples for training from stored trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from compiler.device import DeviceFacts
from compiler.errors import CompilerError, InvalidFactsError
from compiler.loops.nest import LoopNest
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import lower_schedule, schedule_space
from compiler.target import Target
from compiler.workload import Workload
from tuner.analysis.features import FeatureExtractor, TargetFacts, target_facts
from tuner.cost_model.protocol import Sample, point_samples
from tuner.drawn_sizes import points_at, points_of
from tuner.measure.measurement import Measurement, RecordKey, SizeWeights, Trial


def samples_of(
    trials: Iterable[Trial],
    workload: Callable[[str], Workload | None],
    target: Callable[[str], Target | None],
) -> list[Sample]:
    """One sample for each schedule of each record key: its fastest time, with the device's facts.
    With open sizes there is one for each size that was measured.

    `workload` and `target` give what a key stands for, None if it is unknown. Trials of unknown
    keys, of lost workers, of sizes that the workload cannot have, and of schedules that no longer
    lower are left out.
    """
    best: dict[RecordKey, dict[tuple[Schedule, SizeWeights], Measurement]] = {}
    for trial in trials:
        if not trial.measurement.status.says_something_of_the_candidate:
            continue
        known = best.setdefault(trial.key, {})
        identity = trial.schedule, trial.measurement.distribution
        seconds, before = trial.measurement.run_seconds, known.get(identity)
        fastest = before.run_seconds if before else None
        if before is None or (seconds is not None and (fastest is None or seconds < fastest)):
            known[identity] = trial.measurement
    found: list[Sample] = []
    for key, measured in best.items():
        problem, code = workload(key.workload_key), target(key.target_key)
        if problem is None or code is None:
            continue
        try:
            space = schedule_space(problem, code, key.threads, key.numerics)
        except CompilerError:
            continue
        lower, default = partial(_nest, problem, code, key.threads), space.default()
        extractors: dict[tuple[TargetFacts, SizeWeights], FeatureExtractor] = {}
        drawn = points_of(problem, threads=key.threads)
        for (schedule, distribution), measurement in measured.items():
            facts = target_facts(code, key.threads, _device(measurement))
            points = drawn if not distribution else points_at(problem, distribution, key.threads)
            if not points or (measurement.ok and bool(distribution) != bool(problem.dimensions)):
                continue  # it does not say at which sizes of the workload it is
            if (facts, distribution) not in extractors:
                extractor = FeatureExtractor(lower, default, facts, points)
                extractors[facts, distribution] = extractor
            row = extractors[facts, distribution].row(schedule)
            if row is not None:
                found += point_samples(task_name(key), points, row, measurement)
    return found


def _device(measurement: Measurement) -> DeviceFacts | None:
    """The device that took a measurement; None if its facts cannot be read."""
    try:
        return DeviceFacts.from_json(measurement.device)
    except InvalidFactsError:
        return None


def task_name(key: RecordKey) -> str:
    """The name that samples give the task of a record key."""
    return f"{key.workload_key} {key.target_key} {key.threads} {key.numerics}"


def _nest(workload: Workload, target: Target, threads: int, schedule: Schedule) -> LoopNest:
    return lower_schedule(workload, schedule, target, threads).nest
