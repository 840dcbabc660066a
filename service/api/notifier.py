"""Wakes coroutines when a database transaction announces changes. Each process has one notifier.

A topic is a string that names something that changes, such as "job:5c2e" for the events of a job. A
notice announces a change of a topic (`db.notices`). Event streams and long polls wait for notices
without holding a thread or a connection: a single thread receives the notices for all of them.
Because a notice may be lost, an asyncio task also queries the states of all subscribed topics every
few seconds, with one query per kind of topic.

The thread and the asyncio task continue after any error. Otherwise all waiting coroutines would
wait forever, without any sign of the failure.
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
"""Interval in seconds between queries for changes whose notices may have been lost."""

_HEAR_SECONDS = 0.25
"""Longest time in seconds that the thread waits for a notice before it checks whether it must
stop."""

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 15.0
"""First and longest pause after a failure, in seconds. The pause doubles with each consecutive
failure."""


class States(Protocol):
    """Type of the function that queries the states of topics, such as `db.notices.topic_states`.

    It returns a number for each topic. After a change of the topic, it returns another number.
    """

    def __call__(self, topics: Collection[str], /) -> Mapping[str, int]: ...


class Listener(Protocol):
    """An object whose method `wake` the notifier calls with the name of each changed topic."""

    def wake(self, topic: str, /) -> None: ...


class Subscription:
    """Lets a coroutine wait for changes of topics, such as the topic "job:5c2e" of a job's events.

    The subscription collects the changed topics from its creation on. So no change is lost between
    two calls of `woken`.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._woken: set[str] = set()

    def wake(self, topic: str) -> None:
        self._woken.add(topic)
        self._event.set()

    async def woken(self, seconds: float | None = None) -> frozenset[str]:
        """Wait until a subscribed topic changes. Return all topics changed since the last call.

        Return an empty set if no topic changes within `seconds`. If `seconds` is None, wait without
        a limit.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
        topics = frozenset(self._woken)
        self._woken.clear()
        return topics


class Notifier:
    """Wakes listeners in one event loop when database transactions change their topics.

    A topic is a string such as "job:5c2e", which names the events of a job. A transaction sends a
    notice for each topic that it changes. Create, start and stop the notifier in the event loop of
    its listeners.

    Args:
        source: receives notices from the database.
        states: returns a number for each topic, and another number after a change of the topic. It
            detects changes whose notices were lost.
        fallback_seconds: the interval between calls of `states`.
        failed: called after each failure, in any thread.
        retry_seconds: the pause after a first failure; it doubles with each further failure.
        clock: returns a monotonic time in seconds.
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
        """Start the thread that receives notices of changed topics from the database.

        Also start the asyncio task that queries the topics periodically, because a notice may be
        lost.
        """
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._fallback = asyncio.create_task(self._ask_now_and_then())

    @property
    def seconds_without_notices(self) -> float:
        """Return the seconds since the thread last waited for database notices without an error.

        The value is infinite if the thread has ended. It is also infinite if the asyncio task that
        detects lost notices has ended.
        """
        if not self._thread.is_alive() or self._fallback.done():
            return math.inf
        return self._clock() - self._heard_at

    async def stop(self) -> None:
        """Stop receiving notices, and wake every listener once more."""
        self._fallback.cancel()
        self._ending.set()
        self.wake_all()
        await asyncio.to_thread(self._thread.join)

    @contextmanager
    def listening(self, *topics: str) -> Iterator[Subscription]:
        """Yield a subscription to these topics, which ends with the context.

        A change before the subscription does not wake the subscription. So query the database
        inside the context before the first wait.
        """
        subscription = Subscription()
        with self.telling(subscription, *topics):
            yield subscription

    @contextmanager
    def telling(self, listener: Listener, *topics: str) -> Iterator[None]:
        """Within the context, call `listener.wake(topic)` whenever one of these topics changes."""
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
        """Wake all listeners of these topics."""
        for topic in topics:
            for listener in list(self._ears.get(topic, ())):
                listener.wake(topic)

    def wake_all(self) -> None:
        """Wake all listeners, because notices may have been lost, or the process stops."""
        self.wake(list(self._ears))

    def _hear(self) -> None:
        pause, missed = self._retry_seconds, False
        while not self._ending.is_set():
            try:
                topics = self._source.wait(_HEAR_SECONDS)
                self._tell(None if missed else topics)
            except Exception as error:  # noqa: BLE001 (without this thread no listener wakes)
                self._note(error)
                missed = True  # notices during the pause are lost
                self._ending.wait(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
                continue
            pause, missed = self._retry_seconds, False
            self._heard_at = self._clock()
        self._source.close()

    def _tell(self, topics: Sequence[str] | None) -> None:
        """Wake the listeners of topics in the event loop, or all listeners if `topics` is None.

        It may be called from any thread.
        """
        if topics is None:
            self._loop.call_soon_threadsafe(self.wake_all)
        elif topics:
            self._loop.call_soon_threadsafe(self.wake, topics)

    def _note(self, error: Exception) -> None:
        """Count and log a failure to receive notices or to query topics.

        A DatabaseError is logged as a warning. Any other exception is a bug and logged as an error.
        """
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
        """Query the subscribed topics, and wake the listeners of the topics that have changed.

        The query returns a number for each topic, and another number after a change of the topic.

        Args:
            before: the numbers that the previous call returned.

        Returns:
            the current numbers, or `before` if the query fails.
        """
        topics = list(self._ears)
        try:
            now = await run_in_threadpool(self._states, topics)
            self.wake(topic for topic in topics if before.get(topic) != now.get(topic))
        except Exception as error:  # noqa: BLE001 (the next round queries again)
            self._note(error)
            return before
        return now
