"""Evolutionary search guided by the cost model: tournament, mutation, crossover, epsilon-greedy.

The population is bred on predictions, which cost about a millisecond a candidate, and only its best
are measured (as Ansor does, Zheng et al. 2020). It starts from what was measured fastest and from a
fresh draw of every algorithm, so that no algorithm is given up on the word of the model alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.schedule.schedule import Choice, Schedule
from compiler.schedule.space import SubSpace
from tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion

POPULATION = 64
GENERATIONS = 3
ELITES = 12
"""Measured schedules, fastest first, that are parents in every generation."""
TOURNAMENT = 3
CROSSOVER = 0.3
"""Share of children with two parents; the others are mutations of one."""
NEIGHBOUR = 0.7
"""Share of mutations that move to a neighbouring value of a knob rather than to any."""
EPSILON = 0.15
"""Share of each batch that is drawn at random, whatever the model says."""
ATTEMPTS = 8
"""Tries for a child inside the space before it is drawn at random."""


class Evolutionary:
    """Breeds candidates of one task on the cost model's scores."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._rng = context.rng
        self._subspaces = {space.algorithm: space for space in context.space.subspaces}
        self._seen: set[Schedule] = set()
        self._measured: dict[Schedule, float] = {}
        self._unusable: set[Schedule] = set()
        self._decks = {name: list(space.points) for name, space in self._subspaces.items()}
        for deck in self._decks.values():
            self._rng.shuffle(deck)

    def suggest(self, count: int) -> list[Suggestion]:
        if not self._context.model.trained:
            return self._take(self._draw(count), "random")
        ranked = self._breed()
        explore = sum(1 for _ in range(count) if self._rng.random() < EPSILON)
        taken = self._take(ranked[: count - explore], "evolution")
        return taken + self._take(self._draw(count - len(taken)), "random")

    def update(self, results: Sequence[Observed]) -> None:
        for observed in results:
            schedule, seconds = observed.schedule, observed.seconds
            self._seen.add(schedule)
            if seconds is not None:
                self._measured[schedule] = min(seconds, self._measured.get(schedule, seconds))

    def _take(self, schedules: Sequence[Schedule], origin: str) -> list[Suggestion]:
        self._seen.update(schedules)
        return [Suggestion(schedule, origin) for schedule in schedules]

    def _draw(self, count: int) -> list[Schedule]:
        """Unseen schedules, every algorithm in turn, in random order."""
        drawn: list[Schedule] = []
        while len(drawn) < count:
            names = [name for name, deck in self._decks.items() if deck]
            if not names:
                break
            self._rng.shuffle(names)
            for name in names[: count - len(drawn)]:
                deck = self._decks[name]
                while deck:
                    schedule = deck.pop()
                    if schedule not in self._seen and schedule not in drawn:
                        drawn.append(schedule)
                        break
        return drawn

    def _sample(self) -> Schedule:
        space = self._rng.choice(list(self._subspaces.values()))
        return self._rng.choice(space.points) if space.points else space.default

    def _breed(self) -> list[Schedule]:
        """Unseen schedules, the best predicted first."""
        elites = sorted(self._measured, key=self._measured.__getitem__)[:ELITES]
        population = [*elites, *(self._sample() for _ in range(POPULATION - len(elites)))]
        scores = self._score(population)
        known = dict(scores)
        for _ in range(GENERATIONS):
            parents = list(scores)
            if not parents:
                break
            children = [self._child(parents, scores) for _ in range(POPULATION - len(elites))]
            scores = self._score([*elites, *children])
            known.update(scores)
        fresh = [s for s in known if s not in self._seen]
        # Ties (equal leaves of the trees) are broken by chance, not by the order of the knobs.
        self._rng.shuffle(fresh)
        return sorted(fresh, key=lambda schedule: -known[schedule])

    def _score(self, schedules: Sequence[Schedule]) -> dict[Schedule, float]:
        distinct = [s for s in dict.fromkeys(schedules) if s not in self._unusable]
        kept, rows = self._context.features.rows(distinct)
        self._unusable.update(set(distinct) - set(kept))
        return dict(zip(kept, map(float, self._context.model.predict(rows)), strict=True))

    def _child(self, parents: Sequence[Schedule], scores: dict[Schedule, float]) -> Schedule:
        first = self._tournament(parents, scores)
        if self._rng.random() < CROSSOVER:
            partners = [p for p in parents if p.algorithm == first.algorithm and p != first]
            if partners:
                child = self._cross(first, self._tournament(partners, scores))
                if child is not None:
                    return child
        return self._mutate(first)

    def _tournament(self, among: Sequence[Schedule], scores: dict[Schedule, float]) -> Schedule:
        entrants = [self._rng.choice(among) for _ in range(TOURNAMENT)]
        return max(entrants, key=lambda schedule: scores[schedule])

    def _cross(self, first: Schedule, second: Schedule) -> Schedule | None:
        """A schedule with each knob from either parent, if one of a few lies in the space."""
        other = dict(second.choices)
        for _ in range(ATTEMPTS):
            child = Schedule(
                first.algorithm,
                tuple(
                    (name, other[name] if name in other and self._rng.random() < 0.5 else value)
                    for name, value in first.choices
                ),
            )
            if child not in (first, second) and child in self._context.space:
                return child
        return None

    def _mutate(self, parent: Schedule) -> Schedule:
        """A schedule of the space with one knob changed (now and then two), or a random one."""
        space = self._subspaces[parent.algorithm]
        knobs = [knob for knob in space.knobs if len(knob.values) > 1]
        for _ in range(ATTEMPTS if knobs else 0):
            child = parent
            for _ in range(1 if self._rng.random() < 0.75 else 2):
                child = self._turn(space, child, self._rng.choice(knobs).name)
            if child != parent and child in self._context.space:
                return child
        return self._sample()

    def _turn(self, space: SubSpace, schedule: Schedule, name: str) -> Schedule:
        """One knob moved to a neighbouring value, or to any other."""
        values = next(knob.values for knob in space.knobs if knob.name == name)
        current = schedule[name]
        position = values.index(current) if current in values else 0
        neighbours = [values[i] for i in (position - 1, position + 1) if 0 <= i < len(values)]
        others = [value for value in values if value != current]
        near = self._rng.random() < NEIGHBOUR
        changed: Choice = self._rng.choice(neighbours if near else others)
        return Schedule(
            schedule.algorithm,
            tuple((n, changed if n == name else value) for n, value in schedule.choices),
        )


def make_search(context: SearchContext) -> SearchStrategy:
    return Evolutionary(context)
