"""Base models: trained on all records of a target, judged on tasks that none is trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.cost_model.metrics import Scores, evaluate, random_order
from tuner.cost_model.protocol import Sample
from tuner.cost_model.xgboost import DEFAULT_OBJECTIVE, Objective, XGBoostModel

HELD_OUT = 5
"""One task in this many is never trained on: what versions are compared by."""

LEAST_HELD_OUT = 2
LEAST_TASKS = 6
"""Tasks to judge by and to learn from: a model of fewer knows those tasks, and no others."""


@dataclass(frozen=True, slots=True)
class Split:
    """Samples by what they are for; no task is in two parts."""

    training: tuple[Sample, ...]
    stopping: tuple[Sample, ...]
    held_out: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A trained base model in XGBoost's JSON, and how it ranks the held-out tasks."""

    data: bytes
    objective: Objective
    rows: int
    tasks: int
    scores: Scores
    chance: Scores
    """Of a random order of the same candidates."""


def split(samples: Sequence[Sample], target_key: str) -> Split:
    """Held out are tasks of the target itself, by their workload's key: always the same ones.

    A workload is held out with all its targets: a relative's times would give it away.
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
    """A base model for a target; None if there are too few tasks to learn from or to judge by."""
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
        return None  # every held-out task has too few candidates that worked
    return BaseModel(model.save(), objective, len(learned), len(_tasks(learned)), scores, chance)


def judge(data: bytes, samples: Sequence[Sample], target_key: str) -> Scores | None:
    """How a saved model ranks the held-out tasks of today; None if it cannot be used any more."""
    model = XGBoostModel(0)
    try:
        model.load(data)
        return evaluate(split(samples, target_key).held_out, model.predict)
    except ValueError:
        return None


def _tasks(samples: Sequence[Sample]) -> set[str]:
    return {sample.task for sample in samples if sample.run_seconds is not None}
