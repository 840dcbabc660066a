"""All pairs of a task, in order: an objective for boosting.

RankNet (Burges et al. 2005) with targets as sure as the measurement: the scores of two candidates
say with which probability the first is the faster one. They are pulled to the probability that
their two times differ by more than chance. XGBoost's own ranking losses sample a few pairs, and are
as sure of a hundredth as of a factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

NOISE = 0.05
"""Deviation of a time, as a logarithm: what differs by less is hardly told apart."""

FAILURE = 0.05
"""A failure counts as a candidate of this share of the best throughput."""

PARTNERS = 64
"""Others of its task that a candidate is compared with at most, and on average."""

_LEAST = 1e-6
"""Second derivative of a candidate that no pair is left of."""


class AllPairs:
    """Gradients of the cross entropy of all pairs of the same task.

    A pair weighs as much as the faster of its two over the best of the task: the fast end is what
    candidates are picked from. Two failures have no order. Each candidate weighs 1 at the start, on
    average over its task: second derivatives are then those of a squared error.
    """

    def __init__(self, tasks: Sequence[str], throughputs: np.ndarray) -> None:
        """`tasks` (number,), those of one side by side; throughputs over the task's best, 0 for a
        failure (`normalised_throughput`)."""
        self._number = len(tasks)
        firsts, seconds, weights = [], [], []
        start = 0
        for _, group in groupby(tasks):
            size = len(list(group))
            first, second = _pairs_of(size)
            first, second = first + start, second + start
            weight = np.maximum(throughputs[first], throughputs[second])
            total = weight.sum()
            if total > 0:
                firsts.append(first)
                seconds.append(second)
                # A pair is part of two candidates, and at first its second derivative is a quarter.
                weights.append(weight * (2 * size / total))
            start += size
        empty = np.zeros(0, dtype=np.intp)
        self._first = np.concatenate([empty, *firsts])
        self._second = np.concatenate([empty, *seconds])
        self._weight = np.concatenate([np.zeros(0), *weights])
        logarithms = np.log(np.where(throughputs > 0, throughputs, FAILURE))
        self._target = _sigmoid((logarithms[self._first] - logarithms[self._second]) / NOISE)

    def __call__(self, predicted: np.ndarray, matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        """First and second derivatives by each score, both (number,)."""
        faster = _sigmoid(predicted[self._first] - predicted[self._second])
        slope = self._weight * (faster - self._target)
        curvature = self._weight * faster * (1 - faster)
        gradient = self._sum(self._first, slope) - self._sum(self._second, slope)
        hessian = self._sum(self._first, curvature) + self._sum(self._second, curvature)
        return gradient, np.maximum(hessian, _LEAST)

    def _sum(self, places: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.bincount(places, values, self._number)


def _pairs_of(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the two of each pair among `size` candidates, no pair twice: all that there are, or
    each with PARTNERS others by chance, the same ones every time."""
    if size <= PARTNERS + 1:
        return np.triu_indices(size, 1)
    order = np.random.default_rng(size).permutation(size)
    steps = range(1, PARTNERS // 2 + 1)
    return np.tile(order, len(steps)), np.concatenate([np.roll(order, -step) for step in steps])


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -30.0, 30.0))))
