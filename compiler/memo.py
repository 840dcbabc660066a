"""Memos: functions that remember their last answers, for as long as a process has use for them.

A job asks for the same spaces, analyses and loop nests again and again, and the next job for
others. So a process that serves one job after the other forgets them in between (`forget`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import TypeVar

T = TypeVar("T")

_CLEARS: list[Callable[[], None]] = []


def memo(answers: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """A decorator like `functools.lru_cache`, whose `answers` `forget` drops."""

    def remembering(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        made = lru_cache(maxsize=answers)(function)
        _CLEARS.append(made.cache_clear)
        return made

    return remembering


def forget() -> None:
    """Drop what all memos of the process remember. Whoever asks again waits for it again."""
    for clear in _CLEARS:
        clear()
