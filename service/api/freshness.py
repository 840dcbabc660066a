"""Nothing that is kept is older than what was committed before the question.

Whoever keeps what lookups answer is told what has changed (`db.changes`), before each question is
answered: all questions that wait meanwhile go together in the next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from tilewright.db.changes import LookupChanges

Forget = Callable[[Collection[str] | None], None]
"""Forgets what is kept of these keys, of workloads or models; of everything for None."""


class Freshness:
    """What has changed, for all who keep something. Of one event loop."""

    def __init__(self, changes: LookupChanges) -> None:
        self._changes = changes
        self._keepers: list[Forget] = []
        self._next: asyncio.Future[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.version = 0
        """Grows whenever anything is found to have changed."""

    def tell(self, forget: Forget) -> None:
        """Call this with what has changed, from now on."""
        self._keepers.append(forget)

    async def freshen(self) -> int:
        """Let everybody forget what has changed; the version after that.

        All that was committed before the call is heard of. Raises StorageError.
        """
        if not self._changes.unchanged():
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
                if self._looking is None or self._looking.done():
                    self._looking = asyncio.create_task(self._look())
            await asyncio.shield(self._next)  # of those who wait any may go away
        return self.version

    async def close(self) -> None:
        """End the connection that asks for changes."""
        await self._changes.close()

    async def _look(self) -> None:
        while (asked := self._next) is not None:
            self._next = None  # who comes now may ask for what is committed from now on
            try:
                changed = await self._changes.read()
            except Exception as error:  # noqa: BLE001 (whoever asked gets it)
                asked.set_exception(error)
                asked.exception()  # they may all have gone
                continue
            if changed is None or changed:
                self.version += 1
                for forget in self._keepers:
                    forget(changed)
            asked.set_result(None)
