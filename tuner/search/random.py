"""Random sampling without replacement, the baseline for all other search strategies."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tuner.search.memory import Memory
from tilewright.tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion


class RandomSampling:
    """A strategy that suggests random schedules: a random algorithm, and a random schedule of it.

    All algorithms are equally likely, and so are all schedules of an algorithm.
    """

    def __init__(self, context: SearchContext) -> None:
        self._memory = Memory(context.space, context.rng)

    def suggest(self, count: int) -> list[Suggestion]:
        return self._memory.take(self._memory.draw(count), "random")

    def update(self, results: Sequence[Observed]) -> None:
        self._memory.update(results)


def make_search(context: SearchContext) -> SearchStrategy:
    return RandomSampling(context)
