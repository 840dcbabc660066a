"""Wakes coroutines when the database has something new for them: one listener a process.

Event streams and long polls wait here. A coroutine that waits holds no thread and no connection; a
single thread hears the notices of all (`db.notices`). A notice may be lost, so every few seconds
one task asks for all topics that anybody waits for, in a query for each kind.

Whatever goes wrong, both go on: else everybody would wait for ever, and nobody would say so.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import structlog
from starlette.concurrency import run_in_threadpool

from tilewright.db.errors import DatabaseError
from tilewright.db.notices import NoticeSource

log = structlog.get_logger("tilewright.web")

FALLBACK_SECONDS = 5.0
"""How often topics are asked for whose notices may have been lost."""

_HEAR_SECONDS = 0.25
"""How soon the thread notices that it is to end."""

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 15.0
"""The pause after a failure, which doubles with each one that follows."""


class States(Protocol):
    """`db.notices.topic_states` of a database."""

    def __call__(self, topics: Collection[str], /) -> Mapping[str, int]: ...


class Listener(Protocol):
    """Who is told of topics."""

    def wake(self, topic: str, /) -> None: ...


class Subscription:
    """What a coroutine waits with. It is woken by every notice of its topics since it was made."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._woken: set[str] = set()

    def wake(self, topic: str) -> None:
        self._woken.add(topic)
        self._event.set()

    async def woken(self, seconds: float | None = None) -> frozenset[str]:
        """The topics that were announced since the last call; none if time ran out first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
        topics = frozenset(self._woken)
        self._woken.clear()
        return topics


class Notifier:
    """Made in the event loop that it wakes; `start` and `stop` are called there.

    Args:
        source: where notices come from.
        states: what is asked for notices that may have been lost.
        fallback_seconds: how often.
        failed: called for each failure, in any thread.
        retry_seconds: the first pause after one.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        source: NoticeSource,
        states: States,
        fallback_seconds: float = FALLBACK_SECONDS,
        *,
        failed: Callable[[], None] = lambda: None,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._states = states
        self._fallback_seconds = fallback_seconds
        self._failed = failed
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._heard_at = clock()
        self._ears: dict[str, set[Listener]] = defaultdict(set)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._hear, name="notices", daemon=True)

    async def start(self) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._fallback = asyncio.create_task(self._ask_now_and_then())

    @property
    def deaf_seconds(self) -> float:
        """For how long no notice could be heard; infinite if that ended for good."""
        if not self._thread.is_alive() or self._fallback.done():
            return math.inf
        return self._clock() - self._heard_at

    async def stop(self) -> None:
        """Wake everybody for the last time."""
        self._fallback.cancel()
        self._ending.set()
        self.wake_all()
        await asyncio.to_thread(self._thread.join)

    @contextmanager
    def listening(self, *topics: str) -> Iterator[Subscription]:
        """Hear of these topics from now on: look at the database first, then wait."""
        ears = Subscription()
        with self.telling(ears, *topics):
            yield ears

    @contextmanager
    def telling(self, listener: Listener, *topics: str) -> Iterator[None]:
        """Tell a listener of these topics from now on."""
        for topic in topics:
            self._ears[topic].add(listener)
        try:
            yield
        finally:
            for topic in topics:
                self._ears[topic].discard(listener)
                if not self._ears[topic]:
                    del self._ears[topic]

    def wake(self, topics: Iterable[str]) -> None:
        """Wake who listens to any of the topics."""
        for topic in topics:
            for listener in list(self._ears.get(topic, ())):
                listener.wake(topic)

    def wake_all(self) -> None:
        """Anything may have changed, or everybody shall end."""
        self.wake(list(self._ears))

    def _hear(self) -> None:
        pause, missed = self._retry_seconds, False
        while not self._ending.is_set():
            try:
                topics = self._source.wait(_HEAR_SECONDS)
                self._tell(None if missed else topics)
            except Exception as error:  # noqa: BLE001 (nobody else would ever be woken)
                self._note(error)
                missed = True  # what was announced meanwhile
                self._ending.wait(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
                continue
            pause, missed = self._retry_seconds, False
            self._heard_at = self._clock()
        self._source.close()

    def _tell(self, topics: Sequence[str] | None) -> None:
        """Wake who listens, in the event loop; None: everybody."""
        if topics is None:
            self._loop.call_soon_threadsafe(self.wake_all)
        elif topics:
            self._loop.call_soon_threadsafe(self.wake, topics)

    def _note(self, error: Exception) -> None:
        """Count and log a failure; one that the database does not explain is a bug."""
        self._failed()
        if isinstance(error, DatabaseError):
            log.warning("notices", error=str(error))
        else:
            log.error("notices", error=repr(error), exc_info=error)

    async def _ask_now_and_then(self) -> None:
        before: Mapping[str, int] = {}
        while True:
            await asyncio.sleep(self._fallback_seconds)
            before = await self.ask(before)

    async def ask(self, before: Mapping[str, int]) -> Mapping[str, int]:
        """Wake the topics whose states differ from those before; the states now."""
        topics = list(self._ears)
        try:
            now = await run_in_threadpool(self._states, topics)
            self.wake(topic for topic in topics if before.get(topic) != now.get(topic))
        except Exception as error:  # noqa: BLE001 (it is asked again)
            self._note(error)
            return before
        return now
