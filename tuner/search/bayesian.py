"""Bayesian optimisation around the draft and the model: take what may improve the most.

Expected improvement (Jones, Schonlau and Welch 1998) under a Gaussian process over the knobs whose
mean is the draft, corrected by the model's order. With few trials it learns where these are wrong:
for an algorithm as a whole, and along each knob. Within a batch, what was taken counts as measured
at its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, log, pi, sqrt

import numpy as np

from compiler.schedule.schedule import Schedule
from tuner.search.kriging import Kriging
from tuner.search.memory import Memory
from tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion
from tuner.search.ranking import Ranking

REMEMBERED = 200
"""Measurements, the fastest first, that are regressed on."""


class Bayesian:
    """Regresses on the measurements of one task."""

    def __init__(self, context: SearchContext) -> None:
        self._ranking = Ranking(context)
        self._memory = Memory(context.space, context.rng)
        self._kriging = Kriging(context.space)

    def suggest(self, count: int) -> list[Suggestion]:
        pool = self._ranking.pool(self._memory)
        elites = self._memory.elites(REMEMBERED)
        prior = self._ranking.expected([*pool, *elites])
        pool = [schedule for schedule in pool if schedule in prior]
        measured = {s: log(self._memory.seconds[s]) for s in elites if s in prior}
        origin = "bayesian" if measured else "draft"
        chosen: list[Schedule] = []
        for _ in range(min(count, len(pool))):
            means, deviations = self._kriging.predict(pool, prior, measured)
            # Before anything is measured the first is the draft's own, and the rest spread out.
            best = min(measured.values(), default=float(means.min()))
            place = int(np.argmax(_expected_improvement(means, deviations, best)))
            chosen.append(pool.pop(place))
            measured[chosen[-1]] = float(means[place])
        taken = self._memory.take(chosen, origin)
        return taken + self._memory.take(self._memory.draw(count - len(taken)), "random")

    def update(self, results: Sequence[Observed]) -> None:
        self._memory.update(results)


def _expected_improvement(means: np.ndarray, deviations: np.ndarray, best: float) -> np.ndarray:
    """How far below `best` normal variables are on average, where they are below it."""
    away = (best - means) / deviations
    below = np.array([0.5 * (1 + erf(z / sqrt(2))) for z in away])
    density = np.exp(-(away**2) / 2) / sqrt(2 * pi)
    return np.asarray(deviations * (away * below + density))


def make_search(context: SearchContext) -> SearchStrategy:
    return Bayesian(context)
