"""The time of each stage of a compilation. Recorders are passed as arguments; none is global."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageTime:
    """The wall-clock seconds of a stage, summed over its `count` runs."""

    stage: str
    seconds: float
    count: int


class Timings:
    """Adds up wall-clock seconds by stage.

    The time of a nested stage counts only for the inner one, so that the stages of a thread add up
    to the whole. Stages of several threads may add up to more than the elapsed time.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._stages: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._threads = threading.local()

    def add(self, stage: str, seconds: float, count: int = 1) -> None:
        """Add time that was measured elsewhere, for example in another process."""
        with self._lock:
            before, runs = self._stages.get(stage, (0.0, 0))
            self._stages[stage] = before + seconds, runs + count

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time of a block, also if it raises an exception."""
        inside = self._inside()
        started = self._clock()
        inside.append(0.0)
        try:
            yield
        finally:
            seconds = self._clock() - started
            self.add(name, seconds - inside.pop())
            if inside:
                inside[-1] += seconds

    def _inside(self) -> list[float]:
        """Seconds of nested stages, for each stage that this thread has open."""
        found: list[float] | None = getattr(self._threads, "inside", None)
        if found is None:
            found = self._threads.inside = []
        return found

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """Every stage with its time, in the order in which the stages first ended."""
        return tuple(StageTime(name, *value) for name, value in self._stages.items())

    def seconds(self) -> dict[str, float]:
        """The seconds of each stage, in the order in which the stages first ended."""
        return {each.stage: each.seconds for each in self.stages}


def timed(timings: Timings | None, stage: str) -> AbstractContextManager[None]:
    """Return a context that measures a stage; without timings, it does nothing."""
    return nullcontext() if timings is None else timings.stage(stage)
