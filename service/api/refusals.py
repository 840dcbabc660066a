"""How requests are refused, for the description: each route and dependency says it of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi.dependencies.models import Dependant

Function = TypeVar("Function", bound=Callable[..., Any])

_refusals: dict[Callable[..., Any], frozenset[int]] = {}


def refuses(*statuses: int) -> Callable[[Function], Function]:
    """The decorated route or dependency raises problems with these statuses, besides those that
    the gate does."""

    def noted(function: Function) -> Function:
        _refusals[function] = frozenset(statuses)
        return function

    return noted


def refusals_of(dependant: Dependant) -> frozenset[int]:
    """What a route and all that it depends on say."""
    own = frozenset[int]() if dependant.call is None else _refusals.get(dependant.call, frozenset())
    return own.union(*map(refusals_of, dependant.dependencies))
