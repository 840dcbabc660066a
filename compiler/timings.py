"""How long each stage of a compilation takes. A recorder is passed in; none is global."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage's wall-clock seconds, all its `count` runs together."""

    stage: str
    seconds: float
    count: int


class Timings:
    """Adds up wall-clock seconds by stage.

    The time of a stage inside another counts for the inner one alone, so that stages add up to the
    whole. Stages are entered from one thread.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._stages: dict[str, tuple[float, int]] = {}
        self._inside: list[float] = []  # seconds of the stages within each that is open

    def add(self, stage: str, seconds: float, count: int = 1) -> None:
        """Count time that was measured elsewhere, in another process for example."""
        before, runs = self._stages.get(stage, (0.0, 0))
        self._stages[stage] = before + seconds, runs + count

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of a block, also where it raises."""
        started = self._clock()
        self._inside.append(0.0)
        try:
            yield
        finally:
            seconds = self._clock() - started
            self.add(name, seconds - self._inside.pop())
            if self._inside:
                self._inside[-1] += seconds

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """Every stage, in the order in which they first ended."""
        return tuple(StageTime(name, *value) for name, value in self._stages.items())


def timed(timings: Timings | None, stage: str) -> AbstractContextManager[None]:
    """The context of a stage; does nothing where nobody asks for timings."""
    return nullcontext() if timings is None else timings.stage(stage)
