"""Search strategies, which choose the candidates of a schedule space to measure next.

Each module of this package that defines `make_search` is a strategy.
"""

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
    """Return a factory for each search strategy, by name.

    A factory takes the context of a task and creates a strategy for this task.
    """
    return members(sys.modules[__name__], "make_search")


def make_strategy(name: str, context: SearchContext) -> SearchStrategy:
    """Create a search strategy for one task. `name` is a key of `strategies`.

    Raises:
        ValueError: if no strategy has this name.
    """
    known = strategies()
    if name not in known:
        raise ValueError(unknown_choice("the search", name, sorted(known)))
    return known[name](context)
