"""Pacing of worker heartbeats: the interval between them grows with the number of workers.

Each heartbeat is a separate request. With 5,000 workers and an interval of five seconds, an API
process did little else than answer heartbeats. So each process lengthens the interval to limit the
number of heartbeats per second. A bound ensures that a lost worker is still detected in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_A_SECOND = 200.0
"""Limit of heartbeats per second and process, by which the heartbeat interval is chosen. Heartbeats
at this rate take a fifth to a quarter of the process's time."""


class HeartbeatPacing:
    """Computes the heartbeat interval from the number of workers that report to this process.

    Args:
        least_seconds: the interval if there are few workers.
        most_seconds: the longest interval, for any number of workers.
        clock: returns the time in seconds.
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
        self._heard: dict[str, float] = {}  # time of the last heartbeat; longest silent first

    def record(self, worker_id: str) -> None:
        """Count a worker that has just sent a heartbeat.

        Workers that were silent for `2 * most_seconds` are no longer counted.
        """
        now = self._clock()
        self._heard.pop(worker_id, None)
        self._heard[worker_id] = now
        while now - self._heard[first := next(iter(self._heard))] > 2 * self._most_seconds:
            del self._heard[first]

    @property
    def seconds(self) -> float:
        """Return the present interval between two heartbeats of a worker, in seconds."""
        wanted = len(self._heard) / MOST_A_SECOND
        return min(max(wanted, self._least_seconds), self._most_seconds)
