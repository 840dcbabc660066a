"""Evolutionary search, with tournament selection, mutation and crossover.

The fitness of a candidate is its score by the cost model, which takes about a millisecond to
compute, or by the estimate until the model is trained. Only the candidates with the highest fitness
are measured (as in Ansor, Zheng et al. 2020). Each evolution starts from the fastest measured
candidates and a new random sample of every algorithm, so that the model alone cannot rule out an
algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.search.memory import Memory
from tilewright.tuner.search.moves import cross, mutate
from tilewright.tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion
from tilewright.tuner.search.ranking import Ranking

POPULATION = 64
GENERATIONS = 3
ELITES = 12
"""Number of the fastest measured schedules that are parents in every generation."""
TOURNAMENT = 3
CROSSOVER = 0.3
"""Fraction of children with two parents. The others are mutations of one parent."""
EPSILON = 0.15
"""Probability that a candidate of a batch is random, independent of the model."""


class Evolutionary:
    """A strategy that suggests candidates created by mutation and crossover, and random ones."""

    def __init__(self, context: SearchContext) -> None:
        self._rng = context.rng
        self._ranking = Ranking(context)
        self._memory = Memory(context.space, context.rng)
        self._origins: dict[Schedule, str] = {}

    def suggest(self, count: int) -> list[Suggestion]:
        explored = sum(self._rng.random() < EPSILON for _ in range(count))
        taken: list[Suggestion] = []
        for schedule in self._breed()[: count - explored]:
            taken += self._memory.take([schedule], self._origins[schedule])
        return taken + self._memory.take(self._memory.draw(count - len(taken)), "random")

    def update(self, results: Sequence[Observed]) -> None:
        self._memory.update(results)

    def _breed(self) -> list[Schedule]:
        """Evolve a population for GENERATIONS generations; return new schedules, best score first.

        A schedule is new if it was neither suggested nor measured.
        """
        elites = self._memory.elites(ELITES)
        members = self._ranking.most(POPULATION - len(elites))
        fresh = self._memory.draw(members)
        self._origins = dict.fromkeys(fresh, self._ranking.origin)
        scores = self._ranking.scores([*elites, *fresh])
        known = dict(scores)
        for _ in range(GENERATIONS):
            if not scores:
                break
            children = [self._child(scores) for _ in range(members)]
            scores = self._ranking.scores([*elites, *children])
            known.update(scores)
        found = [schedule for schedule in known if self._memory.is_new(schedule)]
        # Ties (equal leaves of the trees) are broken at random, not by the order of the knobs.
        self._rng.shuffle(found)
        return sorted(found, key=lambda schedule: -known[schedule])

    def _child(self, scores: Mapping[Schedule, float]) -> Schedule:
        parents = list(scores)
        first = self._tournament(parents, scores)
        child, origin = None, "crossover"
        partners = [p for p in parents if p.algorithm == first.algorithm and p != first]
        if partners and self._rng.random() < CROSSOVER:
            second = self._tournament(partners, scores)
            child = cross(self._memory.space, first, second, self._rng)
        if child is None:
            child, origin = mutate(self._memory.space, first, self._rng), "mutation"
        if child is None:
            child, origin = first, self._ranking.origin
        self._origins.setdefault(child, origin)
        return child

    def _tournament(self, among: Sequence[Schedule], scores: Mapping[Schedule, float]) -> Schedule:
        entrants = [self._rng.choice(among) for _ in range(TOURNAMENT)]
        return max(entrants, key=lambda schedule: scores[schedule])


def make_search(context: SearchContext) -> SearchStrategy:
    return Evolutionary(context)
