"""Fair sharing of a limited number of places: waiting askers get places in round-robin order.

An asker is, for example, the id of a token. A place is, for example, a child process.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TooManyError(Exception):
    """Too many requests are already waiting, in total or from one asker, such as a token.

    `waiting` is the number of these requests.
    """

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} wait")
        self.waiting = waiting


class Turns:
    """Shares a limited number of places among askers in round-robin order, in one event loop.

    Args:
        places: the number of places. One asker can occupy all but one of them, or the only one.
        most: the largest number of waiting requests.
        most_each: the largest number of waiting requests per asker.
    """

    def __init__(self, places: int, most: int, most_each: int) -> None:
        self._free = places
        self._each = max(1, places - 1)
        self._most, self._most_each = most, most_each
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._having: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, asker: str) -> AsyncIterator[None]:
        """Wait until the asker gets a place, and occupy it within the context.

        Raises:
            TooManyError: if too many requests wait, in total or of this asker.
        """
        await self._taken(asker)
        try:
            yield
        finally:
            self._give_back(asker)

    async def _taken(self, asker: str) -> None:
        own = self._waiting.get(asker, ())
        if len(own) >= self._most_each:
            raise TooManyError(len(own))
        waiting = sum(map(len, self._waiting.values()))
        if waiting >= self._most:
            raise TooManyError(waiting)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(asker, turn)
            else:  # the place was granted at the same moment
                self._give_back(asker)
            raise

    def _grant(self) -> None:
        """Give the free places to waiting askers in order.

        An asker that gets a place moves to the end of the order.
        """
        while self._free:
            asker = next((a for a in self._waiting if self._having[a] < self._each), None)
            if asker is None:
                return
            turn = self._waiting[asker].popleft()
            self._waiting.move_to_end(asker)
            if not self._waiting[asker]:
                del self._waiting[asker]
            if turn.cancelled():
                continue
            self._free -= 1
            self._having[asker] += 1
            turn.set_result(None)

    def _give_back(self, asker: str) -> None:
        self._free += 1
        self._having[asker] -= 1
        if not self._having[asker]:
            del self._having[asker]
        self._grant()

    def _forget(self, asker: str, turn: asyncio.Future[None]) -> None:
        own = self._waiting.get(asker, deque())
        if turn in own:
            own.remove(turn)
            if not own:
                del self._waiting[asker]
