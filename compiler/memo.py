"""Memoised functions, whose caches a process can clear together.

A tuning job needs the same schedule spaces, analyses and loop nests repeatedly; the next job needs
others. A process that serves several jobs therefore clears the caches between them (`forget`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import TypeVar

T = TypeVar("T")

_CLEARS: list[Callable[[], None]] = []


def memo(answers: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """Return a decorator like `functools.lru_cache` that caches up to `answers` results.

    `forget` clears the caches of the decorated functions.
    """

    def remembering(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        made = lru_cache(maxsize=answers)(function)
        _CLEARS.append(made.cache_clear)
        return made

    return remembering


def forget() -> None:
    """Clear the caches of all memoised functions of the process."""
    for clear in _CLEARS:
        clear()
