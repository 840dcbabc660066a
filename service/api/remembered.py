"""Answers that are kept in memory, up to so many bytes together."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from types import ModuleType
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """Answers by their questions, the latest ones. Whoever asks while one is made waits for it.
    Of one event loop. One that is larger than `most_bytes` is given to who waits, and not kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._asked: OrderedDict[str, asyncio.Future[T]] = OrderedDict()
        self._bytes: dict[str, int] = {}
        """Of the answers that are there; what is being made counts nothing yet."""
        self.held_bytes = 0

    def __contains__(self, key: str) -> bool:
        return key in self._asked

    async def get(self, key: str, make: Callable[[], Awaitable[tuple[T, int]]]) -> T:
        """The answer, which `make` gives with the memory that it takes, in bytes, if nobody asked
        for it lately. A failure is raised by all that wait for it, and not remembered."""
        asked = self._asked.get(key)
        if asked is None:
            # a task of its own: whoever asked first may go away, and others ask for the same
            asked = asyncio.ensure_future(self._made(key, make))
            asked.add_done_callback(_seen)
            self._asked[key] = asked
        self._asked.move_to_end(key)
        return await asyncio.shield(asked)

    async def _made(self, key: str, make: Callable[[], Awaitable[tuple[T, int]]]) -> T:
        try:
            answer, self._bytes[key] = await make()
        except BaseException:
            del self._asked[key]
            raise
        self.held_bytes += self._bytes[key]
        while self.held_bytes > self._most:
            oldest = next(each for each in self._asked if each in self._bytes)
            del self._asked[oldest]
            self.held_bytes -= self._bytes.pop(oldest)
        return answer


def _seen(done: asyncio.Future[T]) -> None:
    """A failure is nobody's if all who asked are gone."""
    if not done.cancelled():
        done.exception()


def held_bytes(value: object) -> int:
    """Bytes of memory that a value holds with all that it refers to, each object once. Not counted
    is what a process has anyway: classes, modules, members of enumerations."""
    seen: set[int] = set()
    found = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | Enum):
            continue
        seen.add(id(one))
        found += sys.getsizeof(one)
        waiting.extend(gc.get_referents(one))
    return found
