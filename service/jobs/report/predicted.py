"""Predicts the times of a task's trials with the cost models; no code is compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.targets.target import Target
from tilewright.tuner.cost_model.trial_predictions import TaskPredictions, predict_trials
from tilewright.tuner.cost_model.xgboost import XGBoostModel
from tilewright.tuner.protocol.measurement import Trial


@dataclass(frozen=True, slots=True)
class Predicted:
    """The predictions of the cost models for the trials of a task.

    Attributes:
        task: the predictions for the trials.
        refusal: the reason why the stored cost model could not be loaded; "" if it was loaded, or
            if there was no stored model.
    """

    task: TaskPredictions
    refusal: str


LONGEST_SECONDS = 5.0
"""Limit of the CPU time of predictions, in seconds. A trial of a large loop nest, or of a range of
sizes, may take many milliseconds, while other users' models wait."""


def predicted(
    text: str,
    target: Target,
    trials: Sequence[Trial],
    model: bytes,
    clock: Callable[[], float] = time.process_time,
) -> Predicted:
    """Predict the times of trials with a stored cost model, and with the analytical estimate.

    Trials are predicted in order until LONGEST_SECONDS of CPU time are used; the rest is left out.

    Args:
        text: the text of the workload.
        target: the target of the trials.
        trials: the trials.
        model: the bytes of the cost model; empty for none.
        clock: returns the time in seconds.

    Raises:
        CompilerError: if this release cannot read the workload.
    """
    end = clock() + LONGEST_SECONDS
    loaded, refusal = None, ""
    if model:
        loaded = XGBoostModel(0)
        try:
            loaded.load(model)
        except ValueError as error:  # of another release
            loaded, refusal = None, str(error)
    workload = Workload.parse(text)
    found = predict_trials(trials, workload, target, loaded, lambda: clock() >= end)
    return Predicted(found, refusal)
