"""Training and evaluation of base models, from which the cost models of tuning runs start.

A base model is trained on the trials of a target and evaluated on held-out tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.tuner.cost_model.metrics import Scores, evaluate, random_order
from tilewright.tuner.cost_model.protocol import Sample
from tilewright.tuner.cost_model.xgboost import DEFAULT_OBJECTIVE, Objective, XGBoostModel

HELD_OUT = 5
"""One workload in this many is held out from training, and used to compare versions of the
model."""

LEAST_HELD_OUT = 2
LEAST_TASKS = 6
"""Minimum number of tasks for training a base model. `LEAST_HELD_OUT` is the minimum number of
held-out tasks."""


@dataclass(frozen=True, slots=True)
class Split:
    """A division of samples into three sets without common tasks.

    Attributes:
        training: samples that the model is trained on.
        stopping: samples that determine the number of boosting rounds.
        held_out: samples that the trained model is evaluated on.
    """

    training: tuple[Sample, ...]
    stopping: tuple[Sample, ...]
    held_out: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A trained base model and its quality on the held-out tasks.

    Attributes:
        data: the model in XGBoost's JSON format.
        objective: the loss that training minimised.
        rows: number of training samples.
        tasks: number of training tasks with a successful sample.
        scores: how well the model ranks the candidates of the held-out tasks.
        chance: the scores of a random order of the same candidates.
    """

    data: bytes
    objective: Objective
    rows: int
    tasks: int
    scores: Scores
    chance: Scores
    """For comparison with `scores`."""


def split(samples: Sequence[Sample], target_key: str) -> Split:
    """Divide samples into sets for training, early stopping and evaluation.

    A hash of the workload key selects the set, so that all samples of a workload are in the same
    one. The held-out set has only tasks of the target `target_key`. Samples of a held-out workload
    on other targets are discarded: in training, they would reveal the order of its candidates.
    """
    training, stopping, held_out = [], [], []
    for sample in samples:
        workload, target, *_ = sample.task.split(" ")
        part = int(hashlib.sha256(workload.encode()).hexdigest()[:8], 16) % HELD_OUT
        if part == 0:
            if target == target_key:
                held_out.append(sample)
        elif part == 1:
            stopping.append(sample)
        else:
            training.append(sample)
    return Split(tuple(training), tuple(stopping), tuple(held_out))


def train_base_model(
    samples: Sequence[Sample],
    target_key: str,
    seed: int = 0,
    objective: Objective = DEFAULT_OBJECTIVE,
) -> BaseModel | None:
    """Train a base model for a target, and evaluate it on held-out tasks.

    Return None if there are too few tasks for training or for evaluation.
    """
    parts = split(samples, target_key)
    if len(_tasks(parts.held_out)) < LEAST_HELD_OUT or not parts.stopping:
        return None
    learned = (*parts.training, *parts.stopping)
    if len(_tasks(learned)) < LEAST_TASKS or not parts.training:
        return None
    model = XGBoostModel(seed, objective)
    model.train_base(parts.training, parts.stopping)
    try:
        scores = evaluate(parts.held_out, model.predict)
        chance = random_order(parts.held_out, seed)
    except ValueError:
        return None  # each held-out task has too few successful candidates
    return BaseModel(model.save(), objective, len(learned), len(_tasks(learned)), scores, chance)


def judge(data: bytes, samples: Sequence[Sample], target_key: str) -> Scores | None:
    """Evaluate a saved model on the held-out tasks of the given samples.

    Return None if this release cannot load the model, or if no held-out task has enough samples.
    """
    model = XGBoostModel(0)
    try:
        model.load(data)
        return evaluate(split(samples, target_key).held_out, model.predict)
    except ValueError:
        return None


def _tasks(samples: Sequence[Sample]) -> set[str]:
    return {sample.task for sample in samples if sample.run_seconds is not None}
