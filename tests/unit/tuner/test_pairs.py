"""The objective of all pairs: its derivatives against differences of the loss itself."""

from __future__ import annotations

from itertools import combinations
from math import exp, log

import numpy as np
import pytest

from tilewright.tuner.cost_model.pairs import FAILURE, NOISE, PARTNERS, AllPairs

TASKS = ["a"] * 5 + ["b"] * 3
THROUGHPUTS = np.array([1.0, 0.9, 0.97, 0.5, 0.0, 0.4, 1.0, 0.0])


def _loss(scores: np.ndarray) -> float:
    """Cross entropy of every pair, written out."""
    total = 0.0
    for task in ("a", "b"):
        places = [place for place, name in enumerate(TASKS) if name == task]
        pairs = list(combinations(places, 2))
        weights = [max(THROUGHPUTS[i], THROUGHPUTS[j]) for i, j in pairs]
        scale = 2 * len(places) / sum(weights)
        for (i, j), weight in zip(pairs, weights, strict=True):
            apart = log(THROUGHPUTS[i] or FAILURE) - log(THROUGHPUTS[j] or FAILURE)
            wanted = 1 / (1 + exp(-apart / NOISE))
            faster = 1 / (1 + exp(scores[j] - scores[i]))
            total -= scale * weight * (wanted * log(faster) + (1 - wanted) * log(1 - faster))
    return total


def test_derivatives_are_those_of_the_loss() -> None:
    scores = np.random.default_rng(0).normal(size=len(TASKS))
    gradient, hessian = AllPairs(TASKS, THROUGHPUTS)(scores, None)
    step = 1e-4
    for place in range(len(TASKS)):
        away = np.zeros(len(TASKS))
        away[place] = step
        low, here, high = (_loss(scores + k * away) for k in (-1, 0, 1))
        # central differences are off by step^2 and, of the second, by rounding over step^2
        assert gradient[place] == pytest.approx((high - low) / (2 * step), abs=1e-5)
        assert hessian[place] == pytest.approx((high - 2 * here + low) / step**2, abs=1e-4)


def test_a_candidate_weighs_one_at_first() -> None:
    _, hessian = AllPairs(TASKS, THROUGHPUTS)(np.zeros(len(TASKS)), None)
    assert hessian[:5].mean() == pytest.approx(1.0)
    assert hessian[5:].mean() == pytest.approx(1.0)


def test_a_failure_is_slower_than_what_works_and_no_other_failure() -> None:
    tasks, throughputs = ["a"] * 4, np.array([1.0, 0.3, 0.0, 0.0])
    gradient, _ = AllPairs(tasks, throughputs)(np.zeros(4), None)
    assert gradient[0] < 0 and gradient[0] < gradient[1] < gradient[2]
    assert gradient[2] == pytest.approx(gradient[3])
    # nothing but failures, or a single candidate: nothing to learn
    for alone in (np.zeros(4), np.array([0.0])):
        gradient, hessian = AllPairs(tasks[: len(alone)], alone)(np.arange(len(alone)), None)
        assert not gradient.any()
        assert (hessian > 0).all() and (hessian < 1e-3).all()


def test_times_that_are_hardly_apart_hardly_count() -> None:
    sure, _ = AllPairs(["a"] * 2, np.array([1.0, 0.5]))(np.zeros(2), None)
    unsure, _ = AllPairs(["a"] * 2, np.array([1.0, 0.99]))(np.zeros(2), None)
    assert sure[0] < 9 * unsure[0] < 0


def test_large_tasks_are_compared_in_part() -> None:
    """Work grows with the candidates, not with their square, and every one has its partners."""
    size = 10 * PARTNERS
    throughputs = np.linspace(1.0, 0.1, size)
    found = AllPairs(["a"] * size, throughputs)
    pairs = {frozenset(p) for p in zip(found._first.tolist(), found._second.tolist(), strict=True)}
    assert len(pairs) == len(found._first) == size * PARTNERS // 2
    assert all(len(pair) == 2 for pair in pairs)
    assert (np.bincount([place for pair in pairs for place in pair]) == PARTNERS).all()
    gradient, _ = found(np.zeros(size), None)
    assert np.corrcoef(gradient, throughputs)[0, 1] < -0.9
