"""What the models of cost predict of a task's trials. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.target import Target
from compiler.workload import Workload
from tuner.cost_model.trial_predictions import TaskPredictions, predict_trials
from tuner.cost_model.xgboost import XGBoostModel
from tuner.measure.measurement import Trial


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted; `refusal` says why a stored cost model could not be asked, "" if it was or
    if there is none."""

    task: TaskPredictions
    refusal: str


def predicted(text: str, target: Target, trials: Sequence[Trial], model: bytes) -> Predicted:
    """Of trials of a workload's text, by a stored cost model and by the machine's roofs.

    Raises:
        CompilerError: for a workload of another release.
    """
    loaded, refusal = None, ""
    if model:
        loaded = XGBoostModel(0)
        try:
            loaded.load(model)
        except ValueError as error:  # of another release
            loaded, refusal = None, str(error)
    return Predicted(predict_trials(trials, Workload.parse(text), target, loaded), refusal)
