"""Cooperative cancellation: one token, checked in every loop of the tuner."""

from __future__ import annotations

import threading
from dataclasses import dataclass


class CancelToken:
    """A cancellation flag that any thread can set; it is never cleared.

    Attributes:
        reason: the message to the user.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def cancel(self, reason: str = "cancelled") -> None:
        """Ask all holders of this token to stop. Only the first call sets `reason`."""
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
    """A combination of tokens: it is cancelled as soon as one of them is."""

    tokens: tuple[CancelToken, ...]

    @property
    def cancelled(self) -> bool:
        return any(token.cancelled for token in self.tokens)
