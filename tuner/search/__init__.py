"""Search strategies: choose the candidates of a space to measure next. Each has its own file."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tilewright.compiler.errors import unknown_choice
from tilewright.tuner.plugins import members
from tilewright.tuner.search.protocol import Observed, SearchContext, SearchStrategy, Suggestion

__all__ = [
    "Observed",
    "SearchContext",
    "SearchStrategy",
    "Suggestion",
    "make_strategy",
    "strategies",
]


def strategies() -> dict[str, Callable[[SearchContext], SearchStrategy]]:
    """Return all strategies by name. Each value creates the strategy for a task."""
    return members(sys.modules[__name__], "make_search")


def make_strategy(name: str, context: SearchContext) -> SearchStrategy:
    """Create the strategy of this name for one task.

    Raises:
        ValueError: if no strategy has this name.
    """
    known = strategies()
    if name not in known:
        raise ValueError(unknown_choice("the search", name, sorted(known)))
    return known[name](context)
