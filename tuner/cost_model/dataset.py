"""Conversion of stored trials (measured candidates) to training samples for cost models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tilewright.compiler.errors import CompilerError, InvalidFactsError
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.target import Target
from tilewright.tuner.analysis.features import FeatureExtractor, TargetFacts, target_facts
from tilewright.tuner.cost_model.protocol import Sample, point_samples
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, SizeWeights, Trial
from tilewright.tuner.random_sizes import points_at, points_of


def samples_of(
    trials: Iterable[Trial],
    workload: Callable[[str], Workload | None],
    target: Callable[[str], Target | None],
) -> list[Sample]:
    """Convert trials (measured schedules) to training samples, merging repeated trials.

    Trials are repeated if they have the same record key (workload, target, threads and numerics),
    schedule and sizes. The fastest of them is used, with the properties of its device. A workload
    with dynamic dimensions gives one sample per measured size. The following trials are left out:
    - trials of unknown workloads or targets;
    - trials that failed for a reason unrelated to the candidate, such as the loss of the worker;
    - trials with sizes that the workload cannot have;
    - trials whose schedule cannot be lowered.

    Args:
        trials: the stored trials.
        workload: returns the workload for a workload key, or None if the key is unknown.
        target: returns the target for a target key, or None if the key is unknown.
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
            features = CandidateFeatures(key, problem, code)
        except CompilerError:
            continue
        for (schedule, _), measurement in measured.items():
            extractor = features.of(measurement)
            row = None if extractor is None else extractor.row(schedule)
            if extractor is not None and row is not None:
                found += point_samples(task_name(key), extractor.points, row, measurement)
    return found


class CandidateFeatures:
    """A cache of feature extractors for the candidates of one workload, target and mode.

    There is one extractor for each device and each set of sizes at which the device measured.

    Raises:
        CompilerError: if the compiler has no schedules for the workload.
    """

    def __init__(self, key: RecordKey, workload: Workload, target: Target) -> None:
        self._workload = workload
        self._mode = mode = Mode(target, key.threads, key.numerics)
        self._default = schedule_space(workload, mode).default()
        self._drawn = points_of(workload, threads=key.threads)
        self._extractors: dict[tuple[TargetFacts, SizeWeights], FeatureExtractor] = {}

    def of(self, measurement: Measurement) -> FeatureExtractor | None:
        """Return the extractor for the device and the sizes of a measurement.

        A failed measurement without sizes gets the extractor for the default sizes. Return None if
        a successful measurement does not state the sizes of the workload's dynamic dimensions, or
        if the workload cannot have the stated sizes.
        """
        distribution = measurement.distribution
        target, threads = self._mode.target, self._mode.threads
        facts = target_facts(target, threads, _device(measurement))
        if (facts, distribution) not in self._extractors:
            points = self._drawn
            if distribution:
                points = points_at(self._workload, distribution, threads)
            lower = partial(_nest, self._workload, self._mode)
            extractor = FeatureExtractor(lower, self._default, facts, points)
            self._extractors[facts, distribution] = extractor
        found = self._extractors[facts, distribution]
        if measurement.ok and bool(distribution) != bool(self._workload.dimensions):
            return None
        return found if found.points else None


def _device(measurement: Measurement) -> DeviceFacts | None:
    """Return the properties of the device that took a measurement.

    Return None if its stored description cannot be parsed.
    """
    try:
        return DeviceFacts.from_json(measurement.device)
    except InvalidFactsError:
        return None


def task_name(key: RecordKey) -> str:
    """Return the name by which training samples of the same task are grouped (`Sample.task`).

    It consists of the workload key, the target key, the number of threads and the numerics.
    """
    return f"{key.workload_key} {key.target_key} {key.threads} {key.numerics}"


def _nest(workload: Workload, mode: Mode, schedule: Schedule) -> LoopNest:
    return lower_schedule(workload, schedule, mode).nest
