"""A pairwise ranking objective for boosting, over all pairs of samples of a task.

It is RankNet (Burges et al. 2005) with soft targets. The difference of two scores gives the
predicted probability that the first candidate is faster. The target is the probability that follows
from the two measured times and the measurement noise. XGBoost's own ranking losses sample only a
few pairs, and treat a difference of 1 % as equally certain as a factor of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

NOISE = 0.05
"""Standard deviation of the logarithm of a measured time. Smaller differences are hardly
measurable."""

FAILURE = 0.05
"""Throughput that a failed candidate counts with, as a fraction of the task's best throughput."""

PARTNERS = 64
"""Largest number of other candidates of the same task with which a candidate is compared."""

_LEAST = 1e-6
"""Lower bound of the second derivative of the loss, for candidates without pairs."""


class AllPairs:
    """A training objective for XGBoost: cross entropy over all pairs of samples of the same task.

    XGBoost calls the object with predicted scores, and it returns the first and second derivatives
    of the loss. A pair is weighted by the throughput of its faster candidate, relative to the
    task's best, because the search only picks fast candidates. Pairs of two failed candidates have
    weight 0. The weights are scaled such that the second derivatives initially are about 1, as for
    a squared error.
    """

    def __init__(self, tasks: Sequence[str], throughputs: np.ndarray) -> None:
        """Create the objective for given training samples.

        Args:
            tasks: the task of each sample. Samples of one task are adjacent.
            throughputs: the throughput of each sample relative to its task's best, (number,), as
                returned by `normalised_throughput`; 0 for a failed candidate.
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
        """Return the first and second derivatives of the loss with respect to each sample's score.

        Both have the shape (number,). `matrix` is XGBoost's training matrix; it is unused.
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
    """Return the distinct pairs of `size` candidates on which the objective is computed.

    The two arrays have the positions of the first and of the second candidate of each pair. Up to
    PARTNERS + 1 candidates, these are all pairs. Otherwise each candidate is paired with PARTNERS
    others, sampled with a fixed seed.
    """
    if size <= PARTNERS + 1:
        return np.triu_indices(size, 1)
    order = np.random.default_rng(size).permutation(size)
    steps = range(1, PARTNERS // 2 + 1)
    return np.tile(order, len(steps)), np.concatenate([np.roll(order, -step) for step in steps])


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -30.0, 30.0))))
