"""Measures of how well cost models rank the candidates of tasks on which they were not trained.

Every score is computed per task and then averaged: candidates of different tasks are never
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from tilewright.compiler.runtime.codec import JsonValue
from tilewright.tuner.cost_model.protocol import Sample

SAME = 0.03
"""Relative difference of two times up to which they count as equal, because measurements hardly
distinguish them."""

RECALL = 30

LEAST_SAMPLES = 4
"""Minimum number of successful measurements per task. Tasks with fewer are not evaluated."""


@dataclass(frozen=True, slots=True)
class Scores(JsonValue):
    """Quality of a ranking of candidates: means over tasks, each from 0 to 1.

    Attributes:
        pairwise: fraction of pairs in the correct order, among pairs whose times differ by more
            than the fraction SAME; equal scores count half.
        top1, top5: the fastest time of all candidates, divided by the fastest time among the 1 or 5
            candidates with the highest scores.
        recall30: fraction of the 30 fastest candidates that are among the 30 with the highest
            scores. With fewer than 120 candidates, a quarter of their number replaces 30.
        tasks: number of tasks over which the other attributes are averaged.
    """

    pairwise: float
    top1: float
    top5: float
    recall30: float
    tasks: int

    @property
    def quality(self) -> float:
        """Return the mean of `pairwise`, `top1` and `top5`, by which models are compared."""
        return (self.pairwise + self.top1 + self.top5) / 3


Predict = Callable[[np.ndarray], np.ndarray]
"""A function from feature rows of shape (number, columns) to scores of shape (number,). Higher
scores mean faster candidates."""


def evaluate(samples: Sequence[Sample], predict: Predict) -> Scores:
    """Evaluate how well a model ranks the candidates of each task.

    `predict` maps feature rows (number, columns) to scores (number,); higher means faster. Samples
    of failed candidates are ignored.

    Raises:
        ValueError: if no task has LEAST_SAMPLES successful samples.
    """
    worked = [sample for sample in samples if sample.run_seconds is not None]
    rows = np.stack([sample.row for sample in worked]) if worked else np.zeros((0, 0))
    return evaluate_order(worked, predict(rows) if worked else np.zeros(0))


def evaluate_order(samples: Sequence[Sample], scores: np.ndarray) -> Scores:
    """Evaluate a ranking that is given as one score per sample; a higher score means faster.

    Samples of failed candidates are ignored.

    Raises:
        ValueError: if no task has LEAST_SAMPLES successful samples.
    """
    seconds: dict[str, list[float]] = {}
    predicted: dict[str, list[float]] = {}
    for sample, score in zip(samples, scores, strict=True):
        if sample.run_seconds is not None:
            seconds.setdefault(sample.task, []).append(sample.run_seconds)
            predicted.setdefault(sample.task, []).append(score)
    return average(
        [
            task_scores(np.array(found), np.array(predicted[task]))
            for task, found in seconds.items()
            if len(found) >= LEAST_SAMPLES
        ]
    )


def random_order(samples: Iterable[Sample], seed: int = 0, draws: int = 20) -> Scores:
    """Return the quality of random rankings, as a baseline for models.

    The quality is averaged over `draws` rankings per task.

    Raises:
        ValueError: if no task has LEAST_SAMPLES successful samples.
    """
    random = np.random.default_rng(seed)
    groups = [g for g in by_task(samples).values() if len(g) >= LEAST_SAMPLES]
    return average(
        [
            task_scores(np.array([s.run_seconds for s in group]), random.random(len(group)))
            for group in groups
            for _ in range(draws)
        ],
        tasks=len(groups),
    )


def average(scores: Sequence[Scores], tasks: int | None = None) -> Scores:
    """Return the mean of each quality attribute over `scores`.

    The result's number of tasks is `tasks`, or if this is None, the sum over `scores`.

    Raises:
        ValueError: if `scores` is empty.
    """
    if not scores:
        raise ValueError("no task has enough measured candidates to judge an order by")
    return Scores(
        mean(s.pairwise for s in scores),
        mean(s.top1 for s in scores),
        mean(s.top5 for s in scores),
        mean(s.recall30 for s in scores),
        sum(s.tasks for s in scores) if tasks is None else tasks,
    )


def task_scores(seconds: np.ndarray, scores: np.ndarray) -> Scores:
    """Return the quality of the ranking of one task's candidates.

    `seconds` are their measured times, and `scores` their predicted scores, both (number,).
    """
    order = np.argsort(-scores, kind="stable")
    best = float(seconds.min())
    kept = min(RECALL, max(1, len(seconds) // 4))
    fastest = set(np.argsort(seconds, kind="stable")[:kept].tolist())
    return Scores(
        _pairwise(seconds, scores),
        best / float(seconds[order[:1]].min()),
        best / float(seconds[order[:5]].min()),
        len(fastest.intersection(order[:kept].tolist())) / kept,
        1,
    )


def _pairwise(seconds: np.ndarray, scores: np.ndarray) -> float:
    faster = seconds[:, None] * (1 + SAME) < seconds[None, :]
    if not faster.any():
        return 1.0
    difference = (scores[:, None] - scores[None, :])[faster]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def by_task(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Group samples by task, leaving out those of failed candidates."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.run_seconds is not None:
            groups.setdefault(sample.task, []).append(sample)
    return groups
