"""Wall-clock time of each stage of a compilation, added up by `Timings`.

Functions take a `Timings` as an argument; a global instance does not exist.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageTime:
    """The seconds that a compilation stage took in total, over `count` executions."""

    stage: str
    seconds: float
    count: int


class Timings:
    """Adds up elapsed seconds by compilation stage.

    The time of a nested stage is not counted in the enclosing stage, so the stages of one thread
    add up to the thread's elapsed time. The stages of several threads may add up to more.

    Args:
        clock: returns the current time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._stages: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._threads = threading.local()

    def add(self, stage: str, seconds: float, count: int = 1) -> None:
        """Add time that was measured elsewhere, such as in another process, to a stage.

        `count` is the number of executions that took `seconds` in total.
        """
        with self._lock:
            before, runs = self._stages.get(stage, (0.0, 0))
            self._stages[stage] = before + seconds, runs + count

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Context manager that adds the elapsed time of its block to a stage.

        The time is also added if the block raises.
        """
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
        """Return a list with one number for each running stage of this thread, outermost first.

        A stage is a timed section of code, and stages may be nested. The number is the seconds that
        other stages inside this stage have taken so far.
        """
        found: list[float] | None = getattr(self._threads, "inside", None)
        if found is None:
            found = self._threads.inside = []
        return found

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """The total time of each stage, in the order in which the stages first ended."""
        return tuple(StageTime(name, *value) for name, value in self._stages.items())

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage by name, in the order in which the stages first
        ended."""
        return {each.stage: each.seconds for each in self.stages}


def timed(timings: Timings | None, stage: str) -> AbstractContextManager[None]:
    """Return a context manager that measures a stage; it does nothing if `timings` is None."""
    return nullcontext() if timings is None else timings.stage(stage)
