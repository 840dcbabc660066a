"""How often workers are to say that they live.

A heartbeat is a request of its own. With 5,000 workers and one every five seconds, an api did
little else than answer them. So a process tells its workers to come less often where there are
many: it hears of at most so many a second, as long as that lets a lost worker be found in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_A_SECOND = 200.0
"""Heartbeats that a process wants: a fifth of its time, or a quarter."""


class HeartbeatPacing:
    """The workers that a process hears from.

    Args:
        least_seconds: between two heartbeats of a worker, where there are few.
        most_seconds: however many there are.
        clock: in seconds.
    """

    def __init__(
        self,
        least_seconds: float,
        most_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._least_seconds = least_seconds
        self._most_seconds = max(least_seconds, most_seconds)
        self._clock = clock
        self._heard: dict[str, float] = {}  # when last; who was silent longest comes first

    def hear(self, worker_id: str) -> None:
        """A worker lives. Those that were silent for long are no longer counted."""
        now = self._clock()
        self._heard.pop(worker_id, None)
        self._heard[worker_id] = now
        while now - self._heard[first := next(iter(self._heard))] > 2 * self._most_seconds:
            del self._heard[first]

    @property
    def seconds(self) -> float:
        """How long a worker that is heard now may be silent."""
        wanted = len(self._heard) / MOST_A_SECOND
        return min(max(wanted, self._least_seconds), self._most_seconds)
