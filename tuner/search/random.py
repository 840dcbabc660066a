"""Random sampling without replacement: the baseline that every other strategy has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tuner.search.memory import Memory
from tilewright.tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion


class RandomSampling:
    """Suggests random schedules: each algorithm is equally likely, then each of its schedules."""

    def __init__(self, context: SearchContext) -> None:
        self._memory = Memory(context.space, context.rng)

    def suggest(self, count: int) -> list[Suggestion]:
        return self._memory.take(self._memory.draw(count), "random")

    def update(self, results: Sequence[Observed]) -> None:
        self._memory.update(results)


def make_search(context: SearchContext) -> SearchStrategy:
    return RandomSampling(context)
