"""Waits for conditions and threads, with a deadline and without fixed pauses."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

PATIENCE_SECONDS = 60.0
"""Longest wait for a condition. A test whose condition becomes true waits a fraction of it."""


def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition is true.

    Raises:
        AssertionError: if the condition is still false after `seconds`.
    """
    for pause in _pauses(condition, seconds):
        time.sleep(pause)


async def until_async(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """`until` in an event loop, whose other tasks go on."""
    for pause in _pauses(condition, seconds):
        await asyncio.sleep(pause)


class CountingLock:
    """A lock that counts the threads that took it or wait for it.

    A test puts it in place of a lock whose holder shall go on when the other threads wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callers: list[int] = []

    @property
    def callers(self) -> int:
        return len(self._callers)

    def __enter__(self) -> None:
        self._callers.append(threading.get_ident())
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


class AnnouncingCondition(threading.Condition):
    """A condition variable that sets an event, `waits`, before a thread waits for it.

    A thread that then notifies it comes after the wait began: the waiting thread holds the lock
    until then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.set()
        return super().wait(timeout)


def _pauses(condition: Callable[[], object], seconds: float) -> Iterator[float]:
    """The pauses, in seconds, until a condition is true.

    They become longer: reading a database every 30 ms took 40 % of the processor time of a test
    that waits for seconds.
    """
    ends, pause = time.monotonic() + seconds, 0.005
    while not condition():
        assert time.monotonic() < ends, f"the condition was still false after {seconds:g} s"
        yield pause
        pause = min(1.2 * pause, 0.1)
