"""Retries of requests to a service that does not answer: how long to wait, and when to stop."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tilewright.service.client.errors import ClientError

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.2, 5.0


class Retries:
    """Computes the pauses between the failed attempts of one call, and ends them.

    Each pause is twice the previous one, shortened randomly so that many clients do not return at
    the same moment. After `patience_seconds`, `pause` raises the error. The time counts from the
    first failure on: a job whose stream was quiet for an hour has all of its patience left when the
    stream breaks.
    """

    def __init__(
        self, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._opened: float | None = None

    def opened(self) -> None:
        """Record that a stream was opened.

        A stream that lasts longer than any pause counts as an answer even without data, because a
        proxy may repeatedly end streams without data.
        """
        self._opened = self._clock()

    def over(self) -> None:
        """Reset the pause and the time limit, because the service answered."""
        self._since, self._pause = None, FIRST_PAUSE_SECONDS

    def pause(self, error: ClientError) -> float:
        """Return the seconds before the next attempt. Raises `error` after the last attempt."""
        if not error.passing:
            raise error
        now = self._clock()
        if self._opened is not None and now - self._opened > LAST_PAUSE_SECONDS:
            self.over()
        self._opened = None
        self._since = now if self._since is None else self._since
        seconds = max(self._pause * random.uniform(0.5, 1.0), error.retry_seconds)
        if now + seconds - self._since > self._patience_seconds:
            raise error
        self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)
        return seconds
