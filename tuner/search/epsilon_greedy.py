"""Take the candidates that the model ranks first (at first the estimate), and a share at random."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tuner.search.memory import Memory
from tilewright.tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion
from tilewright.tuner.search.ranking import Ranking

EPSILON = 0.15
"""Share of the candidates that are drawn at random, whatever the model says."""


class EpsilonGreedy:
    """Ranks new candidates of one task."""

    def __init__(self, context: SearchContext) -> None:
        self._rng = context.rng
        self._ranking = Ranking(context)
        self._memory = Memory(context.space, context.rng)

    def suggest(self, count: int) -> list[Suggestion]:
        explored = sum(self._rng.random() < EPSILON for _ in range(count))
        ranked = self._ranking.best_first(self._ranking.pool(self._memory))
        taken = self._memory.take(ranked[: count - explored], self._ranking.origin)
        return taken + self._memory.take(self._memory.draw(count - len(taken)), "random")

    def update(self, results: Sequence[Observed]) -> None:
        self._memory.update(results)


def make_search(context: SearchContext) -> SearchStrategy:
    return EpsilonGreedy(context)
