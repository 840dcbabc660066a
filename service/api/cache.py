"""In-memory caches: a bounded LRU cache, and removal of outdated entries after a commit."""

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
    """A cache that removes the least recently used values while their total size exceeds `limit`.

    Args:
        limit: the largest sum of all sizes, in the caller's unit (entries or bytes). A value larger
            than `limit` is not stored.
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
        """Return the value of a key and mark it as used, or return None for an unknown key."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int = 1, names: Iterable[str] = ()) -> None:
        """Store a value. If the total size exceeds `limit`, remove the least recently used values.

        Args:
            key: the key of the value; an earlier value of this key is removed.
            value: the value.
            size: the size of the value, in the unit of `limit`.
            names: names of things on which the value depends, such as keys of records. `forget`
                with any of these names removes the value.
        """
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
        """Remove the value of a key. An unknown key is ignored."""
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
    """Removes outdated values from caches: call `refresh` before each use of a cached value.

    After `refresh`, cached values reflect all commits that precede the call. Concurrent calls share
    one read of the changes.
    """

    def __init__(self, changes: LookupChanges, *caches: LRU[Any, Any]) -> None:
        self._changes = changes
        self._caches = list(caches)
        self._reads: Batcher[None, None] = Batcher(self._read)
        self.version = 0
        """Version number of the caches. It increases with each database read that finds a
        change."""

    def watch(self, cache: LRU[Any, Any]) -> None:
        """Add a cache from which `refresh` removes outdated values."""
        self._caches.append(cache)

    async def refresh(self) -> int:
        """Remove the values that earlier commits made outdated. Return the caches' version number.

        The number grows whenever changes are found.

        Raises:
            StorageError: if the changes cannot be read.
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
    """Return the memory in bytes of a value and all objects that it refers to, each counted once.

    Classes, modules and members of enumerations are not counted, because other code shares them.
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
