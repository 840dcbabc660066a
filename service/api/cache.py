"""In-memory caches: a bounded LRU, and their invalidation by committed changes."""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Sequence
from enum import Enum
from types import ModuleType
from typing import Any, Generic, TypeVar

from tilewright.db.changes import LookupChanges
from tilewright.service.api.concurrency import Batcher

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRU(Generic[Key, Value]):
    """The most recently used values by key, up to a total size.

    Args:
        limit: the largest sum of all sizes, in the caller's unit (entries or bytes). A value that
            exceeds it alone is not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._entries: OrderedDict[Key, tuple[Value, int, Collection[str]]] = OrderedDict()
        self._dependents: dict[str, set[Key]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return a value and mark it as used, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int = 1, names: Iterable[str] = ()) -> None:
        """Keep a value until `forget` receives one of `names`, or newer values need its room."""
        self.drop(key)
        if size > self.limit:
            return
        names = frozenset(names)
        self._entries[key] = value, size, names
        self.size += size
        for name in names:
            self._dependents.setdefault(name, set()).add(key)
        while self.size > self.limit:
            self.drop(next(iter(self._entries)))

    def drop(self, key: Key) -> None:
        """Remove a value, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self.size -= entry[1]
        for name in entry[2]:
            same = self._dependents[name]
            same.discard(key)
            if not same:
                del self._dependents[name]

    def forget(self, names: Collection[str]) -> None:
        """Remove each value that depends on one of the names."""
        for name in names:
            for key in list(self._dependents.get(name, ())):
                self.drop(key)

    def clear(self) -> None:
        """Remove every value."""
        self._entries.clear()
        self._dependents.clear()
        self.size = 0


class Invalidation:
    """Removes outdated values from caches before a question is answered.

    No cached value is older than the last commit before the question. All questions that wait for a
    read of the changes share the next read.
    """

    def __init__(self, changes: LookupChanges, *caches: LRU[Any, Any]) -> None:
        self._changes = changes
        self._caches = list(caches)
        self._reads: Batcher[None, None] = Batcher(self._read)
        self.version = 0
        """Grows with each read that finds a change."""

    def watch(self, cache: LRU[Any, Any]) -> None:
        """Invalidate this cache too."""
        self._caches.append(cache)

    async def refresh(self) -> int:
        """Apply all changes that were committed before the call, and return the new version.

        Raises StorageError.
        """
        if not self._changes.unchanged():
            await self._reads.ask(None)
        return self.version

    async def close(self) -> None:
        """Close the connection that reads the changes."""
        await self._changes.close()

    async def _read(self, questions: Sequence[None]) -> Sequence[None]:
        changed = await self._changes.read()
        if changed is None or changed:
            self.version += 1
        for cache in self._caches:
            if changed is None:
                cache.clear()
            else:
                cache.forget(changed)
        return questions


def held_bytes(value: object) -> int:
    """Return the bytes of memory of a value with all objects that it refers to, each once.

    Classes, modules and members of enumerations do not count: they exist anyway.
    """
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
