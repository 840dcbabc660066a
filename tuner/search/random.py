"""Uniform sampling without replacement: the baseline that every other strategy has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.schedule.schedule import Schedule
from tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion


class RandomSampling:
    """Each algorithm of the space has the same chance, then each of its schedules.

    Spaces of different algorithms differ in size by orders of magnitude; drawing over all points
    would hardly ever try the small ones.
    """

    def __init__(self, context: SearchContext) -> None:
        self._rng = context.rng
        self._seen: set[Schedule] = set()
        self._decks = [list(space.points) for space in context.space.subspaces]
        for deck in self._decks:
            self._rng.shuffle(deck)

    def suggest(self, count: int) -> list[Suggestion]:
        chosen: list[Suggestion] = []
        while len(chosen) < count:
            decks = [deck for deck in self._decks if deck]
            if not decks:
                break
            schedule = self._rng.choice(decks).pop()
            if schedule not in self._seen:
                self._seen.add(schedule)
                chosen.append(Suggestion(schedule, "random"))
        return chosen

    def update(self, results: Sequence[Observed]) -> None:
        self._seen.update(observed.schedule for observed in results)


def make_search(context: SearchContext) -> SearchStrategy:
    return RandomSampling(context)
