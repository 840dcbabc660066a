"""Bayesian optimisation around the draft and the model: take what may improve the most.

Expected improvement (Jones, Schonlau and Welch 1998) under a Gaussian process over the knobs around
what the draft and the model say. With few trials it learns where these are wrong: for an algorithm
as a whole, along each knob, and how far either can be trusted in this task. Within a batch, what
was taken counts as measured at its mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import erf, log, pi, sqrt
from statistics import fmean

import numpy as np

from compiler.schedule.schedule import Schedule
from tuner.search.kriging import Kriging, Opinion
from tuner.search.memory import Memory
from tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion
from tuner.search.ranking import Ranking

REMEMBERED = 200
"""Measurements, the fastest first, that are regressed on."""

DRAFT_SHARE, DRAFT_DEVIATION = 0.5, 0.4
"""How much of a difference that the draft sees between schedules of one algorithm is there."""

MODEL_SHARE, MODEL_DEVIATION = 0.5, 0.4
"""The same of the model, whose scores are brought to the scale of the draft."""

SLOW = 0.7
"""Measured times count as no slower than so much (as a logarithm) beside the fastest: how slow
the slow ones are says nothing of the fast ones."""


PATIENCE = 32
"""Suggestions after which an algorithm that had none gets one: none is given up for good."""


class Bayesian:
    """Regresses on the measurements of one task."""

    def __init__(self, context: SearchContext) -> None:
        self._ranking = Ranking(context)
        self._memory = Memory(context.space, context.rng)
        self._kriging = Kriging(context.space)
        self._waited = {space.algorithm: 0 for space in context.space.subspaces}

    def suggest(self, count: int) -> list[Suggestion]:
        pool = self._ranking.pool(self._memory)
        elites = self._memory.elites(REMEMBERED)
        known = [log(self._memory.seconds[s]) for s in elites]
        drafts = self._ranking.drafts([*pool, *elites], fmean(known) if known else 0.0)
        pool = [schedule for schedule in pool if schedule in drafts]
        fastest = log(self._memory.best or 1.0)
        measured = {
            s: min(log(self._memory.seconds[s]), fastest + SLOW) for s in elites if s in drafts
        }
        levels = _levels(drafts)
        opinions = [Opinion(drafts, DRAFT_SHARE, DRAFT_DEVIATION)]
        foreseen = self._ranking.foresee(pool, drafts, self._memory.seconds)
        if foreseen:
            opinions.append(Opinion(foreseen, MODEL_SHARE, MODEL_DEVIATION))
        origin = "bayesian" if measured else self._ranking.prior
        chosen: list[Schedule] = []
        for _ in range(min(count, len(pool))):
            means, deviations = self._kriging.predict(pool, levels, opinions, measured)
            # Before anything is measured the first is the draft's own, and the rest spread out.
            best = min(measured.values(), default=float(means.min()))
            gains = _expected_improvement(means, deviations, best)
            late = np.array([self._waited[s.algorithm] >= PATIENCE for s in pool])
            place = int(np.argmax(np.where(late, gains, -1.0) if late.any() else gains))
            chosen.append(pool.pop(place))
            for algorithm in self._waited:
                self._waited[algorithm] += 1
            self._waited[chosen[-1].algorithm] = 0
            measured[chosen[-1]] = float(means[place])
        taken = self._memory.take(chosen, origin)
        return taken + self._memory.take(self._memory.draw(count - len(taken)), "random")

    def update(self, results: Sequence[Observed]) -> None:
        self._memory.update(results)


def _levels(drafts: Mapping[Schedule, float]) -> dict[str, float]:
    """The mean draft of each algorithm."""
    by_algorithm: dict[str, list[float]] = defaultdict(list)
    for schedule, value in drafts.items():
        by_algorithm[schedule.algorithm].append(value)
    return {algorithm: fmean(values) for algorithm, values in by_algorithm.items()}


def _expected_improvement(means: np.ndarray, deviations: np.ndarray, best: float) -> np.ndarray:
    """How far below `best` normal variables are on average, where they are below it."""
    away = (best - means) / deviations
    below = np.array([0.5 * (1 + erf(z / sqrt(2))) for z in away])
    density = np.exp(-(away**2) / 2) / sqrt(2 * pi)
    return np.asarray(deviations * (away * below + density))


def make_search(context: SearchContext) -> SearchStrategy:
    return Bayesian(context)
