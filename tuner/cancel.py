"""Cooperative cancellation: tokens that the tuner's loops check regularly."""

from __future__ import annotations

import threading
from dataclasses import dataclass


class CancelToken:
    """A cancellation flag that any thread can set and that is never cleared.

    Attributes:
        reason: why the work was cancelled, as a message to the user; empty until then.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def cancel(self, reason: str = "cancelled") -> None:
        """Set the flag, so that the work that checks this token stops.

        Only the first call sets `reason`.
        """
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        """Sleep until the timeout or a cancellation. Return whether the token is cancelled."""
        return self._event.wait(timeout_seconds)


@dataclass(frozen=True, slots=True)
class AnyToken:
    """A combination of several tokens, which is cancelled if at least one of them is."""

    tokens: tuple[CancelToken, ...]

    @property
    def cancelled(self) -> bool:
        return any(token.cancelled for token in self.tokens)
