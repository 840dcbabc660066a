"""Bayesian optimisation: the strategy suggests candidates with the largest expected improvement.

Expected improvement (Jones, Schonlau and Welch 1998) is computed with a Gaussian process over the
knobs. Its prior combines three predictors: the analytical estimate, the distance from the default
schedule, and the cost model. From few trials, the process learns how reliable each predictor is in
this task, and how its predictions differ from measurements for each algorithm and along each knob.
Within a batch, a chosen candidate counts as measured, with its predicted time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import erf, log, pi, sqrt
from statistics import fmean

import numpy as np

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.search.kriging import Kriging, Opinion
from tilewright.tuner.search.memory import Memory
from tilewright.tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion
from tilewright.tuner.search.ranking import Ranking

REMEMBERED = 200
"""Number of measurements that the regression uses, the fastest ones."""

ESTIMATE_SHARE, ESTIMATE_DEVIATION = 0.5, 0.4
"""Mean and standard deviation of a prior: the ratio of the real to the estimated difference in log
time between schedules of one algorithm."""

RULES_SHARE, RULES_DEVIATION = 0.03, 0.03
"""Mean and standard deviation of a prior: the increase in log time if a knob moves through its
whole range, away from the value that the rules choose.

The values come from tables of some 35 measured candidates each, for 153 constrained tasks and 272
others. Of the candidates that change one or two knobs of the untuned default, a fifth to a quarter
are faster than the default. Of those that change five knobs, a tenth are faster.
"""

OTHER_ALGORITHM = 0.3
LEVEL_SHARE = 0.65
"""Expected ratio of the real to the estimated difference in log time between two algorithms.
`OTHER_ALGORITHM` is the expected slowdown, in log time, of an algorithm that the rules did not
choose, if the estimates are equal.

Regression on the 68 algorithms other than the default's in the 153 tasks of `RULES_SHARE` gives
0.64 and 0.15. But with a slowdown of 0.15, candidates that are merely uncertain are tried too
early. With 20 seeds on twelve tables of measured candidates, a slowdown of 0.15 leads to a regret
of 0.91 % after 8 trials, and 0.3 to 0.80 %. The 153 tasks show the same.
"""

UNTRUSTED_DEVIATION = 0.6
"""Standard deviation of the prior for the ratio of real to estimated differences, if estimates are
not trusted. The mean is 0."""

MODEL_SHARE, MODEL_DEVIATION = 0.5, 0.4
"""Mean and standard deviation of a prior: the ratio of the real difference between two schedules to
the difference that the cost model predicts. The model's scores are scaled to the estimates."""

SLOW = 0.7
"""Upper limit of the logarithm of a measured time relative to the fastest. Longer times are
clipped, because the times of slow candidates are not informative about fast ones."""


PATIENCE = 32
"""Number of suggestions without a certain algorithm after which this algorithm gets the next
suggestion. No algorithm is ruled out permanently."""


class Bayesian:
    """A strategy that suggests the candidates with the largest expected improvement.

    `Kriging` predicts the mean and the deviation of each candidate's time.
    """

    def __init__(self, context: SearchContext) -> None:
        self._ranking = Ranking(context)
        self._trusts_estimates = context.estimates
        self._memory = Memory(context.space, context.rng)
        self._kriging = Kriging(context.space)
        self._home = context.space.default().algorithm
        self._waited = {space.algorithm: 0 for space in context.space.subspaces}

    def suggest(self, count: int) -> list[Suggestion]:
        pool = self._ranking.pool(self._memory)
        elites = self._memory.elites(REMEMBERED)
        estimates = self._ranking.estimates([*pool, *elites])
        pool = [schedule for schedule in pool if schedule in estimates]
        fastest = log(self._memory.best or 1.0)
        measured = {
            s: min(log(self._memory.seconds[s]), fastest + SLOW) for s in elites if s in estimates
        }
        levels, opinions = self._beforehand(estimates, measured)
        foreseen = self._ranking.predict(pool, estimates, self._memory.seconds)
        if foreseen:
            opinions.append(Opinion(foreseen, MODEL_SHARE, MODEL_DEVIATION))
        origin = "bayesian" if measured else self._ranking.prior
        chosen: list[Schedule] = []
        for _ in range(min(count, len(pool))):
            means, deviations = self._kriging.predict(pool, levels, opinions, measured)
            # Without measurements, the first is the best by estimate, and the others spread out.
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

    def _beforehand(
        self, estimates: Mapping[Schedule, float], measured: Mapping[Schedule, float]
    ) -> tuple[dict[str, float], list[Opinion]]:
        """Return prior assumptions about the times of schedules, for `Kriging.predict`.

        If the search trusts the estimates, the mean of each algorithm is its expected time
        (`_beside_rules`). There are two predictors: the estimates, and the distance of a schedule
        from the default schedule.

        If the device differs from the target of the estimates, the search does not trust them. Then
        all algorithms have the same mean: the mean of the measurements, or 0 without measurements.
        The only predictor is the estimates, with weight 0 until measurements agree with them. The
        distance is left out, because the default schedule was chosen for the other target.

        Args:
            estimates: estimated log seconds by schedule.
            measured: measured log seconds by schedule.

        Returns:
            the mean log seconds by algorithm, and predictors of the differences between schedules
            of one algorithm.
        """
        levels = _levels(estimates)
        if self._trusts_estimates:
            return _beside_rules(levels, self._home), [
                Opinion(estimates, ESTIMATE_SHARE, ESTIMATE_DEVIATION),
                Opinion(self._kriging.turned(estimates), RULES_SHARE, RULES_DEVIATION),
            ]
        if not measured:
            return dict.fromkeys(levels, 0.0), []
        level = fmean(measured.values())
        return dict.fromkeys(levels, level), [Opinion(estimates, 0.0, UNTRUSTED_DEVIATION)]

    def update(self, results: Sequence[Observed]) -> None:
        self._memory.update(results)


def _levels(estimates: Mapping[Schedule, float]) -> dict[str, float]:
    """Return, for each algorithm, the mean of the estimated log seconds of its schedules."""
    by_algorithm: dict[str, list[float]] = defaultdict(list)
    for schedule, value in estimates.items():
        by_algorithm[schedule.algorithm].append(value)
    return {algorithm: fmean(values) for algorithm, values in by_algorithm.items()}


def _beside_rules(levels: Mapping[str, float], home: str) -> dict[str, float]:
    """Return the expected log seconds of each algorithm, given the estimated ones (`levels`).

    For `home`, the algorithm of the default schedule, the estimate is used unchanged. For another
    algorithm, the estimated difference from `home` is multiplied by LEVEL_SHARE, because real
    differences are smaller than estimated ones. Then OTHER_ALGORITHM is added as a penalty, because
    the rules that choose the default schedule did not choose this algorithm.
    """
    if home not in levels:
        return dict(levels)
    return {
        algorithm: level
        if algorithm == home
        else levels[home] + LEVEL_SHARE * (level - levels[home]) + OTHER_ALGORITHM
        for algorithm, level in levels.items()
    }


def _expected_improvement(means: np.ndarray, deviations: np.ndarray, best: float) -> np.ndarray:
    """Return the expected improvement over `best` of normally distributed log seconds.

    This is the expectation of max(0, best - x) for each variable x with the given mean and standard
    deviation.
    """
    away = (best - means) / deviations
    below = np.array([0.5 * (1 + erf(z / sqrt(2))) for z in away])
    density = np.exp(-(away**2) / 2) / sqrt(2 * pi)
    return np.asarray(deviations * (away * below + density))


def make_search(context: SearchContext) -> SearchStrategy:
    return Bayesian(context)
