"""Simulated annealing on measured times (Kirkpatrick, Gelatt and Vecchi 1983), no model needed.

There are two walks at once, since candidates are measured in batches. They start at the fastest
candidates measured so far. A walk suggests a step from its place. It takes the step if that was
faster; if it was slower, it takes it with a probability that falls with the difference and with the
number of measurements. Turning knobs never leads from one algorithm to another, so some steps are
draws from all algorithms; they are taken or not like any other. A walk goes back to the best if the
temperature would hardly have led it from there to its place: with few trials there is no time to
walk out of a bad region.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.search.memory import Memory
from tilewright.tuner.search.moves import mutate
from tilewright.tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion

WALKS = 2
START = 0.03
"""Temperature of the first step: a step that takes so much longer (a share) is accepted one time in
e. Half of a constrained space lies within some percent of the best, so a higher temperature would
make the walk random."""
COOLING = 0.95
"""Each measurement multiplies the temperature by this."""
FAR = 2.0
"""If a walk is slower than the best by more than so many temperatures, it goes back to the best."""
JUMP = 0.1
"""Share of steps that are draws from all algorithms, if there are several."""
STEPS = 8
"""Attempts at a step that is new, before the walk makes a random draw instead."""


class SimulatedAnnealing:
    """Walks through the space of one task."""

    def __init__(self, context: SearchContext) -> None:
        self._rng = context.rng
        self._memory = Memory(context.space, context.rng)
        self._jump = JUMP if len(context.space.subspaces) > 1 else 0.0
        self._places: dict[int, tuple[Schedule, float]] = {}
        self._waiting: dict[Schedule, int] = {}
        self._turn = 0
        self._temperature = START

    def suggest(self, count: int) -> list[Suggestion]:
        chosen: list[Suggestion] = []
        while len(chosen) < count:
            walk = self._turn % WALKS
            step = self._step(walk)
            found = [step] if step is not None else self._memory.draw(1)
            if not found:
                break
            chosen += self._memory.take(found, "random" if step is None else "annealing")
            self._waiting[found[0]] = walk
            self._turn += 1
        return chosen

    def update(self, results: Sequence[Observed]) -> None:
        self._memory.update(results)
        for observed in results:
            walk = self._waiting.pop(observed.schedule, None)
            if walk is None or observed.seconds is None:
                continue
            self._temperature *= COOLING
            place = self._places.get(walk)
            if place is None or self._accepts(place[1], observed.seconds):
                self._places[walk] = observed.schedule, observed.seconds

    def _accepts(self, current: float, seconds: float) -> bool:
        worse = seconds / current - 1
        return worse <= 0 or self._rng.random() < exp(-worse / max(self._temperature, 1e-6))

    def _step(self, walk: int) -> Schedule | None:
        """A new schedule next to the walk's place; None if a random draw is to be made."""
        place = self._place(walk)
        if place is None or self._rng.random() < self._jump:
            return None
        for _ in range(STEPS):
            step = mutate(self._memory.space, place, self._rng)
            if step is not None and self._memory.is_new(step):
                return step
        return None

    def _place(self, walk: int) -> Schedule | None:
        """The walk's present place; None before anything was measured."""
        fastest = self._memory.elites(WALKS)
        if not fastest:
            return None
        place = self._places.get(walk)
        if place is None:
            start = fastest[walk % len(fastest)]
        elif place[1] > self._memory.seconds[fastest[0]] * (1 + FAR * self._temperature):
            start = fastest[0]
        else:
            return place[0]
        self._places[walk] = start, self._memory.seconds[start]
        return start


def make_search(context: SearchContext) -> SearchStrategy:
    return SimulatedAnnealing(context)
