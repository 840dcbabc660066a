"""Predicted and measured times of stored trials, to evaluate a cost model's ranking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.targets.target import Target
from tilewright.tuner.cost_model.dataset import CandidateFeatures
from tilewright.tuner.cost_model.metrics import LEAST_SAMPLES, Scores, task_scores
from tilewright.tuner.cost_model.protocol import CostModel
from tilewright.tuner.protocol.measurement import Trial


@dataclass(frozen=True, slots=True)
class TrialPrediction:
    """The measured time of a trial, with the predictions of the estimate and of a cost model.

    Attributes:
        estimated_seconds: the time that `tuner.analysis.estimate` predicts.
        score: the cost model's score; higher means faster. None if no model was given.
    """

    trial_id: str
    measured_seconds: float
    estimated_seconds: float
    score: float | None


@dataclass(frozen=True, slots=True)
class TaskPredictions:
    """Predictions for the trials of one task, and the quality of their rankings.

    Attributes:
        by_score: quality of the ranking by `score`; None without a model or with too few trials.
        by_estimate: quality of the ranking by `estimated_seconds`; None with too few trials.
    """

    trials: tuple[TrialPrediction, ...]
    by_score: Scores | None
    by_estimate: Scores | None


def predict_trials(
    trials: Sequence[Trial],
    workload: Workload,
    target: Target,
    model: CostModel | None,
    enough: Callable[[], bool] = lambda: False,
) -> TaskPredictions:
    """Predict the times of stored trials, all of the same workload, target and mode.

    A trial is left out if it failed, or if this release cannot interpret its sizes or schedule.

    Args:
        trials: the trials, in the order in which they are predicted.
        workload: the workload of the trials.
        target: the target of the trials.
        model: the cost model; None to compute only estimates.
        enough: called before each trial; once it returns true, the remaining trials are skipped.

    Raises:
        CompilerError: if the compiler has no schedules for the workload.
    """
    if not trials:
        return TaskPredictions((), None, None)
    features = CandidateFeatures(trials[0].key, workload, target)
    found = []
    for trial in trials:
        if enough():
            break
        seconds = trial.measurement.run_seconds
        extractor = features.of(trial.measurement)
        if extractor is None or not trial.measurement.ok or not seconds:
            continue
        estimated = extractor.estimated_seconds(trial.schedule)
        if estimated is None:
            continue
        score = None
        if model is not None:
            score = extractor.scores([trial.schedule], model.predict)[trial.schedule]
        found.append(TrialPrediction(trial.id, seconds, estimated, score))
    return TaskPredictions(
        tuple(found),
        None if model is None else _order(found, [one.score or 0.0 for one in found]),
        _order(found, [-one.estimated_seconds for one in found]),
    )


def _order(found: Sequence[TrialPrediction], scores: Sequence[float]) -> Scores | None:
    if len(found) < LEAST_SAMPLES:
        return None
    return task_scores(np.array([one.measured_seconds for one in found]), np.array(scores))
