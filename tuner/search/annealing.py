"""Simulated annealing on measured times (Kirkpatrick, Gelatt and Vecchi 1983), no model needed.

Several walks at once, since candidates are measured in batches, and every algorithm has its own:
turning knobs never leads from one to another. The first batch is drawn at random; a walk starts at
the fastest of its algorithm. It suggests a step from where it stands, and takes it if the step was
faster, or with a chance that falls with how much slower it was and with the number of measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from compiler.schedule.schedule import Schedule
from tuner.search.memory import Memory
from tuner.search.moves import mutate
from tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion

WALKS = 4
"""At least so many."""
START = 0.1
"""Temperature of the first step: a step that takes this much longer is accepted one time in e."""
COOLING = 0.95
"""Factor on the temperature for each measurement."""
STEPS = 8
"""Steps that are tried for one that is new, before the walk goes elsewhere at random."""


class SimulatedAnnealing:
    """Walks through the space of one task."""

    def __init__(self, context: SearchContext) -> None:
        self._rng = context.rng
        self._memory = Memory(context.space, context.rng)
        self._algorithms = [space.algorithm for space in context.space.subspaces]
        self._walks = max(WALKS, len(self._algorithms))
        self._places: dict[int, tuple[Schedule, float]] = {}
        self._waiting: dict[Schedule, int] = {}
        self._turn = 0
        self._temperature = START

    def suggest(self, count: int) -> list[Suggestion]:
        chosen: list[Suggestion] = []
        while len(chosen) < count:
            walk = self._turn % self._walks
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
            if place is not None and self._accepts(place[1], observed.seconds):
                self._places[walk] = observed.schedule, observed.seconds

    def _accepts(self, current: float, seconds: float) -> bool:
        worse = seconds / current - 1
        return worse <= 0 or self._rng.random() < exp(-worse / max(self._temperature, 1e-6))

    def _step(self, walk: int) -> Schedule | None:
        place = self._places.get(walk) or self._start(walk)
        if place is None:
            return None
        self._places[walk] = place
        for _ in range(STEPS):
            step = mutate(self._memory.space, place[0], self._rng)
            if step is not None and self._memory.is_new(step):
                return step
        return None

    def _start(self, walk: int) -> tuple[Schedule, float] | None:
        """The fastest of the walk's algorithm so far, the next for the next such walk."""
        count = len(self._algorithms)
        algorithm = self._algorithms[walk % count]
        measured = self._memory.elites(len(self._memory.seconds))
        found = [schedule for schedule in measured if schedule.algorithm == algorithm]
        if not found:
            return None
        schedule = found[walk // count % len(found)]
        return schedule, self._memory.seconds[schedule]


def make_search(context: SearchContext) -> SearchStrategy:
    return SimulatedAnnealing(context)
