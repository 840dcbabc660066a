"""Memoised functions whose caches can be cleared together.

A tuning job needs the same schedule spaces, analyses and loop nests repeatedly, but the next job
needs different ones. A process that runs several jobs therefore clears the caches between jobs
(`forget`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import TypeVar

T = TypeVar("T")

_CLEARS: list[Callable[[], None]] = []


def memo(answers: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """Return a decorator that caches the results of a function, like `functools.lru_cache`.

    At most `answers` results are cached. `forget` clears the caches of all functions that are
    decorated with `memo`.
    """

    def remembering(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        made = lru_cache(maxsize=answers)(function)
        _CLEARS.append(made.cache_clear)
        return made

    return remembering


def forget() -> None:
    """Clear the caches of all functions in this process that are decorated with `memo`."""
    for clear in _CLEARS:
        clear()
