"""Grid search: the strategy suggests every schedule of a small space once.

The order is such that even the first schedules are spread over the space. Schedules of the
different algorithms alternate. Within an algorithm, the order is a van der Corput sequence, which
begins with the first, the middle and the quarter positions. The order depends only on the space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.search.memory import Memory
from tilewright.tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion


class Grid:
    """A strategy that suggests each schedule in a task's space once."""

    def __init__(self, context: SearchContext) -> None:
        self._memory = Memory(context.space, context.rng)
        self._rest = _interleaved([_spread(space.points) for space in context.space.subspaces])

    def suggest(self, count: int) -> list[Suggestion]:
        chosen: list[Schedule] = []
        while len(chosen) < count:
            schedule = next(self._rest, None)
            if schedule is None:
                break
            if self._memory.is_new(schedule):
                chosen.append(schedule)
        return self._memory.take(chosen, "grid")

    def update(self, results: Sequence[Observed]) -> None:
        self._memory.update(results)


def _interleaved(walks: Sequence[Iterator[Schedule]]) -> Iterator[Schedule]:
    while walks:
        left = []
        for walk in walks:
            schedule = next(walk, None)
            if schedule is not None:
                left.append(walk)
                yield schedule
        walks = left


def _spread(points: Sequence[Schedule]) -> Iterator[Schedule]:
    bits = max(1, (len(points) - 1).bit_length())
    for number in range(1 << bits):
        place = int(f"{number:0{bits}b}"[::-1], 2)
        if place < len(points):
            yield points[place]


def make_search(context: SearchContext) -> SearchStrategy:
    return Grid(context)
