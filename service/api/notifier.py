"""Wakes coroutines when the database has something new for them: one listener a process.

Event streams and long polls wait here. A coroutine that waits holds no thread and no connection; a
single thread hears the notices of all (`db.notices`). A notice may be lost, so every few seconds
one task asks for all topics that anybody waits for, in a query for each kind.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

import structlog
from starlette.concurrency import run_in_threadpool

from db.errors import DatabaseError
from db.notices import NoticeSource

log = structlog.get_logger("tilewright.web")

FALLBACK_SECONDS = 5.0
"""How often topics are asked for whose notices may have been lost."""

_HEAR_SECONDS = 0.25
"""How soon the thread notices that it is to end."""

_RETRY_SECONDS = 1.0


class States(Protocol):
    """`db.notices.topic_states` of a database."""

    def __call__(self, topics: Collection[str], /) -> Mapping[str, int]: ...


class Listener(Protocol):
    """Who is told of topics."""

    def wake(self, topic: str, /) -> None: ...


class Ears:
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
    """Made in the event loop that it wakes; `start` and `stop` are called there."""

    def __init__(
        self, source: NoticeSource, states: States, fallback_seconds: float = FALLBACK_SECONDS
    ) -> None:
        self._source = source
        self._states = states
        self._fallback_seconds = fallback_seconds
        self._ears: dict[str, set[Listener]] = defaultdict(set)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._hear, name="notices", daemon=True)

    async def start(self) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._fallback = asyncio.create_task(self._ask_now_and_then())

    async def stop(self) -> None:
        """Wake everybody for the last time."""
        self._fallback.cancel()
        self._ending.set()
        self.wake_all()
        await asyncio.to_thread(self._thread.join)

    @contextmanager
    def listening(self, *topics: str) -> Iterator[Ears]:
        """Hear of these topics from now on: look at the database first, then wait."""
        ears = Ears()
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
        while not self._ending.is_set():
            try:
                topics = self._source.wait(_HEAR_SECONDS)
            except DatabaseError as error:
                log.warning("notices", error=str(error))
                self._ending.wait(_RETRY_SECONDS)
                continue
            if topics is None:
                self._loop.call_soon_threadsafe(self.wake_all)
            elif topics:
                self._loop.call_soon_threadsafe(self.wake, topics)
        self._source.close()

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
        except DatabaseError as error:
            log.warning("notices", error=str(error))
            return before
        self.wake(topic for topic in topics if before.get(topic) != now.get(topic))
        return now
