"""A combination of search strategies, in which successful strategies suggest more candidates.

Thompson sampling (Thompson 1933) chooses a strategy for each candidate of a batch. The probability
that a strategy's candidate improves on the best time is modelled by a beta distribution. Its
parameters are counts of the strategy's successes and failures, in which older ones have less
weight. All strategies get the results of all candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.search.bayesian import Bayesian
from tilewright.tuner.search.evolutionary import Evolutionary
from tilewright.tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion
from tilewright.tuner.search.random import RandomSampling

IMPROVED = 0.002
"""Minimum fraction by which a candidate must be faster than the best one to count as an
improvement."""

FORGETTING = 0.95
"""Factor by which each result reduces the weight of all earlier results."""


@dataclass(slots=True)
class _Member:
    """A search strategy with the counts of its successes and failures.

    The counts start from prior values, not from 0. Each new result, of any strategy, multiplies all
    counts by FORGETTING, so that older results count less.

    Attributes:
        search: the search strategy.
        improved: the number of the strategy's suggestions that improved on the best time.
        failed: the number of the strategy's suggestions that did not improve on the best time.
    """

    search: SearchStrategy
    improved: float
    failed: float


class Portfolio:
    """A strategy that chooses between Bayesian, Evolutionary and RandomSampling by their success.

    It chooses anew for each candidate of a batch.
    """

    def __init__(self, context: SearchContext) -> None:
        self._rng = context.rng
        self._members = [
            _Member(Bayesian(context), 8.0, 2.0),
            _Member(Evolutionary(context), 1.0, 3.0),
            _Member(RandomSampling(context), 0.5, 4.0),
        ]
        self._suggested: dict[Schedule, _Member] = {}
        self._best: float | None = None

    def suggest(self, count: int) -> list[Suggestion]:
        shares = Counter(self._draw() for _ in range(count))
        chosen: list[Suggestion] = []
        for number, member in enumerate(self._members):
            chosen += self._ask(member, shares[number])
        # If members have nothing left to suggest, random schedules take their places.
        return chosen + self._ask(self._members[-1], count - len(chosen))

    def update(self, results: Sequence[Observed]) -> None:
        for member in self._members:
            member.search.update(results)
        for observed in results:
            if observed.seconds is None:
                continue
            suggester = self._suggested.pop(observed.schedule, None)
            improved = self._best is None or observed.seconds < self._best * (1 - IMPROVED)
            if improved:
                self._best = observed.seconds
            if suggester is not None:
                for member in self._members:
                    member.improved *= FORGETTING
                    member.failed *= FORGETTING
                suggester.improved += improved
                suggester.failed += not improved

    def _draw(self) -> int:
        chances = [self._rng.betavariate(m.improved + 0.1, m.failed + 0.1) for m in self._members]
        return max(range(len(chances)), key=chances.__getitem__)

    def _ask(self, member: _Member, count: int) -> list[Suggestion]:
        found = member.search.suggest(count) if count > 0 else []
        taken = [Observed(suggestion.schedule, None) for suggestion in found]
        for other in self._members:
            if other is not member:
                other.search.update(taken)
        for suggestion in found:
            self._suggested[suggestion.schedule] = member
        return found


def make_search(context: SearchContext) -> SearchStrategy:
    return Portfolio(context)
