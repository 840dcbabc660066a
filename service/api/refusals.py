"""Error statuses that routes and dependencies declare with `refuses`, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi.dependencies.models import Dependant

Function = TypeVar("Function", bound=Callable[..., Any])

_refusals: dict[Callable[..., Any], frozenset[int]] = {}


def refuses(*statuses: int) -> Callable[[Function], Function]:
    """Return a decorator that declares which HTTP error statuses a function can cause.

    The function is a route or a dependency. Statuses that the gate causes need not be declared.
    """

    def noted(function: Function) -> Function:
        _refusals[function] = frozenset(statuses)
        return function

    return noted


def refusals_of(dependant: Dependant) -> frozenset[int]:
    """Return the error statuses that a route's function and all its dependencies declare."""
    own = frozenset[int]() if dependant.call is None else _refusals.get(dependant.call, frozenset())
    return own.union(*map(refusals_of, dependant.dependencies))
