"""Decides after a failed request how long to wait before the next attempt, and when to give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tilewright.service.client.errors import ClientError

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.2, 5.0


class Retries:
    """Computes the pauses between attempts of one call. Ends the attempts after a time limit.

    Each pause is twice the previous one, shortened at random so that many clients do not return at
    the same moment. The time limit, `patience_seconds`, begins at the first failure after the
    service's last answer. A job's event stream that breaks after an hour is therefore retried for
    the full time.
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
        """Record the time at which an event stream was opened.

        Attempts to reach the service end after a time limit (`patience_seconds`). The time limit
        starts again if a stream breaks that was open for more than `LAST_PAUSE_SECONDS`, even if no
        event arrived. So a proxy that repeatedly closes idle streams does not exhaust the time
        limit while a job emits no events.
        """
        self._opened = self._clock()

    def over(self) -> None:
        """Reset the pause and the time limit after an answer of the service."""
        self._since, self._pause = None, FIRST_PAUSE_SECONDS

    def pause(self, error: ClientError) -> float:
        """Return the seconds to wait before the next attempt.

        Raises `error` if it is not temporary, or if the time limit would be exceeded.
        """
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
