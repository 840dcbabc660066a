"""A pairwise ranking objective for boosting: orders all pairs of samples of a task.

It is RankNet (Burges et al. 2005) with soft targets. The difference of two scores gives the
probability that the first candidate is faster. The target is the probability that follows from the
two measured times and the measurement noise. XGBoost's own ranking losses sample only a few pairs,
and treat a difference of 1 % as equally certain as a factor of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

NOISE = 0.05
"""Deviation of a time, as a logarithm: smaller differences are hardly measurable."""

FAILURE = 0.05
"""A failure counts as a candidate with this share of the best throughput."""

PARTNERS = 64
"""Most other candidates of its task with which a candidate is compared."""

_LEAST = 1e-6
"""The least second derivative, for candidates without pairs."""


class AllPairs:
    """An objective for XGBoost: the cross entropy over all pairs of samples of one task.

    Called with predicted scores, it returns the first and second derivatives. The weight of a pair
    is the throughput of its faster member, relative to the task's best, because the search picks
    candidates from the fast end. Pairs of two failures have no weight. The weights are scaled such
    that second derivatives start at the same size as for a squared error.
    """

    def __init__(self, tasks: Sequence[str], throughputs: np.ndarray) -> None:
        """Prepare the pairs of all tasks.

        Args:
            tasks: the task of each sample. Samples of one task are adjacent.
            throughputs: the throughput of each sample relative to its task's best, (number,); 0 for
                a failure (`normalised_throughput`).
        """
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
                # A pair has two candidates, and its second derivative starts at a quarter.
                weights.append(weight * (2 * size / total))
            start += size
        empty = np.zeros(0, dtype=np.intp)
        self._first = np.concatenate([empty, *firsts])
        self._second = np.concatenate([empty, *seconds])
        self._weight = np.concatenate([np.zeros(0), *weights])
        logarithms = np.log(np.where(throughputs > 0, throughputs, FAILURE))
        self._target = _sigmoid((logarithms[self._first] - logarithms[self._second]) / NOISE)

    def __call__(self, predicted: np.ndarray, matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and second derivatives with respect to the scores, both (number,).

        `matrix` is unused; XGBoost passes its training matrix.
        """
        faster = _sigmoid(predicted[self._first] - predicted[self._second])
        slope = self._weight * (faster - self._target)
        curvature = self._weight * faster * (1 - faster)
        gradient = self._sum(self._first, slope) - self._sum(self._second, slope)
        hessian = self._sum(self._first, curvature) + self._sum(self._second, curvature)
        return gradient, np.maximum(hessian, _LEAST)

    def _sum(self, places: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.bincount(places, values, self._number)


def _pairs_of(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the first and of the second member of each pair; no pair occurs
    twice.

    For few candidates these are all pairs. Otherwise each candidate is paired with PARTNERS others,
    sampled with a fixed seed.
    """
    if size <= PARTNERS + 1:
        return np.triu_indices(size, 1)
    order = np.random.default_rng(size).permutation(size)
    steps = range(1, PARTNERS // 2 + 1)
    return np.tile(order, len(steps)), np.concatenate([np.roll(order, -step) for step in steps])


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -30.0, 30.0))))
