"""A search strategy's record of the candidates of one task that were suggested or measured."""

from __future__ import annotations

import random
from collections.abc import Iterable

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import ScheduleSpace
from tilewright.tuner.search.protocol import Observed, Suggestion


class Memory:
    """The suggested and measured candidates of one task, and a source of new random candidates.

    The attribute `seconds` has the fastest time of each measured schedule. Schedules with the same
    code have one common entry, under the first of them.
    """

    def __init__(self, space: ScheduleSpace, rng: random.Random) -> None:
        self.space = space
        self.seconds: dict[Schedule, float] = {}
        """Fastest measured time in seconds of each schedule. Schedules with the same code have one
        common entry."""
        self._rng = rng
        self._seen: set[Schedule] = set()
        self._codes: dict[str, Schedule] = {}
        self._decks: dict[str, list[Schedule]] | None = None

    @property
    def best(self) -> float | None:
        return min(self.seconds.values(), default=None)

    def is_new(self, schedule: Schedule) -> bool:
        """Whether a schedule was neither suggested nor reported to `update`."""
        return schedule not in self._seen

    def update(self, results: Iterable[Observed]) -> None:
        """Record the results of candidates, which then are no longer new."""
        for observed in results:
            schedule, seconds = observed.schedule, observed.seconds
            self._seen.add(schedule)
            if seconds is None:
                continue
            if observed.object_digest:
                schedule = self._codes.setdefault(observed.object_digest, schedule)
            self.seconds[schedule] = min(seconds, self.seconds.get(schedule, seconds))

    def take(self, schedules: Iterable[Schedule], origin: str) -> list[Suggestion]:
        """Convert schedules to suggestions with the given origin, and record them as suggested."""
        taken = [Suggestion(schedule, origin) for schedule in schedules]
        self._seen.update(suggestion.schedule for suggestion in taken)
        return taken

    def elites(self, count: int) -> list[Schedule]:
        """Return up to `count` of the fastest measured schedules, fastest first."""
        return sorted(self.seconds, key=self.seconds.__getitem__)[:count]

    def draw(self, count: int) -> list[Schedule]:
        """Return `count` random new schedules, or all new ones if there are fewer.

        The algorithms alternate, because their spaces differ in size by orders of magnitude: with
        uniform sampling over all schedules, small spaces would hardly ever be tried. A schedule
        that the caller does not pass to `take` may be returned again.
        """
        decks = self._shuffled()
        drawn: list[Schedule] = []
        while len(drawn) < count:
            names = [name for name, deck in decks.items() if deck]
            if not names:
                break
            self._rng.shuffle(names)
            for name in names[: count - len(drawn)]:
                deck = decks[name]
                while deck and not self.is_new(deck[-1]):
                    deck.pop()
                if deck:
                    drawn.append(deck.pop())
        for schedule in reversed(drawn):
            decks[schedule.algorithm].append(schedule)
        return drawn

    def _shuffled(self) -> dict[str, list[Schedule]]:
        if self._decks is None:
            self._decks = {space.algorithm: list(space.points) for space in self.space.subspaces}
            for deck in self._decks.values():
                self._rng.shuffle(deck)
        return self._decks
