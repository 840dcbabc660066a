"""A strategy's memory for one task: the candidates that were suggested or measured."""

from __future__ import annotations

import random
from collections.abc import Iterable

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import ScheduleSpace
from tilewright.tuner.search.protocol import Observed, Suggestion


class Memory:
    """Suggestions and results for one task, and a source of new random candidates.

    Candidates with the same code count as one: only the first has a time.
    """

    def __init__(self, space: ScheduleSpace, rng: random.Random) -> None:
        self.space = space
        self.seconds: dict[Schedule, float] = {}
        """Seconds measured, of one schedule for each code."""
        self._rng = rng
        self._seen: set[Schedule] = set()
        self._codes: dict[str, Schedule] = {}
        self._decks: dict[str, list[Schedule]] | None = None

    @property
    def best(self) -> float | None:
        return min(self.seconds.values(), default=None)

    def is_new(self, schedule: Schedule) -> bool:
        """Whether a schedule was neither suggested nor measured."""
        return schedule not in self._seen

    def update(self, results: Iterable[Observed]) -> None:
        """Record results. Their schedules are not suggested again."""
        for observed in results:
            schedule, seconds = observed.schedule, observed.seconds
            self._seen.add(schedule)
            if seconds is None:
                continue
            if observed.object_digest:
                schedule = self._codes.setdefault(observed.object_digest, schedule)
            self.seconds[schedule] = min(seconds, self.seconds.get(schedule, seconds))

    def take(self, schedules: Iterable[Schedule], origin: str) -> list[Suggestion]:
        """Convert schedules to suggestions, and mark them as suggested."""
        taken = [Suggestion(schedule, origin) for schedule in schedules]
        self._seen.update(suggestion.schedule for suggestion in taken)
        return taken

    def elites(self, count: int) -> list[Schedule]:
        """Return the fastest measured schedules, at most `count`, fastest first."""
        return sorted(self.seconds, key=self.seconds.__getitem__)[:count]

    def draw(self, count: int) -> list[Schedule]:
        """Return random new schedules, the algorithms in turn; fewer if the space is used up.

        The spaces of algorithms differ in size by orders of magnitude, so uniform sampling over all
        points would hardly ever try the small spaces. A schedule that is not passed to `take` may
        be returned again.
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
