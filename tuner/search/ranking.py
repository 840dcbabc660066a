"""Ranking of candidates before they are measured.

They are ranked by the scores of the cost model or, until the model is trained, by estimated times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log

import numpy as np

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.search.memory import Memory
from tilewright.tuner.search.moves import mutate
from tilewright.tuner.search.protocol import SearchContext

POOL = 192
"""Number of new candidates that are ranked at a time. Lowering a candidate takes about 1 ms,
measuring it 10 ms."""

NEAR = 48
"""Number of the ranked candidates that are mutations of the fastest measured candidates."""

ELITES = 8
"""Number of the fastest measured candidates that are mutated."""

DEVIATION = 0.3
"""Assumed standard deviation of the times of a task's candidates, in log time, if estimates do not
give it."""


class Ranking:
    """Scores and ranks candidates of one task. A higher score means a faster candidate."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._unusable: set[Schedule] = set()
        self._foreseen: dict[Schedule, float] = {}

    @property
    def origin(self) -> str:
        """Return the origin for candidates chosen by this ranking (`Suggestion.origin`).

        It is "model" if the cost model is trained, otherwise the value of `prior`.
        """
        return "model" if self._context.model.trained else self.prior

    @property
    def prior(self) -> str:
        """Return the origin for candidates chosen while the cost model is untrained.

        It is "estimate" if candidates are ranked by estimates, otherwise "random".
        """
        return "estimate" if self._context.estimates else "random"

    def estimates(self, schedules: Iterable[Schedule]) -> dict[Schedule, float]:
        """Return the logarithm of each schedule's estimated seconds, by schedule.

        Schedules that cannot be lowered are left out.
        """
        found = {}
        for schedule in dict.fromkeys(schedules):
            seconds = self._context.features.estimated_seconds(schedule)
            if seconds is not None:
                found[schedule] = log(seconds)
        return found

    def predict(
        self,
        pool: Sequence[Schedule],
        estimates: Mapping[Schedule, float],
        measured: Iterable[Schedule],
    ) -> dict[Schedule, float]:
        """Convert the cost model's scores to predictions of log seconds, by schedule.

        The mean of the predictions for `pool` is 0. The standard deviation of these predictions
        equals the standard deviation of the estimates of the pool. If the search ignores the
        estimates (`SearchContext.estimates`), the standard deviation is DEVIATION. Return an empty
        dict if the cost model is not trained.

        For each schedule in `measured`, the result has the last prediction before the measurement.
        A later prediction would not show the model's quality, because the model was trained on the
        measurement.

        Args:
            pool: the schedules to predict.
            estimates: estimated log seconds by schedule.
            measured: schedules that have been measured.
        """
        if not self._context.model.trained or not pool:
            return {}
        scores = self.scores(pool)
        if not scores:
            return {}
        values = np.array(list(scores.values()))
        spread = np.array([estimates[s] for s in scores])
        deviation = float(spread.std()) if self._context.estimates else DEVIATION
        scale = deviation / float(values.std()) if values.std() > 0 else 0.0
        now = {s: float(values.mean() - v) * scale for s, v in scores.items()}
        self._foreseen.update(now)
        return now | {
            s: self._foreseen[s] for s in measured if s in self._foreseen and s not in now
        }

    def scores(self, schedules: Iterable[Schedule]) -> dict[Schedule, float]:
        """Return a score for each schedule that can be lowered to a loop nest. Higher is better.

        A trained cost model gives the scores. Without a trained model, a score is the negative
        logarithm of the estimated seconds, or 0 if the search ignores the estimates
        (`SearchContext.estimates`).
        """
        if not self._context.model.trained:
            believed = float(self._context.estimates)  # if estimates are off, all scores are equal
            return {s: -believed * value for s, value in self.estimates(schedules).items()}
        distinct = [s for s in dict.fromkeys(schedules) if s not in self._unusable]
        found = self._context.features.scores(distinct, self._context.model.predict)
        self._unusable.update(set(distinct) - found.keys())
        return found

    def best_first(self, schedules: Iterable[Schedule]) -> list[Schedule]:
        """Return the schedules that can be lowered, best score first; ties are in random order."""
        scores = self.scores(schedules)
        ranked = list(scores)
        self._context.rng.shuffle(ranked)
        return sorted(ranked, key=lambda schedule: -scores[schedule])

    def most(self, count: int) -> int:
        """Return how many of `count` candidates to score in this run.

        Scoring takes time. So a run with a small time budget scores only a part of `count`
        (`tuner.limits.search_effort`), but at least 1.
        """
        return max(1, round(count * self._context.features.effort))

    def pool(self, memory: Memory) -> list[Schedule]:
        """Create new candidates to rank: mutations of the fastest ones, and random schedules.

        `memory` has the measured candidates of the task, and is the source of random schedules.
        """
        space, rng = memory.space, self._context.rng
        elites = memory.elites(ELITES)
        count = self.most(NEAR) if elites else 0
        steps = [mutate(space, rng.choice(elites), rng) for _ in range(count)]
        near = [step for step in steps if step is not None and memory.is_new(step)]
        drawn = memory.draw(self.most(POOL) - len(near))
        return list(dict.fromkeys([*near, *drawn]))
