"""Sharing of work between concurrent coroutines: one call per key, and batches of queries.

Use each object in one event loop only. If one caller is cancelled, the shared call continues for
the other callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from tilewright.db.errors import DatabaseError

Key = TypeVar("Key", bound=Hashable)
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


def in_thread(function: Callable[Arguments, Answer]) -> Callable[Arguments, Awaitable[Answer]]:
    """Return a coroutine function that runs `function` in a thread, one call at a time.

    Its calls do not count towards anyio's limit of worker threads. So they need not wait while all
    these threads are busy.
    """
    limiter = CapacityLimiter(1)

    async def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        return await run_sync(partial(function, *arguments, **named), limiter=limiter)

    return call


class SingleFlight(Generic[Key, Answer]):
    """Runs at most one call per key at a time. Callers with the same key share its result.

    If the call fails, each of these callers gets its exception. The result is not cached after the
    call ends.
    """

    def __init__(self) -> None:
        self._calls: dict[Key, asyncio.Task[Answer]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._calls

    def running(self, key: Key) -> asyncio.Future[Answer] | None:
        """Return the future of the running call of a key, or None.

        A caller that may be cancelled must await it under `asyncio.shield`. Otherwise the shared
        call is cancelled with the caller.
        """
        return self._calls.get(key)

    async def run(self, key: Key, make: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Return the result of the running call of a key. Without a running call, start `make`."""
        return await asyncio.shield(self.start(key, make))

    def start(
        self, key: Key, make: Callable[[], Coroutine[Any, Any, Answer]]
    ) -> asyncio.Future[Answer]:
        """Return the future of the running call of a key. Without a running call, start `make`."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = asyncio.create_task(make())
            call.add_done_callback(partial(self._finished, key))
        return call

    def forget(self) -> None:
        """Make the next caller of each key start a new call, even if a call is running.

        Running calls continue for the callers that already wait for them.
        """
        self._calls.clear()

    def _finished(self, key: Key, call: asyncio.Task[Answer]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]
        if not call.cancelled():
            call.exception()  # retrieved, as every caller may have been cancelled


class Batcher(Generic[Asked, Answer]):
    """Collects queries from concurrent callers, and answers them in batches, one batch at a time.

    Queries that arrive while a batch is being answered form the next batch. So the batches grow
    with the load, and no timer is needed. Work on a batch begins after its queries arrived, so no
    answer is older than its query.

    Args:
        answer: returns the answers to a batch of queries, in order. If an answer is an exception,
            `ask` raises it for the caller of that query.
        most: the largest number of queries per batch; None for no limit.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer | Exception]]],
        most: int | None = None,
    ) -> None:
        self._answer = answer
        self._most = most
        self._gathered: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._working: asyncio.Task[None] | None = None

    async def ask(self, question: Asked) -> Answer:
        """Add a query to the next batch, and return its answer.

        If the answer is an exception, or the function `answer` raises one, this method raises it.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._gathered.append((question, future))
        if self._working is None:  # the task starts after all callers of this moment have asked
            self._working = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while batch := self._gathered[: self._most]:
                self._gathered = self._gathered[len(batch) :]
                answers = await self._answers([question for question, _ in batch])
                for (_, future), answer in zip(batch, answers, strict=True):
                    if future.done():  # the caller was cancelled
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._working = None

    async def _answers(self, questions: Sequence[Asked]) -> Sequence[Answer | Exception]:
        """Return the answers to a batch of queries, in order.

        If the function `answer` raises a DatabaseError, this error is the answer to every query.
        After any other exception, each query is answered alone, so that only the query at fault
        fails.
        """
        try:
            return await self._answer(questions)
        except DatabaseError as error:
            return [error] * len(questions)
        except Exception as error:  # noqa: BLE001 (the caller raises it)
            if len(questions) == 1:
                return [error]
            return [answer for each in questions for answer in await self._answers([each])]
